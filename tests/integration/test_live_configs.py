"""Configs of brokers that are looked up when needed: a change is felt without a restart."""

import asyncio

import pytest

from lakehead.broker.node import Node
from lakehead.broker.protocol.api import schema
from lakehead.storage.maintenance.configs import ALL_BROKERS
from lakehead.storage.metadata.records import BrokerConfig
from tests.support.node_client import LIMIT_S, Client, close_clients
from tests.support.node_cluster import NodeCluster, node_cluster
from tests.support.wire import Batch


async def set_config(node: Node, name: str, value: str | None, *, node_id: int) -> None:
    record = BrokerConfig(node_id=node_id, configs={name: value})
    await node.engine.metadata.commit([record])


async def is_refused(node: Node) -> bool:
    """Return true if the node closes a new connection of a client at its first request."""
    refused = node.server.refused_total
    client = await Client.connect(node)
    client.send(18, 0, schema(18, 0).request_class())
    async with asyncio.timeout(LIMIT_S):
        is_closed = await client.reader.read(1) == b""
    assert is_closed == (node.server.refused_total > refused)
    return is_closed


async def test_fewer_or_more_connections_are_let_in() -> None:
    async with node_cluster(1) as cluster:
        node = cluster.nodes[1]
        try:
            assert not await is_refused(node)
            await set_config(node, "max.connections", "1", node_id=ALL_BROKERS)
            assert await is_refused(node)
            await set_config(node, "max.connections", "2", node_id=1)
            assert not await is_refused(node)
            assert await is_refused(node)
            await set_config(node, "max.connections", None, node_id=1)
            await set_config(node, "max.connections", None, node_id=ALL_BROKERS)
            assert not await is_refused(node)
        finally:
            await close_clients()


async def test_idle_producers_are_forgotten_sooner_when_that_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lakehead.broker.node.EXPIRY_S", 0.01)
    async with node_cluster(1) as cluster:
        node = cluster.nodes[1]
        await node.replication_control.create("t", 1)
        await cluster.until(lambda: cluster.leaders("t") == [1])
        try:
            client = await Client.connect(node)
            client.produce(Batch(producer_id=7, producer_epoch=0, base_sequence=0).encode())
            assert await client.produced() == (0, 0)
            await several_looks(cluster)
            assert producers(node) == 1
            await set_config(node, "producer.id.expiration.ms", "1", node_id=1)
            await cluster.until(lambda: producers(node) == 0)
        finally:
            await close_clients()


async def several_looks(cluster: NodeCluster) -> None:
    """Wait until expiry had its turns: it looks every few milliseconds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + 0.1
    await cluster.until(lambda: loop.time() > end)


def producers(node: Node) -> int:
    partition = node.topics.partition("t", 0)
    assert partition is not None
    return len(partition.producers)
