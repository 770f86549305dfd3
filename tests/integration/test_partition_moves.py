"""Leadership moves between nodes: what clients are told, and what they keep."""

import asyncio
import random
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.record_formats import CommittedOffset
from lakehead.broker.coordinator.shards import partition_of
from lakehead.broker.protocol.errors import KafkaError as Refusal
from lakehead.broker.protocol.messages import entity
from lakehead.storage.errors import LakeheadError
from lakehead.storage.metadata.records import AssignStreams, DrainNode
from tests.support.node_client import Client, close_clients
from tests.support.node_cluster import LIMIT_S, NodeCluster, node_cluster
from tests.support.wire import Batch

NONE = ErrorCode.none
ELECT, REASSIGN, METADATA = 43, 45, 3


Moves = dict[int, tuple[int, ...] | None]


async def reassign(cluster: NodeCluster, moves: Moves, asked: int = 1) -> list[ErrorCode]:
    """Ask a node to move partitions of topic `t`; the code for each."""

    def build(module: Any) -> Any:
        partitions = [
            entity(module, "ReassignablePartition", partition_index=index, replicas=replicas)
            for index, replicas in moves.items()
        ]
        topic = entity(module, "ReassignableTopic", name="t", partitions=partitions)
        return entity(module, "AlterPartitionReassignmentsRequest", topics=[topic])

    answer = await cluster.client(asked).ask(REASSIGN, 1, build)
    assert answer.error_code is NONE
    return [partition.error_code for partition in answer.responses[0].partitions]


async def elect(cluster: NodeCluster, *indexes: int) -> dict[int, ErrorCode]:
    def build(module: Any) -> Any:
        asked = [entity(module, "TopicPartitions", topic="t", partitions=tuple(indexes))]
        return entity(
            module,
            "ElectLeadersRequest",
            election_type=0,
            topic_partitions=asked if indexes else None,
            timeout=9000,
        )

    answer = await cluster.client(3).ask(ELECT, 2, build)
    assert answer.error_code is NONE
    return {
        result.partition_id: result.error_code
        for topic in answer.replica_election_results
        for result in topic.partition_result
    }


async def described(cluster: NodeCluster, node_id: int) -> Any:
    """What a node answers to a Metadata request for topic `t`."""

    def build(module: Any) -> Any:
        topic = entity(module, "MetadataRequestTopic", name="t", topic_id=None)
        return entity(
            module,
            "MetadataRequest",
            topics=[topic],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )

    return await cluster.client(node_id).ask(METADATA, 10, build)


async def test_topics_spread_and_every_node_says_the_same() -> None:
    async with node_cluster() as cluster:
        await cluster.nodes[1].replication_control.create("t", 6)
        assert sorted(cluster.leaders("t")) == [1, 1, 2, 2, 3, 3]
        await cluster.until(cluster.is_even)
        answers = [await described(cluster, node_id) for node_id in (1, 2, 3)]
        for answer in answers:
            assert {broker.node_id for broker in answer.brokers} == {1, 2, 3}
            leaders = [partition.leader_id for partition in answer.topics[0].partitions]
            assert leaders == cluster.leaders("t")
            assert all(p.replica_nodes == (p.leader_id,) for p in answer.topics[0].partitions)
        await cluster.nodes[2].replication_control.add_partitions("t", 9)
        assert sorted(cluster.leaders("t")) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
        await cluster.nodes[3].replication_control.delete(
            cluster.nodes[3].topics.by_name["t"].topic_id
        )
        await cluster.until(lambda: not any(n.topics.by_name for n in cluster.nodes.values()))
        assert not any(node.replica_manager.held for node in cluster.nodes.values())


async def test_partitions_added_meanwhile_leave_an_assignment_without_its_places() -> None:
    """It was of three partitions when the request came, and is of one when its turn has come."""
    async with node_cluster(1) as cluster:
        control = cluster.nodes[1].replication_control
        await control.create("t", 1)
        outcomes = await asyncio.gather(
            control.add_partitions("t", 3),
            control.add_partitions("t", 4, [(1,), (1,), (1,)]),
            return_exceptions=True,
        )
        assert outcomes[0] is None
        assert isinstance(outcomes[1], Refusal)
        assert outcomes[1].code is ErrorCode.invalid_replica_assignment
        assert len(cluster.leaders("t")) == 3


async def test_partitions_move_and_back_and_only_where_they_can() -> None:
    async with node_cluster() as cluster:
        await cluster.nodes[1].replication_control.create("t", 3, replicas=[(1,), (2,), (3,)])
        assert cluster.leaders("t") == [1, 2, 3]
        refused = await reassign(cluster, {0: (9,), 1: (), 2: (1, 1), 7: (1,)})
        assert refused == [
            *[ErrorCode.invalid_replica_assignment] * 3,
            ErrorCode.unknown_topic_or_partition,
        ]
        assert await reassign(cluster, {0: None}) == [ErrorCode.no_reassignment_in_progress]
        assert await reassign(cluster, {0: (2, 3), 1: (3,), 2: (1,)}, asked=3) == [NONE] * 3
        await cluster.until(lambda: cluster.leaders("t") == [2, 3, 1])
        await cluster.until(cluster.is_even)
        partitions = (await described(cluster, 2)).topics[0].partitions
        assert [p.replica_nodes for p in partitions] == [(2,), (3,), (1,)]
        assert [p.leader_epoch for p in partitions] == [1, 1, 1]
        assert cluster.nodes[1].engine.hand_overs.stats.streams == 1


async def test_who_asks_the_wrong_node_is_told_where_to_go() -> None:
    """KIP-951: with the answer, without asking for metadata first."""
    async with node_cluster(broker_rack="here") as cluster:
        await cluster.nodes[1].replication_control.create("t", 1, replicas=[(2,)])
        await cluster.until(cluster.is_even)
        client = await Client.connect(cluster.nodes[1])
        try:
            client.produce(Batch(values=(b"v",)).encode())
            produced = await client.receive()
            client.fetch({0: 0}, version=16, topic_id=cluster.nodes[1].topics.by_name["t"].uuid)
            fetched = await client.receive()
        finally:
            await close_clients()
        results = (
            (produced, produced.responses[0].partition_responses[0]),
            (fetched, fetched.responses[0].partitions[0]),
        )
        for answer, result in results:
            assert result.error_code == ErrorCode.not_leader_or_follower
            leader = result.current_leader
            assert (leader.leader_id, leader.leader_epoch) == (2, 0)
            (there,) = answer.node_endpoints
            port = cluster.nodes[2].advertised_port
            assert (there.node_id, there.port, there.rack) == (2, port, "here")


async def test_preferred_leaders_are_elected_again() -> None:
    async with node_cluster() as cluster:
        await cluster.nodes[1].replication_control.create("t", 3, replicas=[(1,), (2,), (2,)])
        await cluster.stop(2)
        await cluster.until(lambda: all(leader in {1, 3} for leader in cluster.leaders("t")))
        await cluster.until(lambda: cluster.nodes[3].state.nodes[2].is_fenced)
        await cluster.until(cluster.is_even)
        partition = (await described(cluster, 3)).topics[0].partitions[1]
        assert partition.replica_nodes[0] == 2
        assert partition.isr_nodes == (partition.leader_id,)
        assert partition.offline_replicas == (2,)
        assert await elect(cluster, 0, 1) == {
            0: ErrorCode.election_not_needed,
            1: ErrorCode.preferred_leader_not_available,
        }
        await cluster.start(2)
        await cluster.until(cluster.is_whole)
        assert await elect(cluster) == {1: NONE, 2: NONE}
        assert cluster.leaders("t") == [1, 2, 2]
        assert await elect(cluster) == {}


async def test_a_draining_node_is_given_nothing() -> None:
    async with node_cluster() as cluster:
        first = cluster.nodes[1]
        await first.replication_control.create("t", 3, replicas=[(1,), (2,), (3,)])
        drain = DrainNode(node_id=2, epoch=first.state.nodes[2].epoch, is_draining=True)
        await first.engine.metadata.commit([drain])
        assert await reassign(cluster, {0: (2,)}) == [ErrorCode.invalid_replica_assignment]
        assert await reassign(cluster, {0: (2, 3), 1: (1,)}) == [NONE, NONE]
        await cluster.until(lambda: not cluster.nodes[2].replica_manager.held)
        await first.replication_control.add_partitions("t", 9)
        assert 2 not in cluster.leaders("t")


async def test_clients_go_on_while_their_partitions_move() -> None:
    """Nothing is lost, doubled or out of order, and no error reaches the application."""
    rng = random.Random(5)
    async with node_cluster() as cluster:
        await cluster.nodes[1].replication_control.create("t", 3)
        moved = asyncio.Event()
        producing = asyncio.create_task(produce_until(cluster, moved))
        for _ in range(12):
            target = {index: (rng.choice((1, 2, 3)),) for index in range(3)}
            assert await reassign(cluster, {**target}, asked=rng.choice((1, 2, 3))) == [NONE] * 3
            wanted = [target[index][0] for index in range(3)]
            await cluster.until_led("t", wanted)
        moved.set()
        sent = await producing
        assert sum(node.engine.hand_overs.stats.streams for node in cluster.nodes.values()) > 10
        read = await asyncio.to_thread(read_all, cluster, sum(sent))
        assert read == [[str(n).encode() for n in range(count)] for count in sent]


async def produce_until(cluster: NodeCluster, stop: asyncio.Event) -> list[int]:
    """Produce numbered records to each partition until told; return how many each was sent."""
    failures: list[KafkaError] = []
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{cluster.nodes[2].advertised_port}",
            "enable.idempotence": True,
            "linger.ms": 0,
        }
    )

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    sent = [0, 0, 0]
    while not stop.is_set():
        for index in range(3):
            value = str(sent[index]).encode()
            producer.produce("t", value, partition=index, on_delivery=delivered)
            sent[index] += 1
        producer.poll(0)
        await asyncio.sleep(0.002)
    assert await asyncio.to_thread(producer.flush, LIMIT_S) == 0
    assert failures == []
    return sent


def read_all(cluster: NodeCluster, count: int) -> list[list[bytes]]:
    """Read `count` records of the topic, from its beginning, by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{cluster.nodes[1].advertised_port}",
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    read: list[list[bytes]] = [[], [], []]
    try:
        consumer.assign([TopicPartition("t", index, 0) for index in range(3)])
        while (missing := count - sum(map(len, read))) > 0:
            messages = consumer.consume(min(missing, 1000), timeout=LIMIT_S)
            assert messages, f"{sum(map(len, read))} of {count} records were read"
            for message in messages:
                assert message.error() is None
                read[message.partition() or 0].append(message.value() or b"")
    finally:
        consumer.close()
    return read


async def test_no_commit_is_lost_when_the_coordinator_moves() -> None:
    async with node_cluster() as cluster:
        await cluster.nodes[1].replication_control.create("t", 1)
        await cluster.nodes[1].groups.partition_for("team")
        index = partition_of("team", 3)
        acknowledged = -1
        for round_number in range(20):
            led = cluster.leaders("__consumer_offsets")
            old = led[index]
            new = led[index] = old % 3 + 1
            commits = [
                asyncio.create_task(commit(cluster, 100 * round_number + n)) for n in range(5)
            ]
            stream_id = cluster.nodes[old].state.topics["__consumer_offsets"].partitions[index]
            await move_stream(cluster, stream_id, new)
            acknowledged = max([acknowledged, *await asyncio.gather(*commits)])
            await cluster.until_led("__consumer_offsets", led)
            with pytest.raises(Refusal) as refused:
                await cluster.nodes[old].groups.offsets("team")
            assert refused.value.code is ErrorCode.not_coordinator
            known = await cluster.nodes[new].groups.offsets("team")
            assert known["t", 0].offset >= acknowledged
        assert acknowledged >= 0


async def commit(cluster: NodeCluster, offset: int) -> int:
    """Commit at the coordinator that is known now; return the offset, -1 when it was refused."""
    index = partition_of("team", 3)
    leader = cluster.leaders("__consumer_offsets")[index]
    if leader < 0:
        return -1
    groups = cluster.nodes[leader].groups
    try:
        await groups.commit("team", {("t", 0): CommittedOffset(offset=offset)})
    except Refusal as refused:
        if refused.code in {ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress}:
            return -1
        raise
    return offset


async def move_stream(cluster: NodeCluster, stream_id: int, node_id: int) -> None:
    record = AssignStreams(node_id=node_id, stream_ids=(stream_id,))
    await cluster.nodes[1].engine.metadata.commit([record])


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_is_asked_everything_is_led_once(seed: int) -> None:
    """Topics come, grow and go, leadership moves, nodes stop and start, all at random and at once;
    at the end every partition is served by the node it is assigned to.
    """
    rng = random.Random(seed)
    async with node_cluster() as cluster:

        async def worker(number: int) -> None:
            for _ in range(40):
                await one_change(cluster, f"{number}-{rng.randrange(3)}", rng)

        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(worker(number))
            group.create_task(restart_nodes(cluster, rng))
        await cluster.until(cluster.is_whole)
        await cluster.until(cluster.is_even)
        state = cluster.nodes[1].state
        for name, topic in state.topics.items():
            assigned = [state.streams[stream_id].assigned for stream_id in topic.partitions]
            await cluster.until_led(name, assigned)


async def one_change(cluster: NodeCluster, name: str, rng: random.Random) -> None:
    """Create, move, extend or delete a topic, through any node that takes requests."""
    node = cluster.nodes[rng.choice(sorted(cluster.nodes))]
    topic = node.state.topics.get(name)
    try:
        if topic is None:
            await node.replication_control.create(name, rng.randint(1, 4))
        elif (choice := rng.random()) < 0.2:
            await node.replication_control.delete(topic.topic_id)
        elif choice < 0.4:
            await node.replication_control.add_partitions(name, len(topic.partitions) + 1)
        else:
            target = rng.choice(sorted(cluster.nodes))
            move = AssignStreams(node_id=target, stream_ids=topic.partitions, is_preferred=True)
            await node.engine.metadata.commit([move])
    except LakeheadError:
        pass  # another came first, or the node stopped


async def restart_nodes(cluster: NodeCluster, rng: random.Random) -> None:
    for _ in range(3):
        node_id = rng.choice((2, 3))
        await cluster.stop(node_id)
        await cluster.start(node_id)
        await cluster.until(cluster.is_whole)
