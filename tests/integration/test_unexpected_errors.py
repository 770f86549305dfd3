"""An error that nothing expects, on each path of a request, ends its connection alone."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lakehead.broker.api import produce as produce_api
from lakehead.broker.api.fetch import FetchCall
from lakehead.broker.cluster import replica_manager
from lakehead.broker.cluster.broker_lifecycle import Session
from lakehead.broker.coordinator.log import CoordinatorLog
from lakehead.broker.coordinator.transaction.add_partitions_manager import AddPartitionsToTxnManager
from lakehead.broker.node import Node
from lakehead.broker.partition import cold_reads
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity
from lakehead.storage.format.record_batch import TRANSACTIONAL, read_header
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.stream import reader
from lakehead.storage.stream.reader import ColdReader
from tests.integration.test_node_protocol import batch, running, until, with_topic
from tests.support.node_client import LIMIT_S, Client

Patch = Callable[[pytest.MonkeyPatch], None]


class Unexpected(Exception):
    """What no code expects."""


def broken(*_: Any, **__: Any) -> Any:
    raise Unexpected("a defect")


async def broken_later(*_: Any, **__: Any) -> Any:
    raise Unexpected("a defect")


def not_current(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Session, "is_current", lambda _: False)
    patch.setattr(Session, "ensure", broken_later)


FETCHES: dict[str, Patch] = {
    "confirm": not_current,
    "evaluate": lambda patch: patch.setattr(FetchCall, "_read_partition", broken),
    "cold read": lambda patch: patch.setattr(cold_reads, "spared", broken),
    "plan": lambda patch: patch.setattr(reader, "_runs", broken),
    "read": lambda patch: patch.setattr(ColdReader, "_read_run", broken_later),
    "index": lambda patch: patch.setattr(reader, "_row", broken),
}


async def ends_alone(node: Node, victim: Client, failed: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        assert await victim.reader.read() == b""
    assert node.dispatcher.failed_total == failed
    assert node.failure is None


async def is_served(node: Node) -> None:
    other = await Client.connect(node)
    other.produce(batch(b"neighbour"), partition=1)
    error, offset = await other.produced()
    assert error == 0
    other.fetch({1: offset})
    assert read_header((await other.fetched())[1].records).base_offset == offset


@pytest.mark.parametrize("path", FETCHES)
async def test_an_unexpected_error_of_a_fetch_ends_its_connection_alone(path: str) -> None:
    async with running(MemoryStore()) as node:
        client = await with_topic(node)
        client.produce(batch(b"a"))
        assert await client.produced() == (0, 0)
        await node.engine.upload_now()
        partition = node.topics.partition("t", 0)
        assert partition is not None
        node.engine.cache.forget(partition.stream.stream_id)
        with pytest.MonkeyPatch.context() as patch:
            FETCHES[path](patch)
            client.fetch({0: 0}, wait_ms=1000)
            await ends_alone(node, client, failed=1)
        await is_served(node)
        again = await Client.connect(node)
        again.fetch({0: 0}, wait_ms=1000)
        assert read_header((await again.fetched())[0].records).base_offset == 0


async def test_an_unexpected_error_of_a_fetch_that_waits_ends_its_connection_alone() -> None:
    async with running() as node:
        client = await with_topic(node)
        client.fetch({0: 0}, wait_ms=60_000)
        partition = node.topics.partition("t", 0)
        assert partition is not None
        await until(lambda: bool(node.dispatcher.requests_total["Fetch"]))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FetchCall, "_read_partition", broken)
            other = await Client.connect(node)
            other.produce(batch(b"wakes"))
            assert await other.produced() == (0, 0)
            await ends_alone(node, client, failed=1)
        await is_served(node)


async def test_an_unexpected_error_of_a_produce_ends_its_connection_alone() -> None:
    async with running(compression_type="zstd") as node:
        client = await with_topic(node)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(produce_api, "change_codec", broken_later)
            client.produce(batch(b"a"))
            await ends_alone(node, client, failed=1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(produce_api, "encode", broken)
            client = await Client.connect(node)
            client.produce(batch(b"a"))
            await ends_alone(node, client, failed=2)
        await is_served(node)


async def test_an_unexpected_error_of_a_coordinator_ends_one_connection_alone() -> None:
    async with running() as node:
        client = await with_topic(node)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(AddPartitionsToTxnManager, "verify", broken_later)
            of_transaction = batch(
                b"a",
                producer_id=1,
                producer_epoch=0,
                base_sequence=0,
                attributes=TRANSACTIONAL,
            )
            client.produce_to({0: of_transaction}, version=12, transactional_id="x")
            await ends_alone(node, client, failed=1)
        await is_served(node)


CHECKS: dict[str, tuple[str, Callable[..., Any], int]] = {
    "at once": ("check_records", broken, 1),
    "aside": ("check_records_aside", broken_later, 1000),
}


@pytest.mark.parametrize("check", CHECKS)
async def test_an_unexpected_error_of_a_look_at_records_ends_its_connection_alone(
    check: str,
) -> None:
    name, error, records = CHECKS[check]
    async with running() as node:
        await node.replication_control.create("t", 2, {"lakehead.record.validation": "true"})
        client = await Client.connect(node)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(produce_api, name, error)
            client.produce(batch(*[b"a"] * records))
            await ends_alone(node, client, failed=1)
        await is_served(node)


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
async def test_an_unexpected_error_of_a_shard_that_loads_ends_one_connection_alone(
    topic: str,
) -> None:
    """The next request loads it."""
    is_group = topic == "__consumer_offsets"
    module = schema(10, 4).request_module
    find = entity(
        module, "FindCoordinatorRequest", key_type=0 if is_group else 1, coordinator_keys=["k"]
    )

    def ask_coordinator(client: Client) -> None:
        if is_group:
            message = entity(
                schema(15, 5).request_module,
                "DescribeGroupsRequest",
                groups=["k"],
                include_authorized_operations=False,
            )
            client.send(15, 5, message)
        else:
            request = schema(65, 0).request_module
            message = entity(request, "DescribeTransactionsRequest", transactional_ids=["k"])
            client.send(65, 0, message)

    async with running(
        transaction_state_log_num_partitions=1, offsets_topic_num_partitions=1
    ) as node:
        client = await with_topic(node)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CoordinatorLog, "replay", broken_later)
            await client.ask(10, 4, find)
            ask_coordinator(client)
            await ends_alone(node, client, failed=1)
        await is_served(node)
        again = await Client.connect(node)
        ask_coordinator(again)
        assert await again.receive() is not None


async def test_a_partition_is_loaded_again_after_an_unexpected_error() -> None:
    async with running() as node:
        with pytest.MonkeyPatch.context() as patch:
            tries: list[str] = []
            load = replica_manager.open_partition  # type: ignore[attr-defined]

            async def broken_load(topic: Any, *given: Any, **named: Any) -> Any:
                tries.append(topic.name)
                if len(tries) <= 2:
                    raise Unexpected("a defect")
                return await load(topic, *given, **named)

            patch.setattr(replica_manager, "open_partition", broken_load)
            await node.replication_control.create("t", 1)
            await until(lambda: node.topics.partition("t", 0) is not None)
        assert len(tries) == 3
        assert node.failure is None
        client = await Client.connect(node)
        client.produce(batch(b"a"))
        assert await client.produced() == (0, 0)
