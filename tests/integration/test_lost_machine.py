"""A machine is gone for good, with a block log that nobody else reaches: its partitions wait, until
an operator accepts the loss by an unclean election.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import (
    Consumer,
    ElectionType,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from lakehead.broker.cli.cluster import load_state
from lakehead.storage.metadata.state import MetadataImage
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.traffic import QUICK_RECONNECT
from tests.support.waiting import wait_until

LIMIT_S = 60.0
FLAGS = (
    *HASTY,
    *("--broker.heartbeat.interval.ms", "100", "--broker.session.timeout.ms", "1500"),
    *("--metadata.poll.max.ms", "200", "--auto.leader.rebalance.enable", "false"),
)
HERE, GONE = 0, 1
NOT_NEEDED = KafkaError.ELECTION_NOT_NEEDED


class Machines:
    """Node HERE with its log in the store, and node GONE with one on a disk of its own machine, in
    which everything lies that it acknowledges.
    """

    def __init__(self, folder: Path) -> None:
        self._store = f"file:{folder}/store"
        self.here = self._node(folder / "here", HERE, "--wal", "object:")
        self.gone = self._node(
            folder / "gone",
            GONE,
            *("--wal", f"block:{folder}/disk?size=64m", "--host.id", "another machine"),
            *("--upload.age.ms", "600000"),
        )

    def _node(self, folder: Path, node_id: int, *flags: str) -> BrokerProcess:
        folder.mkdir()
        common = (*FLAGS, "--store", self._store, "--node.id", str(node_id))
        return BrokerProcess(folder, (*common, *flags))

    def state(self) -> MetadataImage:
        return asyncio.run(load_state(self._store.removeprefix("file:")))

    def elect(self, *indexes: int) -> dict[int, int | None]:
        """Elect uncleanly; the error's code for each partition."""
        admin = AdminClient({"bootstrap.servers": self.here.bootstrap, **QUICK_RECONNECT})
        places = [TopicPartition("t", index) for index in indexes]
        future = admin.elect_leaders(ElectionType.UNCLEAN, places)
        results: dict[TopicPartition, KafkaError | None] = future.result(LIMIT_S)
        return {
            place.partition: None if error is None else error.code()
            for place, error in results.items()
        }

    def make_topic(self) -> bool:
        """Make a topic led by both; False while one has not heard of the other's heartbeat."""
        admin = AdminClient({"bootstrap.servers": self.here.bootstrap, **QUICK_RECONNECT})
        topic = NewTopic("t", num_partitions=2, replica_assignment=[[GONE], [HERE]])
        try:
            admin.create_topics([topic])["t"].result(LIMIT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.INVALID_REPLICA_ASSIGNMENT:
                raise
            return False
        return True

    def produce(self, *values: bytes) -> None:
        """To partition 0, wherever that is led."""
        config = {"bootstrap.servers": self.here.bootstrap, **QUICK_RECONNECT}
        producer = Producer({**config, "enable.idempotence": True})
        for value in values:
            producer.produce("t", value, partition=0)
        assert producer.flush(LIMIT_S) == 0

    def read(self, count: int) -> list[tuple[int, bytes]]:
        """Offsets and values of partition 0: `count` of them, and there are no more."""
        config = {"bootstrap.servers": self.here.bootstrap, **QUICK_RECONNECT}
        consumer = Consumer({**config, "group.id": "reader", "enable.auto.commit": False})
        try:
            place = TopicPartition("t", 0, 0)
            consumer.assign([place])
            found = consumer.consume(count, timeout=LIMIT_S)
            assert consumer.get_watermark_offsets(place, timeout=LIMIT_S) == (0, count)
            return [(message.offset() or 0, message.value() or b"") for message in found]
        finally:
            consumer.close()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    try:
        made.here.start()
        made.gone.start()
        assert wait_until(made.make_topic, LIMIT_S), "both machines know each other"
        yield made
    finally:
        made.here.kill()
        made.gone.kill()


def test_what_a_lost_machine_held_is_given_up_by_an_unclean_election(machines: Machines) -> None:
    machines.produce(b"lost 0", b"lost 1")
    assert machines.elect(0, 1) == {0: NOT_NEEDED, 1: NOT_NEEDED}, "both are led"
    machines.gone.kill()
    assert wait_until(lambda: machines.state().nodes[GONE].is_fenced, LIMIT_S)
    assert machines.elect(0, 1) == {0: None, 1: NOT_NEEDED}
    assert "event=leader_elected_uncleanly" in machines.here.log
    assert f"end_offset=0 lost_node_id={GONE}" in machines.here.log
    machines.produce(b"new 0", b"new 1", b"new 2")
    kept = [(n, b"new %d" % n) for n in range(3)]
    assert machines.read(3) == kept

    machines.gone.start()
    assert machines.state().nodes[GONE].epoch == 1
    assert machines.read(3) == kept, "what was given up does not come back"


def test_nothing_is_given_up_of_a_machine_that_is_back_in_time(machines: Machines) -> None:
    machines.produce(b"kept 0", b"kept 1")
    machines.gone.kill()
    assert wait_until(lambda: machines.state().nodes[GONE].is_fenced, LIMIT_S)
    machines.gone.start()
    assert machines.elect(0)[0] in {None, NOT_NEEDED}
    assert "leader_elected_uncleanly" not in machines.here.log
    assert machines.read(2) == [(0, b"kept 0"), (1, b"kept 1")]
