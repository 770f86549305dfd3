"""Nodes on machines with a kernel each: one is lost with its node, another has what it knew.

`make reservations` runs this. The lost machine's write-ahead log is on the shared disk, and is all
that holds what its node acknowledged last. The store and the clients are on this machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.s3_server import S3Server, running_server
from tests.reservations.conftest import Rig
from tests.support.traffic import QUICK_RECONNECT
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(1800)
LIMIT_S = 600.0
GATEWAY = "10.0.2.2"
"""Where a machine of QEMU finds this one."""
FLAGS = (
    *("--cache.size", "16m", "--upload.age.ms", "600000", "--offsets.topic.num.partitions", "2"),
    *("--broker.session.timeout.ms", "15000", "--auto.leader.rebalance.enable", "false"),
    *("--maintain", "false"),
)
LOST, SURVIVOR = 0, 1
BATCH = 300


class Cluster:
    """Node LOST on machine `a`, its log on the shared disk; node SURVIVOR on machine `b`."""

    def __init__(self, rig: Rig, server: S3Server) -> None:
        self.rig = rig
        self.ports = [rig.ports["a"], rig.ports["b"]]
        self.disk = "/dev/nvme0n1" if rig.image.has_nvme else "/dev/sda"
        self._server = server
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.client = {"bootstrap.servers": self.bootstrap, **QUICK_RECONNECT}
        self.acknowledged: list[bytes] = []
        self.acknowledged_at = 0.0
        self.producer = Producer({**self.client, "enable.idempotence": True, "linger.ms": 5})

    def start(self, node_id: int) -> None:
        """Start a node on its machine."""
        name = "ab"[node_id]
        endpoint = self._server.endpoint.replace("127.0.0.1", GATEWAY)
        wal = f"block:{self.disk}?format=yes" if node_id == LOST else "object:"
        flags = [
            *("--node.id", str(node_id), "--host.id", name, "--wal", wal),
            *("--store", self._server.uri, "--data", "/run/data", "--host", "0.0.0.0"),
            *("--port", str(self.ports[node_id]), "--advertised.host", "127.0.0.1"),
            *FLAGS,
        ]
        environment = self._server.environment | {"AWS_ENDPOINT_URL": endpoint}
        host = self.rig.hosts[name]
        host.call("forward", ports=[self.ports[1 - node_id]], address=GATEWAY)
        host.call("node", flags=flags, environment=environment)

    def made_topic(self, name: str) -> bool:
        """Make a topic whose one partition LOST leads; False while that cannot be yet."""
        admin = AdminClient(self.client)
        topic = NewTopic(name, num_partitions=1, replica_assignment=[[LOST]])
        try:
            admin.create_topics([topic])[name].result(30.0)
        except KafkaException as error:
            code = error.args[0].code()
            return bool(code == KafkaError.TOPIC_ALREADY_EXISTS)
        return True

    def send(self, topic: str, count: int, first: int) -> None:
        """Send numbered values; those that are acknowledged are remembered."""
        for number in range(first, first + count):
            value = b"%d:" % number + b"." * 200
            self.producer.produce(topic, value, partition=0, on_delivery=self._delivered)
            self.producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        self.acknowledged.append(message.value() or b"")
        self.acknowledged_at = time.monotonic()

    def acknowledges(self, count: int) -> bool:
        """Return true if so many were acknowledged in all."""
        self.producer.poll(0.1)
        return len(self.acknowledged) >= count

    def read(self, topic: str, count: int) -> list[bytes]:
        """Return the values of partition 0, and that there are no more."""
        consumer = Consumer({**self.client, "group.id": "r", "enable.auto.commit": False})
        try:
            place = TopicPartition(topic, 0, 0)
            consumer.assign([place])
            found = consumer.consume(count, timeout=LIMIT_S)
            assert consumer.get_watermark_offsets(place, timeout=LIMIT_S) == (0, count)
            return [message.value() or b"" for message in found]
        finally:
            consumer.close()


@pytest.fixture
def cluster(rig: Rig, tmp_path: Path) -> Iterator[Cluster]:
    with running_server(tmp_path / "s3") as server:
        cluster = Cluster(rig, server)
        rig.hosts["b"].call("wipe", disk=cluster.disk)
        yield cluster


def test_what_a_lost_machine_acknowledged_is_served_by_another(cluster: Cluster) -> None:
    """The machine is killed while it is written to; then it comes back and has its disk again."""
    cluster.start(LOST)
    cluster.start(SURVIVOR)
    assert wait_until(lambda: cluster.made_topic("t"), LIMIT_S)
    cluster.send("t", BATCH, 0)
    assert wait_until(lambda: cluster.acknowledges(BATCH), LIMIT_S)
    cluster.send("t", BATCH, BATCH)
    cluster.rig.hosts["a"].kill()
    killed_at = time.monotonic()
    cluster.send("t", BATCH, 2 * BATCH)
    assert wait_until(lambda: cluster.acknowledges(3 * BATCH), LIMIT_S)
    print(f"\nall acknowledged {cluster.acknowledged_at - killed_at:.1f} s after the machine's end")
    assert cluster.read("t", 3 * BATCH) == cluster.acknowledged
    cluster.rig.boot("a")
    cluster.start(LOST)
    assert wait_until(lambda: cluster.made_topic("back"), LIMIT_S), "its log is on its disk again"
    cluster.acknowledged.clear()
    cluster.send("back", BATCH, 0)
    assert wait_until(lambda: cluster.acknowledges(BATCH), LIMIT_S)
    assert cluster.read("back", BATCH) == cluster.acknowledged
