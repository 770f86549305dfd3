"""An idempotent producer that did not hear an answer asks the next leader: one offset each time."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.node import Node
from lakehead.broker.protocol.messages import entity
from lakehead.storage.metadata.records import AssignStreams
from tests.integration.test_cluster_membership import OBJECT, crash
from tests.support.api_client import ApiClient
from tests.support.node_client import Client, close_clients
from tests.support.node_cluster import NodeCluster, node_cluster
from tests.support.wire import Batch

Change = Callable[[NodeCluster, Node], Awaitable[Node]]


def batch(sequence: int, epoch: int = 0) -> bytes:
    return Batch(producer_id=7, producer_epoch=epoch, base_sequence=sequence).encode()


async def produced(node: Node, *sequences: int, epoch: int = 0) -> list[tuple[int, int]]:
    """Send batches one behind the other; return the error and the offset of each."""
    client = await Client.connect(node)
    for sequence in sequences:
        client.produce(batch(sequence, epoch))
    return [await client.produced() for _ in sequences]


async def leader_of(cluster: NodeCluster) -> Node:
    await cluster.until(lambda: all("t" in n.topics.by_name for n in cluster.nodes.values()))
    await cluster.until(lambda: cluster.leaders("t")[0] >= 0)
    return cluster.nodes[cluster.leaders("t")[0]]


async def move(cluster: NodeCluster, old: Node) -> Node:
    """Have another node lead the partition: it is handed over."""
    target = min(cluster.nodes.keys() - {old.node_id})
    stream_id = old.topics.by_name["t"].stream_ids[0]
    await old.engine.metadata.commit([AssignStreams(node_id=target, stream_ids=(stream_id,))])
    await cluster.until(lambda: cluster.leaders("t") == [target])
    return cluster.nodes[target]


async def die(cluster: NodeCluster, old: Node) -> Node:
    """Have the leader die: another one takes over."""
    await crash(cluster, old.node_id)
    return await leader_of(cluster)


@pytest.mark.parametrize("change", [(move, move), (die,), (move, die)])
async def test_the_next_leader_knows_what_the_last_one_took(change: Sequence[Change]) -> None:
    async with node_cluster(**OBJECT) as cluster:
        await cluster.nodes[1].replication_control.create("t", 1)
        leader = await leader_of(cluster)
        assert await produced(leader, *range(8)) == [(0, n) for n in range(8)]
        await leader.engine.upload_now()
        assert await produced(leader, 8, 9) == [(0, 8), (0, 9)]
        end = 10
        for happens in change:
            leader = await happens(cluster, leader)
            known = [end - 5, end - 1, end - 3, end - 4, end - 2]
            assert await produced(leader, *known) == [(0, offset) for offset in known]
            gap = [(ErrorCode.out_of_order_sequence_number, -1)]
            assert await produced(leader, end + 1) == gap
            again = [end, end + 1, end]
            assert await produced(leader, *again) == [(0, offset) for offset in again]
            end += 2
        assert await produced(leader, 0, epoch=1) == [(0, end)]
        assert await produced(leader, end) == [(ErrorCode.invalid_producer_epoch, -1)]
        await close_clients()


async def delete_all_records(node: Node) -> None:
    """Ask for what Kafka's DeleteRecords does with an offset of -1."""
    client = ApiClient(node)

    def build(module: Any) -> Any:
        partition = entity(module, "DeleteRecordsPartition", partition_index=0, offset=-1)
        topic = entity(module, "DeleteRecordsTopic", name="t", partitions=(partition,))
        return entity(module, "DeleteRecordsRequest", topics=(topic,), timeout=9000)

    answer = await client.ask(21, 2, build)
    assert answer.topics[0].partitions[0].error_code is ErrorCode.none


@pytest.mark.parametrize(
    ("wal", "change"),
    [
        ("memory:?size=64MiB", (move, move)),
        ("object:", (move,)),
        ("object:", (die,)),
        ("object:", (move, die)),
        ("object:", (die, die)),
    ],
)
async def test_producers_are_known_though_their_records_were_all_deleted(
    wal: str, change: Sequence[Change]
) -> None:
    """As in Kafka: they expire (`producer.id.expiration.ms`), and do not go with what they sent."""
    async with node_cluster(wal=wal) as cluster:
        await cluster.nodes[1].replication_control.create("t", 1)
        leader = await leader_of(cluster)
        assert await produced(leader, *range(8)) == [(0, n) for n in range(8)]
        for happens in change:
            await delete_all_records(leader)
            leader = await happens(cluster, leader)
            partition = leader.topics.by_name["t"].partitions[0]
            assert partition is not None
            assert partition.stream.start_offset == partition.high_watermark == 8
            assert await produced(leader, 7, 3) == [(0, 7), (0, 3)]
            assert await produced(leader, 9) == [(ErrorCode.out_of_order_sequence_number, -1)]
        assert await produced(leader, 8) == [(0, 8)]
        await close_clients()
