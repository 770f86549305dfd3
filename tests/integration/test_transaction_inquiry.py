"""Batches that wait for a transaction coordinator's word, and what may happen meanwhile (KIP-890).

The coordinator's answers are put in by the tests, so that they come when something else has.
"""

import asyncio
from collections.abc import Collection
from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.node import Node
from lakehead.storage.format.record_batch import TRANSACTIONAL
from tests.integration.test_node_protocol import running, until, with_topic
from tests.integration.test_read_committed import end, ends, led, read
from tests.support.node_client import Client
from tests.support.wire import Batch

Place = tuple[str, int]
NONE, ID, OLD, NEW = ErrorCode.none, "tx", 10, 12


class Coordinator:
    """Answers when it is told to."""

    def __init__(self, node: Node) -> None:
        self.asked: list[tuple[list[Place], bool]] = []
        self._answers: asyncio.Queue[dict[Place, ErrorCode]] = asyncio.Queue()
        stubbed = replace(node.services, transactions=self)  # type: ignore[arg-type]
        node.dispatcher.serve(stubbed)

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[Place],
        *,
        is_adding: bool,
    ) -> dict[Place, ErrorCode]:
        assert transactional_id == ID
        self.asked.append((list(partitions), is_adding))
        codes = await self._answers.get()
        return {place: codes.get(place, NONE) for place in partitions}

    def answer(self, *codes: ErrorCode) -> None:
        """Say this of partitions 0, 1, ... of the topic."""
        self._answers.put_nowait({("t", index): code for index, code in enumerate(codes)})


def batch(
    sequence: int = 0, *, producer_id: int = 7, epoch: int = 0, attributes: int = TRANSACTIONAL
) -> bytes:
    return Batch(
        values=(b"a",),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=attributes,
    ).encode()


def produce(client: Client, *batches: bytes, version: int = OLD) -> None:
    client.produce_to(dict(enumerate(batches)), version=version, transactional_id=ID)


async def test_only_what_begins_a_transaction_is_asked_for() -> None:
    async with running() as node:
        client, coordinator = await with_topic(node), Coordinator(node)
        coordinator.answer()
        produce(client, batch())
        assert await client.produced() == (NONE, 0)
        coordinator.answer()
        produce(client, batch(1), batch())
        assert await client.produced_to() == {0: (NONE, 1), 1: (NONE, 0)}
        produce(client, batch(2), batch(1))
        assert await client.produced_to() == {0: (NONE, 2), 1: (NONE, 1)}
        assert coordinator.asked == [([("t", 0)], False), ([("t", 1)], False)]
        await end(node, 7, is_commit=True)
        coordinator.answer()
        produce(client, batch(3), version=NEW)
        assert await client.produced() == (NONE, 4)
        assert coordinator.asked[2:] == [([("t", 0)], True)]


async def test_a_word_that_comes_after_the_end_is_about_another_transaction() -> None:
    """Else the batch would open a transaction of which its coordinator knows nothing."""
    async with running() as node:
        client, coordinator = await with_topic(node), Coordinator(node)
        produce(client, batch())
        await until(lambda: len(coordinator.asked) == 1)
        await end(node, 7, is_commit=False)
        coordinator.answer()
        assert (await client.produced())[0] == ErrorCode.invalid_txn_state
        assert ends(await read(client, 0)) == (1, 1, [])
        coordinator.answer()
        produce(client, batch())
        assert await client.produced() == (NONE, 1)


async def test_one_partition_is_refused_and_the_other_is_not() -> None:
    async with running() as node:
        client, coordinator = await with_topic(node), Coordinator(node)
        coordinator.answer(NONE, ErrorCode.invalid_producer_epoch)
        produce(client, batch(), batch())
        refused = (ErrorCode.invalid_producer_epoch, -1)
        assert await client.produced_to() == {0: (NONE, 0), 1: refused}


@pytest.mark.parametrize(
    ("said", "version", "told"),
    [
        (ErrorCode.not_coordinator, NEW, ErrorCode.not_enough_replicas),
        (ErrorCode.coordinator_not_available, OLD, ErrorCode.not_enough_replicas),
        (ErrorCode.coordinator_load_in_progress, OLD, ErrorCode.not_enough_replicas),
        (ErrorCode.concurrent_transactions, 11, ErrorCode.not_enough_replicas),
        (ErrorCode.concurrent_transactions, NEW, ErrorCode.concurrent_transactions),
        (ErrorCode.producer_fenced, NEW, ErrorCode.invalid_producer_epoch),
        (ErrorCode.transaction_abortable, 10, ErrorCode.invalid_txn_state),
        (ErrorCode.transaction_abortable, 11, ErrorCode.transaction_abortable),
        (ErrorCode.invalid_producer_id_mapping, OLD, ErrorCode.invalid_producer_id_mapping),
    ],
)
async def test_producers_are_told_what_their_version_knows(
    said: ErrorCode, version: int, told: ErrorCode
) -> None:
    async with running() as node:
        client, coordinator = await with_topic(node), Coordinator(node)
        coordinator.answer(said)
        produce(client, batch(), version=version)
        assert (await client.produced())[0] == told
        assert led(node).log_end_offset == 0


async def test_a_later_batch_does_not_overtake_one_that_has_to_be_sent_again() -> None:
    async with running() as node:
        client, coordinator = await with_topic(node), Coordinator(node)
        coordinator.answer(ErrorCode.not_coordinator)
        coordinator.answer()
        produce(client, batch(0))
        produce(client, batch(1))
        assert (await client.produced())[0] == ErrorCode.not_enough_replicas
        assert (await client.produced())[0] == ErrorCode.out_of_order_sequence_number
        coordinator.answer()
        produce(client, batch(0))
        produce(client, batch(1))
        assert [await client.produced() for _ in range(2)] == [(NONE, 0), (NONE, 1)]


async def test_transactions_of_version_2_begin_with_sequence_0() -> None:
    async with running() as node:
        client, coordinator = await with_topic(node), Coordinator(node)
        coordinator.answer()
        produce(client, batch(5), version=NEW)
        assert (await client.produced())[0] == ErrorCode.out_of_order_sequence_number
        coordinator.answer()
        produce(client, batch(5, producer_id=8))
        assert await client.produced() == (NONE, 0), "older ones go on where they were"


async def test_what_is_behind_a_question_waits_for_its_answer_and_others_do_not() -> None:
    async with running() as node:
        client, coordinator = await with_topic(node), Coordinator(node)
        other = await Client.connect(node)
        produce(client, batch())
        client.produce(Batch().encode())
        await until(lambda: len(coordinator.asked) == 1)
        other.produce(Batch().encode())
        assert await other.produced() == (NONE, 0)
        coordinator.answer()
        assert [await client.produced() for _ in range(2)] == [(NONE, 1), (NONE, 2)]


async def test_who_asked_may_be_gone_when_the_answer_comes() -> None:
    async with running() as node:
        client, coordinator = await with_topic(node), Coordinator(node)
        produce(client, batch())
        await until(lambda: len(coordinator.asked) == 1)
        client.writer.close()
        await until(lambda: not node.server.connections)
        coordinator.answer()
        other = await Client.connect(node)
        other.produce(Batch().encode())
        assert await other.produced() == (NONE, 0)


async def test_a_request_is_of_one_producer() -> None:
    async with running() as node:
        client, _ = await with_topic(node), Coordinator(node)
        produce(client, batch(), batch(producer_id=8))
        refused = (ErrorCode.invalid_producer_id_mapping, -1)
        assert await client.produced_to() == {0: refused, 1: refused}


async def test_a_batch_outside_of_an_open_transaction_of_its_producer_is_refused() -> None:
    async with running() as node:
        client, coordinator = await with_topic(node), Coordinator(node)
        coordinator.answer()
        produce(client, batch())
        produce(client, batch(1, attributes=0))
        assert await client.produced() == (NONE, 0)
        assert (await client.produced())[0] == ErrorCode.invalid_txn_state


async def test_a_batch_that_is_refused_was_asked_for_like_any_other() -> None:
    """Kafka looks at a batch after it has asked: the partition is in the transaction then."""
    async with running() as node:
        client, coordinator = await with_topic(node), Coordinator(node)
        coordinator.answer()
        damaged = Batch(producer_id=7, producer_epoch=0, base_sequence=0, attributes=16, crc=1)
        produce(client, damaged.encode(), version=NEW)
        assert (await client.produced())[0] == ErrorCode.corrupt_message
        assert coordinator.asked == [([("t", 0)], True)]
        coordinator.answer(ErrorCode.invalid_producer_id_mapping)
        produce(client, damaged.encode(), version=NEW)
        assert (await client.produced())[0] == ErrorCode.invalid_producer_id_mapping


async def test_a_batch_without_a_sequence_is_one_before_sequence_0() -> None:
    """It is refused, and has to be sent again before any other, as by Kafka."""
    async with running() as node:
        client, coordinator = await with_topic(node), Coordinator(node)
        for sequence, code in (
            (-1, ErrorCode.invalid_record),
            (0, ErrorCode.out_of_order_sequence_number),
        ):
            coordinator.answer()
            produce(client, batch(sequence), version=NEW)
            assert (await client.produced())[0] == code
        coordinator.answer()
        produce(client, batch(0, epoch=1), version=NEW)
        assert await client.produced() == (NONE, 0), "another epoch begins anew"


async def test_batches_of_two_producers_are_refused_and_leave_nothing_behind() -> None:
    async with running() as node:
        client, coordinator = await with_topic(node), Coordinator(node)
        produce(client, batch(-1), batch(epoch=1), version=NEW)
        mapping = ErrorCode.invalid_producer_id_mapping
        assert {code for code, _ in (await client.produced_to()).values()} == {mapping}
        assert not coordinator.asked
        coordinator.answer()
        produce(client, batch(0), version=NEW)
        assert await client.produced() == (NONE, 0)


async def test_acks_are_looked_at_after_the_answer_and_before_the_batch() -> None:
    async with running() as node:
        client, coordinator = await with_topic(node), Coordinator(node)
        coordinator.answer()
        client.produce_to({0: batch(-1)}, acks=2, version=NEW, transactional_id=ID)
        assert (await client.produced())[0] == ErrorCode.invalid_required_acks
        coordinator.answer(ErrorCode.producer_fenced)
        client.produce_to({0: batch(-1)}, acks=2, version=NEW, transactional_id=ID)
        assert (await client.produced())[0] == ErrorCode.invalid_producer_epoch


async def test_an_epoch_that_is_over_needs_no_question() -> None:
    async with running() as node:
        client, coordinator = await with_topic(node), Coordinator(node)
        coordinator.answer()
        produce(client, batch(epoch=2))
        assert await client.produced() == (NONE, 0)
        produce(client, batch(epoch=1))
        assert (await client.produced())[0] == ErrorCode.invalid_producer_epoch
        assert len(coordinator.asked) == 1


async def test_transactional_records_without_a_transactional_id_are_refused_altogether() -> None:
    async with running() as node:
        client, coordinator = await with_topic(node), Coordinator(node)
        client.produce_to({0: Batch().encode(), 77: batch()}, version=NEW)
        codes = {index: code for index, (code, _) in (await client.produced_to()).items()}
        assert set(codes.values()) == {ErrorCode.transactional_id_authorization_failed}
        assert not coordinator.asked


async def test_a_refused_batch_is_answered_with_the_start_of_its_log() -> None:
    async with running() as node:
        client = await with_topic(node)
        out_of_order = Batch(producer_id=7, producer_epoch=0, base_sequence=0, record_count=3)
        for refused, start in ((out_of_order.encode(), 0), (Batch(crc=1).encode(), -1)):
            client.produce(refused)
            answer = (await client.receive()).responses[0].partition_responses[0]
            assert answer.error_code != NONE
            assert answer.log_start_offset == start
