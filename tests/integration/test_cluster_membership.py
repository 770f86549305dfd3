"""Nodes that come, die and are cut off: who decides, who takes over, what becomes of records."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lakehead.broker.cluster.inter_broker_client import PeerChannel
from lakehead.broker.node import Node
from lakehead.storage.metadata.records import AssignStreams
from tests.support.node_cluster import NodeCluster, node_cluster
from tests.support.wire import Batch

OBJECT: dict[str, Any] = {"wal": "object:"}
BALANCING: dict[str, Any] = {
    **OBJECT,
    "auto_leader_rebalance_enable": True,
    "leader_imbalance_check_interval_seconds": 1,
}


async def crash(cluster: NodeCluster, node_id: int) -> Node:
    """End a node as `kill -9` does: its tasks stop, its sockets close, nothing more is written."""
    node = cluster.nodes.pop(node_id)
    node.server.stop_accepting()
    for connection in list(node.server.connections):
        connection.abort()
    await node.scope.close()
    await node.server.close()
    return node


async def append(cluster: NodeCluster, topic: str, value: bytes) -> None:
    """Append a record to each partition, wherever it is led; return when all are durable."""
    waits = []
    for node in cluster.nodes.values():
        for index, partition in enumerate(node.topics.by_name[topic].partitions):
            if partition is None or not partition.stream.is_open:
                continue
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def done(error: Exception | None, future: asyncio.Future[None] = future) -> None:
                assert error is None
                future.set_result(None)

            batch = Batch(values=(value + str(index).encode(),)).encode()
            partition.append(memoryview(bytearray(batch)), done)
            waits.append(future)
    await asyncio.wait(waits)


def ends(cluster: NodeCluster, topic: str) -> list[int]:
    """The high watermark of every partition, where it is led."""
    found = {}
    for node in cluster.nodes.values():
        for index, partition in enumerate(node.topics.by_name[topic].partitions):
            if partition is not None and partition.stream.is_open:
                found[index] = partition.high_watermark
    return [found[index] for index in sorted(found)]


def is_led(cluster: NodeCluster, topic: str) -> Callable[[], bool]:
    return lambda: -1 not in cluster.leaders(topic)


class CutNetwork:
    """A `PeerNetwork` on which nothing arrives: connecting takes for ever."""

    async def connect(self, host: str, port: int, on_closed: Callable[[], None]) -> PeerChannel:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def probe(self, host: str, port: int) -> None:
        await asyncio.get_running_loop().create_future()


async def test_one_node_is_the_controller_and_all_know_which() -> None:
    async with node_cluster() as cluster:
        active = [node.node_id for node in cluster.nodes.values() if node.controller.is_active]
        assert len(active) == 1
        await cluster.until(cluster.is_even)
        assert {node.state.controller.node_id for node in cluster.nodes.values()} == set(active)


@pytest.mark.parametrize("is_controller", [True, False])
async def test_what_a_dead_node_led_goes_on_elsewhere_with_every_record(
    is_controller: bool,
) -> None:
    async with node_cluster(**OBJECT) as cluster:
        await cluster.nodes[1].replication_control.create("t", 6)
        for number in range(5):
            await append(cluster, "t", str(number).encode())
        controller = cluster.nodes[1].state.controller
        others = sorted(cluster.nodes.keys() - {controller.node_id})
        victim = controller.node_id if is_controller else others[0]
        loop = asyncio.get_running_loop()
        began = loop.time()
        await crash(cluster, victim)
        await cluster.until(is_led(cluster, "t"))
        assert loop.time() - began < 2.0  # far less than a session
        assert ends(cluster, "t") == [5] * 6
        await append(cluster, "t", b"more")
        await cluster.until(cluster.is_even)
        (state, *_) = (node.state for node in cluster.nodes.values())
        assert state.nodes[victim].is_recovered
        assert state.controller.node_id in cluster.nodes
        assert state.controller.term == controller.term + is_controller


async def test_a_dead_leader_is_no_leader_long_before_it_is_fenced() -> None:
    """A client that is told of no leader asks again soon; it asks as soon as it lost its own
    connection.
    """
    async with node_cluster(**OBJECT) as cluster:
        await crash(cluster, 2)
        one, other = cluster.nodes.values()
        async with asyncio.timeout(0.1):
            await cluster.until(
                lambda: one.lifecycle.unreachable() == other.lifecycle.unreachable() == {2}
            )
        assert not one.state.nodes[2].is_fenced


async def test_the_last_of_three_takes_what_two_left_at_once() -> None:
    async with node_cluster(**OBJECT) as cluster:
        await cluster.nodes[1].replication_control.create("t", 6)
        await append(cluster, "t", b"v")
        await crash(cluster, 1)
        await crash(cluster, 3)
        await cluster.until(is_led(cluster, "t"))
        assert cluster.leaders("t") == [2] * 6
        assert ends(cluster, "t") == [1] * 6


async def test_a_node_that_comes_back_leads_what_it_led_before() -> None:
    async with node_cluster(**BALANCING) as cluster:
        await cluster.nodes[1].replication_control.create("t", 6)
        before = cluster.leaders("t")
        await append(cluster, "t", b"v")
        await crash(cluster, 2)
        await cluster.until(is_led(cluster, "t"))
        await cluster.start(2, **BALANCING)
        await cluster.until(lambda: cluster.leaders("t") == before)
        assert ends(cluster, "t") == [1] * 6


async def test_a_new_node_takes_its_share() -> None:
    async with node_cluster(2, **BALANCING) as cluster:
        await cluster.nodes[1].replication_control.create("t", 30)
        await append(cluster, "t", b"v")
        await cluster.start(3, **BALANCING)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await cluster.until(lambda: cluster.leaders("t").count(3) >= 9)
        assert loop.time() - began < 10
        await cluster.until(is_led(cluster, "t"))
        assert ends(cluster, "t") == [1] * 30


async def test_who_is_cut_off_from_the_others_is_fenced_and_stops() -> None:
    """It reaches the store as they do; so it must learn from there that it is out."""
    flags = {**OBJECT, "broker_session_timeout_ms": 600}
    async with node_cluster(**flags) as cluster:
        await cluster.nodes[1].replication_control.create("t", 6)
        await append(cluster, "t", b"v")
        nodes = dict(cluster.nodes)
        cut_id = cluster.nodes[1].state.controller.node_id
        cut = nodes[cut_id]
        for node in nodes.values():
            _cut(node, cut.advertised_port)
        async with asyncio.timeout(30):
            failure = await cut.wait_failed()
        assert "fenced" in str(failure) or "sealed" in str(failure)
        del cluster.nodes[cut_id]
        await cut.close()
        await cluster.until(is_led(cluster, "t"))
        assert ends(cluster, "t") == [1] * 6
        assert all(not node.state.nodes[node.node_id].is_fenced for node in cluster.nodes.values())


async def test_a_line_cut_between_two_of_three_harms_nobody() -> None:
    """The third hears both, and says so."""
    async with node_cluster(**OBJECT, broker_session_timeout_ms=600) as cluster:
        nodes = cluster.nodes
        before = nodes[1].state.next_entry
        _cut(nodes[1], nodes[2].advertised_port)
        _cut(nodes[2], nodes[1].advertised_port)
        for _ in range(40):
            await asyncio.sleep(0.05)
            assert not any(node.lifecycle.view().dead for node in nodes.values())
        assert {node.state.next_entry for node in nodes.values()} == {before}


def _cut(node: Node, cut_port: int) -> None:
    """Cut the lines that lead from a node to the one at that port, or from that one to others."""
    for other_id, (line, task) in list(node.lifecycle._channels.items()):
        if cut_port in {node.advertised_port, line.peer.port}:
            line._network = CutNetwork()
            task.cancel()
            again = node.scope.spawn(line.run(), name="a cut line")
            node.lifecycle._channels[other_id] = (line, again)


async def test_a_controller_that_was_superseded_is_refused_by_the_log() -> None:
    async with node_cluster(**OBJECT) as cluster:
        await cluster.nodes[1].replication_control.create("t", 3)
        old = await crash(cluster, cluster.nodes[1].state.controller.node_id)
        await cluster.until(is_led(cluster, "t"))
        (node, *_) = cluster.nodes.values()
        late = AssignStreams(
            node_id=node.node_id, stream_ids=(0, 1, 2), term=old.state.controller.term
        )
        with pytest.raises(Exception, match="term"):
            await node.engine.metadata.commit([late])
