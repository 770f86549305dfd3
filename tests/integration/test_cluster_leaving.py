"""A clean stop gives everything away first; it waits for nobody who could not take it."""

import asyncio
from collections import Counter
from types import ModuleType
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.node import Node
from lakehead.broker.protocol.messages import entity
from lakehead.storage.metadata.records import (
    AssignStreams,
    CreateStream,
    CreateTopic,
    DrainNode,
    FenceNode,
    OpenStream,
    RegisterNode,
)
from lakehead.storage.metadata.state import MetadataImage
from tests.support.node_cluster import NodeCluster, node_cluster

QUICK_S = 3.0


def led_by(state: MetadataImage) -> Counter[int]:
    return Counter(stream.node_id for stream in state.streams.values() if stream.is_open)


async def seconds(*nodes: Node) -> float:
    """How long it takes to close nodes at once."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.TaskGroup() as group:
        for node in nodes:
            group.create_task(node.close())
    return loop.time() - began


async def with_topic(cluster: NodeCluster) -> None:
    await cluster.nodes[1].replication_control.create("t", 9)
    await cluster.until(lambda: set(cluster.leaders("t")) == {1, 2, 3})


async def test_others_lead_what_a_node_led_when_it_has_stopped() -> None:
    async with node_cluster() as cluster:
        await with_topic(cluster)
        leaving = cluster.nodes.pop(2)
        assert await seconds(leaving) < QUICK_S
        assert leaving.engine.hand_overs.stats.streams == 3
        await cluster.until(lambda: led_by(cluster.nodes[1].state)[2] == 0)
        await cluster.until(lambda: led_by(cluster.nodes[1].state).total() == 9)
        assert cluster.nodes[1].state.nodes[2].is_draining
        await cluster.until(lambda: -1 not in cluster.leaders("t"))


async def test_the_controller_gives_its_own_away_too() -> None:
    async with node_cluster() as cluster:
        await with_topic(cluster)
        await cluster.until(lambda: cluster.nodes[3].state.controller.node_id == 1)
        assert await seconds(cluster.nodes.pop(1)) < QUICK_S
        await cluster.until(lambda: -1 not in cluster.leaders("t"))
        await cluster.until(lambda: cluster.nodes[3].state.controller.node_id == 2)


async def test_a_cluster_that_stops_at_once_does_not_pass_things_round() -> None:
    async with node_cluster() as cluster:
        await with_topic(cluster)
        last = cluster.nodes[3]
        assert await seconds(*cluster.nodes.values()) < QUICK_S
        state = last.state
        await last.engine.metadata.refresh()
        cluster.nodes.clear()
    assert led_by(state)[3] == 0


async def test_nobody_waits_for_nodes_that_drain() -> None:
    async with node_cluster() as cluster:
        await with_topic(cluster)
        metadata = cluster.nodes[1].engine.metadata
        drains = [DrainNode(node_id=n, epoch=0, is_draining=True) for n in (1, 2, 3)]
        await metadata.commit(drains)
        assert await seconds(cluster.nodes.pop(3)) < QUICK_S
        assert led_by(await metadata.refresh())[3] == 0, "closed all the same"


async def test_a_node_alone_closes_what_it_has() -> None:
    async with node_cluster(1) as cluster:
        await cluster.nodes[1].replication_control.create("t", 4)
        node = cluster.nodes[1]
        assert await seconds(node) < QUICK_S
        assert not node.state.nodes[1].is_draining
        assert led_by(node.state).total() == 0


async def unregister(cluster: NodeCluster, node_id: int) -> ErrorCode:
    """Ask node 1 to forget a broker."""

    def build(module: ModuleType) -> Any:
        return entity(module, "UnregisterBrokerRequest", broker_id=node_id)

    code: ErrorCode = (await cluster.client(1).ask(64, 0, build)).error_code
    return code


async def test_a_node_that_has_stopped_is_forgotten_and_may_come_back() -> None:
    async with node_cluster() as cluster:
        await with_topic(cluster)
        state = cluster.nodes[1].state
        assert await unregister(cluster, 2) is ErrorCode.invalid_request, "it is live"
        assert await unregister(cluster, 1) is ErrorCode.invalid_request, "it is asked itself"
        assert await unregister(cluster, 9) is ErrorCode.broker_id_not_registered
        assert cluster.nodes[1].state.nodes == state.nodes
        await cluster.stop(2)
        await cluster.until(lambda: cluster.nodes[1].state.nodes[2].is_fenced)
        assert await unregister(cluster, 2) is ErrorCode.none
        assert await unregister(cluster, 2) is ErrorCode.broker_id_not_registered
        await cluster.until(lambda: set(cluster.nodes[3].state.nodes) == {1, 3})
        await cluster.start(2)
        await cluster.until(cluster.is_whole)
        assert cluster.nodes[3].state.nodes[2].epoch == state.nodes[2].epoch + 1


async def test_a_node_whose_log_waits_to_be_recovered_is_not_forgotten() -> None:
    async with node_cluster(1) as cluster:
        metadata = cluster.nodes[1].engine.metadata
        await metadata.commit(
            [
                RegisterNode(node_id=2, epoch=0, incarnation="x", host="127.0.0.1", port=1),
                CreateTopic(name="t", topic_id="7" * 32),
                CreateStream(stream_id=0, topic_id="7" * 32, partition=0),
                AssignStreams(node_id=2, stream_ids=(0,)),
                OpenStream(stream_id=0, epoch=0, node_id=2, node_epoch=0),
                FenceNode(node_id=2, epoch=0),
            ]
        )
        assert await unregister(cluster, 2) is ErrorCode.request_timed_out
        assert 2 in cluster.nodes[1].state.nodes
