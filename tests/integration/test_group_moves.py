"""A group of consumers goes on while its coordinator moves about, and its partitions.

Commits are made one by one: librdkafka's automatic ones overtake each other when they are tried
again.
"""

import asyncio
import threading

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.record_formats import CommittedOffset
from lakehead.broker.coordinator.shards import partition_of
from lakehead.broker.protocol.errors import KafkaError as Refusal
from lakehead.storage.metadata.records import AssignStreams
from tests.support.node_cluster import LIMIT_S, NodeCluster, node_cluster

GROUP, PARTITIONS, MOVES = "team", 3, 8
ROUND, COMMITTED_AT_ONCE, COMMIT_TRIES = 20, 10, 20
OFFSETS = "__consumer_offsets"


class Member:
    """One member of the group, on a thread of its own."""

    def __init__(self, bootstrap: str, protocol: str) -> None:
        self.values: list[bytes] = []
        self.errors: list[str] = []
        self.rebalances = 0
        self.retries = 0
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "retry.backoff.ms": 50,
            }
        )
        self._consumer.subscribe(["t"], on_assign=self._assigned)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _assigned(self, *_: object) -> None:
        self.rebalances += 1

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.05)
            if message is None:
                continue
            if message.error() is not None:
                self.errors.append(str(message.error()))
            else:
                self.values.append(message.value() or b"")
                if len(self.values) % COMMITTED_AT_ONCE == 0:
                    self._commit()
        self._consumer.close()

    def _commit(self) -> None:
        """Commit what was read, again and again until the coordinator has it: while it moves, the
        client finds it only after a while.
        """
        for _ in range(COMMIT_TRIES):
            try:
                self._consumer.commit(asynchronous=False)
                return
            except KafkaException:
                self.retries += 1
        self.errors.append("a commit never succeeded")

    async def close(self) -> None:
        """Leave the group; what was read is committed."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_group_goes_on_while_its_coordinator_moves(protocol: str) -> None:
    """No member is thrown out, nothing is read twice, and whoever comes later begins at the end."""
    async with node_cluster() as cluster:
        await cluster.nodes[1].replication_control.create("t", PARTITIONS)
        await cluster.nodes[1].groups.partition_for(GROUP)
        bootstrap = f"127.0.0.1:{cluster.nodes[1].advertised_port}"
        member = Member(bootstrap, protocol)
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        sent: list[bytes] = []
        try:
            await cluster.until(lambda: member.rebalances > 0)
            for round_number in range(MOVES):
                await move(cluster, round_number)
                for _ in range(ROUND):
                    sent.append(str(len(sent)).encode())
                    producer.produce("t", sent[-1], partition=len(sent) % PARTITIONS)
                assert await asyncio.to_thread(producer.flush, LIMIT_S) == 0
                await cluster.until(lambda: len(member.values) >= len(sent))
        finally:
            await member.close()
        assert sorted(member.values, key=int) == sent
        assert member.errors == []
        assert member.rebalances == 1
        await later_member_reads_only(b"last", producer, bootstrap, protocol)


async def test_who_stops_to_coordinate_does_not_deny_what_was_committed() -> None:
    """A fetch that waits for a commit is sent on, and not told that there are no offsets."""
    async with node_cluster(1) as cluster:
        groups = cluster.nodes[1].groups
        await groups.partition_for(GROUP)
        await groups.loaded(GROUP)
        committing = groups.commit(GROUP, {("t", 0): CommittedOffset(offset=5)})
        fetching = asyncio.create_task(groups.offsets(GROUP))
        await asyncio.sleep(0)
        groups.shards.close()
        await committing
        with pytest.raises(Refusal) as refused:
            await fetching
        assert refused.value.code is ErrorCode.not_coordinator


async def move(cluster: NodeCluster, round_number: int) -> None:
    """Move the group's coordinator, and every second time the topic's partitions too."""
    state = cluster.nodes[1].state
    streams = [state.topics[OFFSETS].partitions[partition_of(GROUP, PARTITIONS)]]
    if round_number % 2:
        streams += state.topics["t"].partitions
    target = round_number % 3 + 1
    await cluster.nodes[1].engine.metadata.commit(
        [AssignStreams(node_id=target, stream_ids=tuple(streams))]
    )


async def later_member_reads_only(
    value: bytes, producer: Producer, bootstrap: str, protocol: str
) -> None:
    later = Member(bootstrap, protocol)
    try:
        producer.produce("t", value, partition=0)
        assert await asyncio.to_thread(producer.flush, LIMIT_S) == 0
        async with asyncio.timeout(LIMIT_S):
            while not later.values:  # noqa: ASYNC110 - a thread of a client tells nobody
                await asyncio.sleep(0.01)
    finally:
        await later.close()
    assert later.values == [value]
