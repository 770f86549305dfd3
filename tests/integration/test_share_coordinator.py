"""States of share-partitions over several nodes: found, stored, fenced, moved and recovered."""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.cluster.replication_control import InternalTopic
from lakehead.broker.coordinator.shards import partition_of
from lakehead.broker.partition.partition import SHARE_STATES_TOPIC
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.messages import entity
from lakehead.broker.share.persister import Persister
from lakehead.broker.share.record_state import RecordState, ShareState, StateBatch
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.metadata.records import AssignStreams
from tests.support.node_cluster import LIMIT_S, NodeCluster, node_cluster

ACKED = StateBatch(3, 9, RecordState.ACKNOWLEDGED, 1)
FREE = StateBatch(10, 12, RecordState.AVAILABLE, 2)


def persister(cluster: NodeCluster, node_id: int, timeout_s: float = LIMIT_S) -> Persister:
    node = cluster.nodes[node_id]
    topic = InternalTopic(node.replication_control, node.topics, SHARE_STATES_TOPIC)
    return Persister(
        node.inter_broker_client, topic, node.metadata_cache, node.scope, timeout_s=timeout_s
    )


async def keys(cluster: NodeCluster, partitions: int) -> list[SharePartitionKey]:
    topic = await cluster.nodes[1].replication_control.create("orders", partitions)
    await cluster.until(cluster.is_even)
    return [SharePartitionKey("team", topic.id_bytes, index) for index in range(partitions)]


def leaders(cluster: NodeCluster, where: list[SharePartitionKey]) -> list[int]:
    served = cluster.leaders(SHARE_STATES_TOPIC)
    return [served[partition_of(key.text, len(served))] for key in where]


async def refusal(call: object) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        await call  # type: ignore[misc]
    return caught.value.code


async def test_states_are_stored_on_every_node_and_fence_older_leaders() -> None:
    async with node_cluster(3) as cluster, asyncio.timeout(LIMIT_S):
        found = await keys(cluster, 6)
        mine = persister(cluster, 1)
        assert await refusal(mine.read(found[0], 1)) is ErrorCode.invalid_request
        assert (await mine.summary(found[0])).start_offset == -1
        await asyncio.gather(*(mine.initialize(key, 1, 3) for key in found))
        assert len(set(leaders(cluster, found))) > 1
        for key in found:
            assert await mine.read(key, 4) == ShareState(3, 1, 4)
        state = ShareState(3, 1, 4, 7, (ACKED, FREE))
        await asyncio.gather(*(mine.write(key, state) for key in found))
        other = persister(cluster, 2)
        await cluster.until(cluster.is_even)
        for key in found:
            read = await other.read(key, 5)
            assert (read.start_offset, read.batches) == (3, (ACKED, FREE))
            assert await refusal(mine.write(key, state)) is ErrorCode.fenced_leader_epoch
            assert await refusal(mine.read(key, 4)) is ErrorCode.fenced_leader_epoch
        stale = state._replace(leader_epoch=5, state_epoch=0)
        assert await refusal(other.write(found[0], stale)) is ErrorCode.fenced_state_epoch
        assert await refusal(other.initialize(found[0], 0, 0)) is ErrorCode.fenced_state_epoch
        assert await other.summary(found[0]) == ShareState(3, 1, 5, 7)
        await other.delete(found[0])
        assert (await other.summary(found[0])).start_offset == -1
        unknown = found[0]._replace(partition=6)
        assert await refusal(mine.read(unknown, 1)) is ErrorCode.unknown_topic_or_partition


async def test_writes_in_flight_go_on_while_the_coordinator_moves_and_stops() -> None:
    flags = {"share.coordinator.state.topic.num.partitions": 1}
    async with node_cluster(3, **flags) as cluster, asyncio.timeout(LIMIT_S):
        (key,) = await keys(cluster, 1)
        mine = persister(cluster, 1)
        await mine.initialize(key, 1, 0)
        await mine.read(key, 1)
        metadata = cluster.nodes[1].engine.metadata
        stream = metadata.state.topics[SHARE_STATES_TOPIC].partitions[0]
        stopping: asyncio.Task[None] | None = None
        for offset in range(60):
            if offset in {10, 30}:
                target = 2 if offset == 10 else 3
                await metadata.commit([AssignStreams(node_id=target, stream_ids=(stream,))])
            if offset == 45:
                stopping = asyncio.create_task(cluster.stop(3))
            batch = StateBatch(2 * offset, 2 * offset, RecordState.ACKNOWLEDGED, 1)
            await mine.write(key, ShareState(0, 1, 1, offset, (batch,)))
        assert stopping is not None
        await stopping
        read = await mine.read(key, 2)
        assert [one.first_offset for one in read.batches] == list(range(0, 120, 2))


async def test_states_go_with_their_topic() -> None:
    async with node_cluster(1) as cluster, asyncio.timeout(LIMIT_S):
        (key,) = await keys(cluster, 1)
        mine = persister(cluster, 1)
        await mine.initialize(key, 1, 3)
        node = cluster.nodes[1]
        shards = node.share_coordinator.shards
        assert any(shard.find(key) for shard in shards.loaded())
        await node.replication_control.delete(key.topic_id.hex())
        await cluster.until(lambda: not any(shard.find(key) for shard in shards.loaded()))
        assert await refusal(mine.read(key, 1)) is ErrorCode.unknown_topic_or_partition


async def test_coordinators_of_share_partitions_are_found() -> None:
    async with node_cluster(2) as cluster, asyncio.timeout(LIMIT_S):
        (key,) = await keys(cluster, 1)

        async def find(text: str, version: int = 6) -> tuple[ErrorCode, int]:
            response = await cluster.client(1).ask(
                10,
                version,
                lambda module: entity(
                    module, "FindCoordinatorRequest", key_type=2, coordinator_keys=[text]
                ),
            )
            (found,) = response.coordinators
            return found.error_code, found.node_id

        assert await find(key.text) == (ErrorCode.none, leaders(cluster, [key])[0])
        assert await find("team") == (ErrorCode.invalid_request, -1)
        assert await find(key.text, 5) == (ErrorCode.invalid_request, -1)
