"""Transactional ids over real nodes: what producers are told, and what the nodes know after a
restart, a move and the end of a coordinator.
"""

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.node import start_node
from lakehead.broker.protocol.messages import entity
from lakehead.broker.settings import Settings
from tests.support.api_client import ApiClient
from tests.support.transactional_client import TransactionalClient

NONE = ErrorCode.none
PLACES = [("orders", 0), ("orders", 1)]


@asynccontextmanager
async def node_at(folder: Path, **settings: object) -> AsyncIterator[ApiClient]:
    plain = Settings(
        data=str(folder),
        port=0,
        wal_size=64 << 20,
        cache_size=16 << 20,
        offsets_topic_num_partitions=2,
        transaction_state_log_num_partitions=2,
        transaction_abort_timed_out_transaction_cleanup_interval_ms=20,
    )
    given = dataclasses.replace(plain, **settings)  # type: ignore[arg-type]
    node = await start_node(given, rng=random.Random(5))
    try:
        async with asyncio.timeout(20):
            if node.topics.find("orders") is None:
                await node.replication_control.create("orders", 2)
            yield ApiClient(node)
    finally:
        await node.close()


async def producer(node: ApiClient, name: str = "tx", **how: int) -> TransactionalClient:
    client = TransactionalClient(name, node)
    assert await client.find() is NONE
    assert await client.initialize_at_last(**how) is NONE
    return client


@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_transaction_ends_with_a_marker_in_each_partition(
    tmp_path: Path, is_commit: bool
) -> None:
    async with node_at(tmp_path) as node:
        client = await producer(node)
        assert await client.add(PLACES) == [NONE, NONE]
        assert await client.state() == "Ongoing"
        assert await client.end(is_commit=is_commit) is NONE
        await client.until("CompleteCommit" if is_commit else "CompleteAbort")
        for place in PLACES:
            partition = node.node.topics.partition(*place)
            assert partition is not None
            assert partition.high_watermark == 1


async def test_what_is_asked_wrongly_is_refused_as_kafka_does(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node:
        client = await producer(node)
        too_long = node.node.settings.transaction_max_timeout_ms + 1
        for timeout_ms in (too_long, 0, -1):
            code = await client.initialize(timeout_ms=timeout_ms)
            assert code is ErrorCode.invalid_transaction_timeout
        assert await client.end() is ErrorCode.invalid_txn_state
        missing, kept_out = (
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.operation_not_attempted,
        )
        assert await client.add([("orders", 0), ("orders", 9)]) == [kept_out, missing]
        assert await client.add([("nowhere", 0), ("orders", 0)]) == [missing, kept_out]
        assert await client.state() == "Empty"
        nameless = TransactionalClient("", node)
        assert await nameless.initialize() is ErrorCode.invalid_request
        assert await nameless.add(PLACES[:1]) == [ErrorCode.invalid_request]
        assert await nameless.end() is ErrorCode.invalid_request
        assert (await nameless.describe()).error_code is ErrorCode.invalid_request
        assert await TransactionalClient("x" * 40_000, node).initialize() is (
            ErrorCode.invalid_request
        )
        stranger = TransactionalClient("stranger", node)
        assert await stranger.add(PLACES[:1]) == [ErrorCode.invalid_producer_id_mapping]
        assert await stranger.end() is ErrorCode.invalid_producer_id_mapping
        assert (await stranger.describe()).error_code is ErrorCode.transactional_id_not_found
        half = TransactionalClient("tx", node)
        half.producer = (client.producer[0], -1)
        assert await half.initialize(is_fresh=False) is ErrorCode.invalid_request


async def test_an_older_producer_is_fenced_in_words_that_it_knows(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node:
        old = await producer(node)
        assert await old.add(PLACES) == [NONE, NONE]
        new = await producer(node)  # aborts what the old one has open
        assert new.producer[0] == old.producer[0]
        assert new.producer[1] > old.producer[1]
        fenced, before = ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch
        for version, code in ((0, before), (1, before), (2, fenced), (3, fenced)):
            assert await old.add(PLACES[:1], version) == [code]
            assert await old.end(version) is code
            assert await old.add_offsets("team", version) is code
        for version, code in ((3, before), (4, fenced), (6, fenced)):
            assert await old.initialize(version, is_fresh=False) is code
        assert await old.end(5) is fenced
        assert await new.add(PLACES) == [NONE, NONE]
        assert await new.end() is NONE


async def test_a_transaction_that_is_left_open_is_aborted(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node:
        client = await producer(node, timeout_ms=30)
        assert await client.add(PLACES) == [NONE, NONE]
        await client.until("CompleteAbort")
        for place in PLACES:
            partition = node.node.topics.partition(*place)
            assert partition is not None
            assert partition.high_watermark == 1
        before = client.producer
        assert await client.add(PLACES[:1]) == [ErrorCode.producer_fenced]
        assert await client.end() is ErrorCode.producer_fenced
        # It may go on, as itself.
        assert await client.initialize(is_fresh=False, timeout_ms=30) is NONE
        assert client.producer == (before[0], before[1] + 1)
        idle = await producer(node, "idle", timeout_ms=1)
        assert await client.add(PLACES) == [NONE, NONE]
        await client.until("CompleteAbort")
        assert await idle.state() == "Empty"


async def test_an_open_transaction_outlives_its_coordinator(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node:
        client = await producer(node)
        assert await client.add(PLACES[:1]) == [NONE]
    async with node_at(tmp_path) as node:
        client.move(node)
        described = await client.describe()
        assert described.transaction_state == "Ongoing"
        assert (described.producer_id, described.producer_epoch) == client.producer
        assert [(t.topic, t.partitions) for t in described.topics] == [("orders", (0,))]
        assert await client.add(PLACES[1:]) == [NONE]
        assert await client.end() is NONE
        await client.until("CompleteCommit")
        assert await client.end() is NONE  # its answer was lost
        assert await client.end(is_commit=False) is ErrorCode.invalid_txn_state


async def test_with_version_2_every_end_gives_the_next_epoch(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node:
        client = await producer(node)
        before = client.producer
        assert await client.end(5, is_commit=False) is NONE  # nothing was begun: that is fine
        assert client.producer == (before[0], before[1] + 1)
        await client.until("CompleteAbort")
        codes = await node.node.transactions.verify("tx", *client.producer, PLACES, is_adding=True)
        assert codes == dict.fromkeys(PLACES, NONE)
        late = client.producer
        assert await client.end(5) is NONE
        assert client.producer == (before[0], before[1] + 2)
        await client.until("CompleteCommit")
        told = client.producer
        client.producer = late
        assert await client.end(5) is NONE  # a repetition, told the same once more
        assert client.producer == told
        client.producer = late
        assert await client.end(5, is_commit=False) is ErrorCode.invalid_txn_state
        client.producer = told
        codes = await node.node.transactions.verify("tx", *told, PLACES, is_adding=True)
        client.producer = late  # the transaction before: a word that was held up on its way
        assert await client.end(5) is ErrorCode.producer_fenced
        assert await client.state() == "Ongoing"


async def test_transactions_are_listed_by_state_producer_and_age(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node:
        one, two = await producer(node, "one"), await producer(node, "two")
        assert await two.add(PLACES) == [NONE, NONE]

        async def listed(version: int = 1, **filters: object) -> tuple[set[str], tuple[str, ...]]:
            def build(module: Any) -> Any:
                none: dict[str, object] = {"state_filters": (), "producer_id_filters": ()}
                return entity(module, "ListTransactionsRequest", **{**none, **filters})

            answer = await node.ask(66, version, build)
            found = {state.transactional_id for state in answer.transaction_states}
            return found, answer.unknown_state_filters

        assert await listed(0) == ({"one", "two"}, ())
        assert await listed(state_filters=("Ongoing",)) == ({"two"}, ())
        assert await listed(state_filters=("Ongoing", "Odd")) == ({"two"}, ("Odd",))
        assert await listed(state_filters=("Odd",)) == (set(), ("Odd",))
        assert await listed(producer_id_filters=(one.producer[0],)) == ({"one"}, ())
        assert await listed(2, transactional_id_pattern="t.*|none") == ({"two"}, ())
        assert await listed(2, transactional_id_pattern="w") == (set(), ())
        assert await listed(2, transactional_id_pattern="(a+") == (set(), ())
        hour_ms = 3_600_000
        found, _ = await listed(duration_filter=hour_ms)
        assert "two" not in found


async def test_an_id_that_nobody_uses_is_forgotten(tmp_path: Path) -> None:
    hasty = {
        "transactional_id_expiration_ms": 50,
        "transaction_remove_expired_transaction_cleanup_interval_ms": 10,
    }
    async with node_at(tmp_path, **hasty) as node:
        busy = await producer(node, "busy")
        assert await busy.add(PLACES) == [NONE, NONE]
        idle = await producer(node, "idle")
        while (await idle.describe()).error_code is NONE:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.005)
        assert (await idle.describe()).error_code is ErrorCode.transactional_id_not_found
        assert await busy.state() == "Ongoing"
    async with node_at(tmp_path) as node:
        idle.move(node)
        assert (await idle.describe()).error_code is ErrorCode.transactional_id_not_found


async def test_two_phase_commit_is_refused_as_where_it_is_not_enabled(tmp_path: Path) -> None:
    async with node_at(tmp_path) as node:
        client = await producer(node)

        async def ask(**flags: bool) -> ErrorCode:
            def build(module: Any) -> Any:
                return entity(
                    module,
                    "InitProducerIdRequest",
                    transactional_id="tx",
                    transaction_timeout=1000,
                    **flags,
                )

            return ErrorCode((await node.ask(22, 6, build)).error_code)

        assert await ask(enable2_pc=True) is ErrorCode.transactional_id_authorization_failed
        assert await ask(keep_prepared_txn=True) is ErrorCode.unsupported_version
        assert await client.state() == "Empty"
