"""Several nodes in this process on one store in memory, asked past the network."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from lakehead.broker.node import Node, start_node
from lakehead.broker.setting_sources import load
from lakehead.storage.object_store import MemoryStore
from tests.support.api_client import ApiClient

LIMIT_S = 60.0
FLAGS: dict[str, object] = {
    "port": 0,
    "wal": "memory:?size=64MiB",
    "store": "memory:",
    "metadata.poll.ms": 10,
    "offsets.topic.num.partitions": 3,
    "num.partitions": 3,
    "auto.leader.rebalance.enable": False,
    "broker.heartbeat.interval.ms": 200,
    "group.initial.rebalance.delay.ms": 0,
}


class NodeCluster:
    """Nodes 1 to n, by id."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.nodes: dict[int, Node] = {}
        self._lives = 0

    def client(self, node_id: int) -> ApiClient:
        return ApiClient(self.nodes[node_id])

    async def start(self, node_id: int, **flags: object) -> Node:
        given = {name.replace("_", "."): value for name, value in flags.items()}
        settings = load({**FLAGS, "node.id": node_id, **given})
        self._lives += 1  # no two lives draw the same ids
        node = await start_node(settings, rng=random.Random(self._lives), store=self.store)
        self.nodes[node_id] = node
        return node

    async def stop(self, node_id: int) -> None:
        """Stop a node cleanly."""
        await self.nodes.pop(node_id).close()

    def is_whole(self) -> bool:
        """Return true if every node knows that all of them serve, and one is the controller."""
        return all(
            node.lifecycle.ready() >= self.nodes.keys()
            and node.state.controller.node_id in self.nodes
            for node in self.nodes.values()
        )

    def is_even(self) -> bool:
        """Return true if every node has read the same metadata."""
        return len({node.state.next_entry for node in self.nodes.values()}) == 1

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so on the nodes; they look at the metadata often."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.005)

    async def until_led(self, topic: str, nodes: list[int]) -> None:
        """Wait until each partition of a topic is served by its node of the list."""
        await self.until(lambda: self.leaders(topic) == nodes)

    def leaders(self, topic: str) -> list[int]:
        """The nodes that serve each partition of a topic; -1: none. Never are there two."""
        count = max(len(node.topics.by_name[topic].partitions) for node in self.nodes.values())
        found = []
        for index in range(count):
            here = [
                node_id
                for node_id, node in self.nodes.items()
                if (partition := node.topics.partition(topic, index)) and partition.stream.is_open
            ]
            assert len(here) <= 1, f"{topic}-{index} is served by nodes {here}"
            found.append(here[0] if here else -1)
        return found


@asynccontextmanager
async def node_cluster(count: int = 3, **flags: object) -> AsyncIterator[NodeCluster]:
    """Start nodes 1 to `count`; all are closed at the end."""
    cluster = NodeCluster(MemoryStore())
    try:
        for node_id in range(1, count + 1):
            await cluster.start(node_id, **flags)
        await cluster.until(cluster.is_whole)
        yield cluster
    finally:
        async with asyncio.timeout(LIMIT_S):
            for node_id in list(cluster.nodes):
                await cluster.stop(node_id)
