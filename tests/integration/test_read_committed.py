"""Readers of committed records: what they are sent, of memory and of objects, and before and after
a node's restart. Transactions are written as the node's own parts write them.
"""

import asyncio
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.node import Node
from lakehead.broker.partition.partition import Partition
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity
from lakehead.storage.format.record_batch import TRANSACTIONAL, read_header
from lakehead.storage.object_store import MemoryStore
from tests.integration.test_node_protocol import LATEST, running, with_topic
from tests.support.node_client import Client
from tests.support.wire import Batch

FOREVER_S = 15


def led(node: Node) -> Partition:
    partition = node.topics.partition("t", 0)
    assert partition is not None
    return partition


class Durable:
    """Waits for what is appended."""

    def __init__(self) -> None:
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __call__(self, error: Exception | None) -> None:
        assert error is None
        self._done.set_result(None)

    async def wait(self) -> None:
        async with asyncio.timeout(FOREVER_S):
            await self._done


async def write(node: Node, producer_id: int, sequence: int, *values: bytes) -> int:
    """Append a transactional batch."""
    encoded = Batch(
        values=values,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        attributes=TRANSACTIONAL,
    ).encode()
    done, records = Durable(), memoryview(bytearray(encoded))
    partition = led(node)
    offset = partition.perform(partition.plan(records, read_header(records)), done)
    await done.wait()
    return offset


async def end(node: Node, producer_id: int, *, is_commit: bool) -> int:
    done = Durable()
    offset = led(node).end_transaction(producer_id, 0, 0, is_commit=is_commit, on_done=done)
    await done.wait()
    return offset


async def read(client: Client, offset: int, *, wait_ms: int = 0) -> Any:
    client.fetch({0: offset}, wait_ms=wait_ms, is_committed=True)
    return (await client.fetched())[0]


def ends(answer: Any) -> tuple[int, int, list[tuple[int, int]]]:
    """High watermark, last stable offset, aborted transactions."""
    aborted = [(one.producer_id, one.first_offset) for one in answer.aborted_transactions]
    return answer.high_watermark, answer.last_stable_offset, aborted


def size_of(answer: Any) -> int:
    return len(answer.records or b"")


async def latest(client: Client, *, is_committed: bool) -> int:
    module = schema(2, 6).request_module
    asked = entity(
        module,
        "ListOffsetsPartition",
        partition_index=0,
        timestamp=LATEST,
        current_leader_epoch=-1,
    )
    found: int = (await client.list_offsets(asked, is_committed=is_committed)).offset
    return found


async def test_an_open_transaction_is_not_read_and_its_end_wakes_who_waits() -> None:
    async with running() as node:
        client = await with_topic(node)
        assert await write(node, 7, 0, b"a", b"b") == 0
        answer = await read(client, 0)
        assert (size_of(answer), ends(answer)) == (0, (2, 0, []))
        client.fetch({0: 0})
        plain = (await client.fetched())[0]
        assert size_of(plain) > 0
        assert plain.aborted_transactions is None
        client.fetch({0: 0}, wait_ms=60_000, is_committed=True)
        await end(node, 7, is_commit=True)
        answer = (await client.fetched())[0]
        assert ends(answer) == (3, 3, [])
        assert size_of(answer) > size_of(plain), "the marker is there too"


async def test_what_follows_an_open_transaction_waits_for_it() -> None:
    async with running() as node:
        client = await with_topic(node)
        await write(node, 7, 0, b"a")
        client.fetch({0: 0})
        first = size_of((await client.fetched())[0])
        await write(node, 8, 0, b"b")
        await end(node, 8, is_commit=True)
        answer = await read(client, 0)
        assert (size_of(answer), ends(answer)) == (0, (3, 0, []))
        assert await latest(client, is_committed=True) == 0
        assert await latest(client, is_committed=False) == 3
        await write(node, 9, 0, b"c")
        await end(node, 7, is_commit=False)
        answer = await read(client, 0)
        assert ends(answer) == (5, 3, [(7, 0)])
        assert size_of(answer) > first
        assert await latest(client, is_committed=True) == 3


@pytest.mark.parametrize("is_clean", [True, False])
async def test_transactions_are_as_they_were_after_a_restart(is_clean: bool, tmp_path: Any) -> None:
    """Of the first life in objects, of the second in the log and its recovery."""
    store = MemoryStore()
    wal = f"block:{tmp_path}/wal?size=64MiB"
    async with running(store, wal=wal) as node:
        client = await with_topic(node)
        await write(node, 7, 0, b"a")
        await write(node, 8, 0, b"b")
        await end(node, 7, is_commit=False)
        await write(node, 9, 0, b"c")
        await node.engine.upload_now()
        await end(node, 9, is_commit=False)
        await write(node, 10, 0, b"d")
        before = [ends(await read(client, offset)) for offset in range(6)]
        assert before[0] == (6, 1, [(7, 0)])
        if not is_clean:
            node.engine.fail(OSError("as if killed"))
    async with running(store, wal=wal) as node:
        client = await with_topic(node)
        assert [ends(await read(client, offset)) for offset in range(6)] == before
        assert led(node).producers.is_in_transaction(8, 0)
        await end(node, 8, is_commit=True)
        await end(node, 10, is_commit=False)
        answer = await read(client, 0)
        assert ends(answer) == (8, 8, [(7, 0), (9, 3), (10, 5)])
        assert ends(await read(client, 5)) == (8, 8, [(10, 5)])
        objects = [await node.engine.reader.index(key) for key in node.state.objects]
        found = [e for index in objects for info in index.streams.values() for e in info.aborted]
        assert {(entry.producer_id, entry.first_offset) for entry in found} >= {(7, 0)}


async def test_a_timestamp_above_the_stable_end_is_not_found() -> None:
    async with running() as node:
        client = await with_topic(node)
        await write(node, 7, 0, b"a")
        module = schema(2, 6).request_module
        asked = entity(
            module,
            "ListOffsetsPartition",
            partition_index=0,
            timestamp=1,
            current_leader_epoch=-1,
        )
        assert (await client.list_offsets(asked)).offset == 0
        assert (await client.list_offsets(asked, is_committed=True)).offset == -1
        await end(node, 7, is_commit=True)
        assert (await client.list_offsets(asked, is_committed=True)).offset == 0


async def test_producers_are_described() -> None:
    async with running() as node:
        client = await with_topic(node)
        await write(node, 7, 0, b"a", b"b")
        await write(node, 8, 5, b"c")
        await end(node, 8, is_commit=False)
        module = schema(61, 0).request_module
        topics = [
            entity(module, "TopicRequest", name="t", partition_indexes=(0, 5)),
            entity(module, "TopicRequest", name="unknown", partition_indexes=(0,)),
        ]
        message = entity(module, "DescribeProducersRequest", topics=topics)
        known, unknown = (await client.ask(61, 0, message)).topics
        codes = [one.error_code for topic in (known, unknown) for one in topic.partitions]
        assert codes == [ErrorCode.none, *[ErrorCode.unknown_topic_or_partition] * 2]
        found = {one.producer_id: one for one in known.partitions[0].active_producers}
        assert (found[7].last_sequence, found[7].current_txn_start_offset) == (1, 0)
        assert (found[7].coordinator_epoch, found[7].producer_epoch) == (-1, 0)
        assert (found[8].last_sequence, found[8].current_txn_start_offset) == (5, -1)
        assert found[8].coordinator_epoch == 0
