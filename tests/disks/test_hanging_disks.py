"""A node whose disk does not answer any more, in calls that no signal ends: `make disks`.

The disk is a FUSE file system. Directly written (O_DIRECT), the kernel's queue blocks the event
loop itself; through the page cache it blocks threads.
"""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from lakehead.broker.cli.cluster import load_state
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.wal.holder import Holder, is_ending
from tests.disks.mounted_disk import Disk, disks, skip_without_fuse
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.traffic import IDEMPOTENT, QUICK_RECONNECT
from tests.support.waiting import wait_until

skip_without_fuse()

STUCK, OTHER = 0, 1
LIMIT_S = 60.0
SIZE = 64 * 1024 * 1024
TIMEOUT_S = 2.0
FLAGS = (
    *HASTY,
    *("--wal.device.timeout.ms", str(int(TIMEOUT_S * 1000))),
    *("--broker.heartbeat.interval.ms", "100", "--broker.session.timeout.ms", "5000"),
    *("--metadata.poll.max.ms", "200", "--auto.leader.rebalance.enable", "false"),
    *("--upload.age.ms", "600000"),
)


class Cluster:
    """Two nodes of one machine; the log of one of them lies on the disk that hangs."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.store = f"file:{folder}/store"
        self._held_by = folder / "hangs"
        self._disk = disk
        self.nodes = [
            self._node(folder / "stuck", STUCK, "--wal", f"block:{disk.path}"),
            self._node(folder / "other", OTHER, "--wal", f"block:{folder}/log?size=64m"),
        ]

    def _node(self, folder: Path, node_id: int, *flags: str) -> BrokerProcess:
        folder.mkdir()
        common = (*FLAGS, "--store", self.store, "--node.id", str(node_id))
        return BrokerProcess(folder, (*common, *flags))

    def hang(self) -> None:
        self._held_by.touch()
        self._disk.tell("hang", self._held_by)

    def heal(self) -> None:
        self._held_by.unlink(missing_ok=True)

    def state(self) -> MetadataImage:
        return asyncio.run(load_state(self.store.removeprefix("file:")))

    def make_topic(self) -> bool:
        admin = AdminClient({"bootstrap.servers": self.nodes[OTHER].bootstrap, **QUICK_RECONNECT})
        topic = NewTopic("t", num_partitions=2, replica_assignment=[[STUCK], [OTHER]])
        return admin.create_topics([topic])["t"].exception(LIMIT_S) is None

    def values(self, index: int, count: int) -> list[bytes]:
        """The first `count` values of a partition, and the assurance that there are no more."""
        config = {"bootstrap.servers": self.nodes[OTHER].bootstrap, **QUICK_RECONNECT}
        consumer = Consumer({**config, "group.id": "reader", "enable.auto.commit": False})
        try:
            place = TopicPartition("t", index, 0)
            consumer.assign([place])
            found = consumer.consume(count, timeout=LIMIT_S)
            assert consumer.get_watermark_offsets(place, timeout=LIMIT_S) == (0, count)
            return [message.value() or b"" for message in found]
        finally:
            consumer.close()


@contextmanager
def cluster_on(folder: Path, disk: Disk) -> Iterator[Cluster]:
    cluster = Cluster(folder, disk)
    try:
        for node in cluster.nodes:
            node.start()
        assert wait_until(cluster.make_topic, LIMIT_S), "both nodes know each other"
        yield cluster
    finally:
        cluster.heal()
        for node in cluster.nodes:
            node.kill()


def refuses(node: BrokerProcess) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", node.port)) != 0


@pytest.mark.parametrize("way", ["O_DIRECT", "page cache"])
def test_a_node_on_a_disk_that_hangs_ends_in_time_and_nothing_acknowledged_is_lost(
    tmp_path: Path, way: str
) -> None:
    options = ["refuse-direct"] if way == "page cache" else []
    with disks(tmp_path, SIZE) as make, cluster_on(tmp_path, make(*options)) as cluster:
        stuck, other = cluster.nodes
        producer = Producer({"bootstrap.servers": other.bootstrap, **IDEMPOTENT})
        acknowledged: list[bytes] = []

        def delivered(error: object, message: object) -> None:
            assert error is None, error
            acknowledged.append(message.value())  # type: ignore[attr-defined]

        def produce(index: int, *values: bytes) -> None:
            for value in values:
                producer.produce("t", value, partition=index, on_delivery=delivered)

        before = [b"before %d" % n for n in range(50)]
        during = [b"during %d" % n for n in range(20)]
        produce(STUCK, *before)
        assert producer.flush(LIMIT_S) == 0
        cluster.hang()
        began = monotonic()
        produce(STUCK, *during)
        assert wait_until(lambda: refuses(stuck), LIMIT_S)
        ended_s = monotonic() - began
        assert wait_until(lambda: cluster.state().nodes[STUCK].is_fenced, LIMIT_S)
        fenced_s = monotonic() - began
        assert sorted(acknowledged) == sorted(before), "nothing stuck is acknowledged"
        process = psutil.Process(stuck.server.process.pid)
        assert stuck.is_running, "the kernel keeps the process"
        assert process.status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DISK_SLEEP}
        assert is_ending(Holder.named(cluster.state().nodes[STUCK].process))
        assert "wal_device_stuck" in stuck.log
        produce(OTHER, b"the other node serves")
        assert wait_until(lambda: producer.poll(0.01) >= 0 and len(acknowledged) > 50, LIMIT_S)

        cluster.heal()
        healed = monotonic()
        assert producer.flush(LIMIT_S) == 0
        print(
            f"{way}: connections ended after {ended_s:.1f} s, fenced after {fenced_s:.1f} s, "
            f"served {monotonic() - healed:.1f} s after the disk answered again"
        )
        assert cluster.values(STUCK, 70) == before + during
        assert ended_s < 3 * TIMEOUT_S + 5
        assert wait_until(lambda: not stuck.is_running, LIMIT_S)
        stuck.start()
