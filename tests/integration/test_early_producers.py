"""Producers that are sent on are at the new leader before the partition is: it makes them wait, for
a moment, and nobody else for long.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.cluster.replica_manager import DELAY_S, DelayedRequests
from lakehead.storage.metadata.entry import PREFIX, entry_key
from lakehead.storage.metadata.records import AssignStreams
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.object_store.protocol import Buffer
from tests.support.node_client import LIMIT_S, Client, close_clients
from tests.support.node_cluster import NodeCluster
from tests.support.wire import Batch

OLD, NEW = 1, 2
NONE, REFUSED = int(ErrorCode.none), int(ErrorCode.not_leader_or_follower)


class HeldStore(MemoryStore):
    """Metadata entries after `last` wait while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.last = ""
        self.gate = asyncio.Event()

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        if self.last and key.startswith(PREFIX) and key > self.last:
            await self.gate.wait()
        await super().create(key, pieces)


class Move:
    """Partition 0 of topic `t` is on its way, and stays so until `finish`; 1 is at the new leader
    already. Both have one record.
    """

    def __init__(self, cluster: NodeCluster, store: HeldStore, client: Client) -> None:
        self.cluster = cluster
        self.client = client
        self._store = store

    async def begin(self) -> None:
        metadata = self.cluster.nodes[OLD].engine.metadata
        await self.cluster.until(self.cluster.is_even)
        self._store.last = entry_key(metadata.state.next_entry)
        stream_id = metadata.state.topics["t"].partitions[0]
        await metadata.commit([AssignStreams(node_id=NEW, stream_ids=(stream_id,))])
        await self.cluster.until(self.cluster.is_even)
        await self.cluster.until(lambda: self.cluster.leaders("t")[0] == -1)

    @property
    def arrivals(self) -> DelayedRequests:
        return self.cluster.nodes[NEW].replica_manager.delayed

    def finish(self) -> None:
        self._store.gate.set()


@pytest.fixture
async def move() -> AsyncIterator[Move]:
    store = HeldStore()
    async with _cluster(store) as cluster:
        await cluster.nodes[OLD].replication_control.create("t", 2, replicas=[(OLD,), (NEW,)])
        client = await Client.connect(cluster.nodes[NEW])
        client.produce(batch(), partition=1)
        assert await client.produced() == (NONE, 0)
        one = Move(cluster, store, client)
        await one.begin()
        yield one
        one.finish()
        await close_clients()


@asynccontextmanager
async def _cluster(store: MemoryStore) -> AsyncIterator[NodeCluster]:
    cluster = NodeCluster(store)
    try:
        for node_id in (OLD, NEW):
            await cluster.start(node_id)
        await cluster.until(cluster.is_whole)
        yield cluster
    finally:
        for node_id in list(cluster.nodes):
            await cluster.stop(node_id)


def batch(value: bytes = b"v") -> bytes:
    return Batch(values=(value,)).encode()


async def test_who_is_there_before_the_partition_is_answered_when_it_has_come(move: Move) -> None:
    client = move.client
    move.arrivals.wait_s = LIMIT_S
    for partition in (0, 0, 1):
        client.produce(batch(), partition=partition)
    other = await Client.connect(move.cluster.nodes[NEW])
    other.produce(batch(), partition=1)
    assert await other.produced() == (NONE, 1), "another connection does not wait"
    move.finish()
    assert await client.produced() == (NONE, 0)
    assert await client.produced() == (NONE, 1), "in order"
    assert await client.produced() == (NONE, 2)
    assert move.cluster.leaders("t") == [NEW, NEW]


async def test_a_partition_that_does_not_come_holds_nobody_up_for_long(move: Move) -> None:
    client, loop = move.client, asyncio.get_running_loop()
    began = loop.time()
    client.produce(batch())
    assert await client.produced() == (REFUSED, -1)
    assert loop.time() - began > DELAY_S * 0.9
    began = loop.time()
    for _ in range(5):
        client.produce(batch())
        client.produce(batch(), partition=1)
    for offset in range(5):
        assert await client.produced() == (REFUSED, -1)
        assert await client.produced() == (NONE, 1 + offset)
    assert loop.time() - began < DELAY_S, "its time is over: who asks again is not held up"


async def test_who_hangs_up_while_waiting_has_sent_nothing(move: Move) -> None:
    move.arrivals.wait_s = LIMIT_S
    gone = await Client.connect(move.cluster.nodes[NEW])
    gone.produce(batch(b"never promised"))
    move.client.produce(batch(b"kept"))
    await move.cluster.until(lambda: move.arrivals.waiting == 2)
    gone.writer.close()
    await gone.writer.wait_closed()
    await move.cluster.until(lambda: move.arrivals.waiting == 1)
    move.finish()
    assert await move.client.produced() == (NONE, 0)
