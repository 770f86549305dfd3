"""Transactional ids over real nodes: what producers are told, and what the nodes know after a
restart, a move and the end of a coordinator.
"""

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from broker.node import start_node
from broker.settings import Settings
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
                await node.catalog.create("orders", 2)
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
