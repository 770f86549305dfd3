"""Compaction beside several nodes: who leads a partition reads it as it is now, and whoever leads
it next knows its producers.
"""

import random

from lakehead.broker.maintenance.maintainer import Maintainer, MaintenanceStatistics
from lakehead.broker.node import Node
from lakehead.broker.partition.partition import Partition
from lakehead.broker.settings import Settings
from lakehead.storage.clock import SystemClock
from lakehead.storage.format.record_batch import read_header
from lakehead.storage.format.records import KafkaRecord, iter_kafka_records
from lakehead.storage.metadata.log import MetadataLog
from tests.support.node_cluster import NodeCluster, node_cluster
from tests.support.record_batches import TestRecord, encode_record, seal_batch

TOPIC = "t"
T0 = 1_700_000_000_000


def batch(*keys: bytes, producer_id: int, sequence: int) -> bytearray:
    records = [TestRecord(offset=n, timestamp=T0, key=key) for n, key in enumerate(keys)]
    return bytearray(
        seal_batch(
            b"".join(encode_record(record, 0, T0) for record in records),
            base_offset=0,
            last_offset_delta=len(keys) - 1,
            record_count=len(keys),
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )
    )


def partition_of(node: Node, index: int) -> Partition:
    found = node.topics.partition(TOPIC, index)
    assert found is not None
    return found


async def append(node: Node, index: int, data: bytearray) -> int:
    partition = partition_of(node, index)
    plan = partition.plan(memoryview(data), read_header(data))
    if plan.known_offset >= 0:
        return plan.known_offset
    offset = partition.perform(plan, None)
    await node.engine.wait_durable()
    return offset


async def read(partition: Partition) -> list[KafkaRecord]:
    found: list[KafkaRecord] = []
    at = partition.log_start_offset
    while at < partition.high_watermark:
        for one in await partition.stream.fetch(at, 1000):
            at = read_header(one).end_offset
            found += iter_kafka_records(one)
    return found


async def maintain(cluster: NodeCluster) -> MaintenanceStatistics:
    """What `lakehead maintain` does."""
    rng, clock = random.Random(4), SystemClock()
    log = await MetadataLog.open(cluster.store, writer_id="maintenance", clock=clock, rng=rng)
    maintainer = Maintainer(cluster.store, log, clock, rng, Settings(log_retention_ms=-1))
    await maintainer.turn()
    await cluster.until(
        lambda: all(n.state.next_entry >= log.state.next_entry for n in cluster.nodes.values())
    )
    return maintainer.figures


async def filled(cluster: NodeCluster) -> list[int]:
    """Make the topic, with two objects in each partition; return who leads which."""
    node = cluster.nodes[1]
    await node.replication_control.create(
        TOPIC, 3, {"cleanup.policy": "compact"}, [(1,), (2,), (3,)]
    )
    await cluster.until_led(TOPIC, [1, 2, 3])
    for index in range(3):
        leader = cluster.nodes[index + 1]
        for sequence in (0, 3):
            await append(leader, index, batch(b"a", b"b", b"a", producer_id=9, sequence=sequence))
            await leader.engine.upload_now()
    return cluster.leaders(TOPIC)


async def test_every_leader_reads_what_compaction_left() -> None:
    async with node_cluster() as cluster:
        for index, leader in enumerate(await filled(cluster)):
            partition = partition_of(cluster.nodes[leader], index)
            assert partition.stream.fetch_cached(0, 1) is not None
        assert (await maintain(cluster)).labelled()["compacted partitions"] == 3
        for index, leader in enumerate(cluster.leaders(TOPIC)):
            partition = partition_of(cluster.nodes[leader], index)
            assert partition.stream.fetch_cached(0, 1) is None
            assert [(r.offset, r.key) for r in await read(partition)] == [(4, b"b"), (5, b"a")]
            assert partition.high_watermark == 6


async def test_the_next_leader_knows_the_producers_of_what_was_compacted() -> None:
    async with node_cluster() as cluster:
        await filled(cluster)
        assert (await maintain(cluster)).labelled()["compacted partitions"] == 3
        await cluster.stop(1)
        await cluster.until(lambda: cluster.leaders(TOPIC)[0] in cluster.nodes)
        leader = cluster.nodes[cluster.leaders(TOPIC)[0]]
        assert [r.offset for r in await read(partition_of(leader, 0))] == [4, 5]
        again = batch(b"a", b"b", b"a", producer_id=9, sequence=3)
        assert await append(leader, 0, again) == 3  # it is known, though its records are gone
        assert await append(leader, 0, batch(b"c", producer_id=9, sequence=6)) == 6
