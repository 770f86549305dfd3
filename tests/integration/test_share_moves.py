"""Share groups while partitions and share coordinators move, and a node dies: each record is
accepted in the end, one whose acceptance was confirmed is never delivered again, and no record is
delivered more often than its limit allows.
"""

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.partition.partition import SHARE_STATES_TOPIC
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.metadata.records import AssignStreams
from tests.support.node_client import Client, close_clients
from tests.support.node_cluster import LIMIT_S, NodeCluster, node_cluster
from tests.support.share_member import ACCEPT, RELEASE, ShareMember, parts, share
from tests.support.wire import Batch

COUNT = 800
NONE = ErrorCode.none
GONE = {
    ErrorCode.not_leader_or_follower,
    ErrorCode.share_session_not_found,
    ErrorCode.invalid_share_session_epoch,
    ErrorCode.coordinator_not_available,
    ErrorCode.unknown_topic_or_partition,
}
"""Codes at which a member goes to the leader again."""


@dataclass
class Ledger:
    """What members saw."""

    accepted: set[int] = field(default_factory=set)
    """Offsets that a member accepted, also where the response was an error or did not come: the
    acceptance may be stored then, and the record is not delivered again.
    """
    confirmed: set[int] = field(default_factory=set)
    """Offsets whose acceptance had a response."""
    end: int | None = None
    """The end of the log, once all records are there."""
    deliveries: Counter[int] = field(default_factory=Counter)

    def delivered(self, offset: int, count: int) -> None:
        assert offset not in self.confirmed, f"{offset} was delivered after it was accepted"
        assert count <= 10
        self.deliveries[offset] += 1


class Worker:
    """A member that goes where the partition is."""

    def __init__(self, name: str, cluster: NodeCluster, ledger: Ledger, rng: random.Random) -> None:
        self.name = name
        self.cluster = cluster
        self.ledger = ledger
        self.rng = rng

    @property
    def is_done(self) -> bool:
        """Return true once the leader counts every record as accepted."""
        if self.ledger.end is None:
            return False
        node = self.cluster.nodes.get(self.cluster.leaders("t")[0])
        if node is None:
            return False
        key = SharePartitionKey("team", node.topics.by_name["t"].id_bytes, 0)
        led = node.share_partitions.find(key)
        return led is not None and led.machine.start_offset == self.ledger.end

    async def run(self) -> None:
        while not self.is_done:
            leader = self.cluster.leaders("t")[0]
            if leader in self.cluster.nodes:
                try:
                    await self.work(leader)
                except (OSError, asyncio.IncompleteReadError):
                    pass
            await asyncio.sleep(0.01)

    async def work(self, leader: int) -> None:
        """Take records from one leader, until it is that no more."""
        node = self.cluster.nodes[leader]
        member = await ShareMember.connect(node, self.name)
        while not self.is_done:
            member.send_fetch([0] if member.epoch == 0 else [], wait_ms=200, max_records=20)
            response = await member.receive_fetch()
            if response.error_code is not NONE:
                assert response.error_code in GONE, response.error_code
                return
            for partition in parts(response):
                if partition.error_code is not NONE:
                    assert partition.error_code in GONE, partition.error_code
                    member.client.writer.close()
                    return
                for one in partition.acquired_records:
                    await self.settle(member, one.first_offset, one.last_offset, one.delivery_count)

    async def settle(self, member: ShareMember, first: int, last: int, count: int) -> None:
        """Accept most of what was delivered, and release the rest."""
        types = [ACCEPT if self.rng.random() < 0.8 else RELEASE for _ in range(first, last + 1)]
        for offset in range(first, last + 1):
            self.ledger.delivered(offset, count)
        offsets = range(first, last + 1)
        accepted = {offset for offset, kind in zip(offsets, types, strict=True) if kind == ACCEPT}
        self.ledger.accepted |= accepted
        if await member.code({0: [(first, last, types)]}) is NONE:
            self.ledger.confirmed |= accepted


async def move(cluster: NodeCluster, topic: str, node_id: int) -> None:
    metadata = cluster.nodes[1].engine.metadata
    stream = metadata.state.topics[topic].partitions[0]
    await metadata.commit([AssignStreams(node_id=node_id, stream_ids=(stream,))])
    await cluster.until(lambda: cluster.leaders(topic)[0] == node_id)


async def produce(cluster: NodeCluster, ledger: Ledger) -> None:
    """Produce records, wherever the partition is led; a batch without a response may be there."""
    left, end = COUNT, 0
    while left:
        leader = cluster.leaders("t")[0]
        if leader in cluster.nodes:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                client = await Client.connect(cluster.nodes[leader])
                client.produce(Batch(values=(b"v",) * 10).encode())
                code, offset = await client.produced()
                if code == 0:
                    left, end = left - 10, offset + 10
                client.writer.close()
        await asyncio.sleep(0.02)
    ledger.end = end


@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_is_lost_or_accepted_twice_while_leaders_move(seed: int) -> None:
    rng = random.Random(seed)
    flags = {
        "share.coordinator.state.topic.num.partitions": 1,
        "share.coordinator.snapshot.update.records.per.snapshot": 5,
        "group.share.delivery.count.limit": 10,
    }
    async with node_cluster(3, **flags) as cluster, asyncio.timeout(LIMIT_S):
        await cluster.nodes[1].replication_control.create("t", 1)
        await cluster.until(cluster.is_even)
        node = cluster.nodes[1]
        await node.share_coordinator.partition_for("team:x:0")
        key_owner = cluster.leaders(SHARE_STATES_TOPIC)[0]
        await cluster.until(cluster.is_even)
        await share(cluster.nodes[key_owner])
        ledger = Ledger()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(produce(cluster, ledger))
                for name in "abc":
                    tasks.create_task(Worker(name, cluster, ledger, rng).run())
                for round_number in range(6):
                    await asyncio.sleep(0.2)
                    topic = SHARE_STATES_TOPIC if round_number % 2 else "t"
                    await move(cluster, topic, rng.choice([1, 2, 3]))
                await cluster.stop(3)
        finally:
            await close_clients()
        assert ledger.end is not None
        assert ledger.accepted == set(range(ledger.end))
        assert len(ledger.confirmed) > COUNT // 2
        assert sum(ledger.deliveries.values()) >= COUNT
