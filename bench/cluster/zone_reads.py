"""Reads in the consumer's zone beside reads from the leader: throughput, CPU of a GB, delay.

Two clusters of two nodes, one for each zone. Node 0 leads the partitions that are read: in one
cluster by a consumer of its own zone, in the other by one of the zone of node 1, which has to read
what the leader wrote. The clusters work in turns, so that other load on the machine affects both,
and the figures are medians of the turns. CPU is that of both nodes, for a GB that the consumer got.

- *From objects*: the consumer reads what was uploaded, and is in no cache as a whole.
- *As they come*: a producer writes at a rate, and the consumer reads along. The CPU includes the
  producer's requests. The delay is from the call of the producer to the consumer's call for it.
"""

import statistics
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.cluster.load import ANSWER_S, BULK_BYTES, CLIENT, fill, leaders, make_topic, quantile
from bench.figures import Figure
from bench.lakehead_cluster import LakeheadCluster, Place
from bench.workloads import RunFailed
from lakehead.broker.cluster.read_replicas import TailSource
from lakehead.broker.settings import RACK_AWARE

PART = "zone_reads"
ZONES = ("zone-a", "zone-b")
TOPIC, PARTITIONS = "zoned", 4
"""Partitions; half of them are led by node 0, and read."""
SIZE = 256 * 10**6
ROUNDS, TAIL_S = 5, 6.0
RATE, RECORD_BYTES = 8 * 10**6, 10_000
"""Bytes a second, and bytes of a record."""
HEARTBEAT_MS = 500.0
"""broker.heartbeat.interval.ms, by default."""
GB = 10**9
READ_S = 120.0
FLAGS = (
    *("--replica.selector.class", RACK_AWARE, "--upload.age.ms", "2000"),
    *("--cache.size", "64m", "--upload.size", "16m"),
)
_STAMP = struct.Struct(">d")


@dataclass(slots=True)
class Side:
    """A cluster, and the zone of its consumer."""

    cluster: LakeheadCluster
    zone: str
    partitions: Sequence[int]
    rates: list[float] = field(default_factory=list)
    """MB/s from objects, of each turn."""
    object_cpu: list[float] = field(default_factory=list)
    """CPU seconds of both nodes for a GB from objects, of each turn."""
    tail_cpu: list[float] = field(default_factory=list)
    """The same of records as they come."""
    delays: list[float] = field(default_factory=list)
    """Seconds, of every record that was read as it came."""

    def cpu_s(self) -> float:
        """Return the CPU seconds of all nodes so far."""
        return sum(node.server.usage().cpu_seconds for node in self.cluster.nodes)

    def consumer(self, offset: int) -> Consumer:
        """Return a consumer of the zone that begins at an offset of each partition."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "group.id": "bench",
                "client.rack": self.zone,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(TOPIC, one, offset) for one in self.partitions])
        return consumer

    def read_objects(self, size: int) -> None:
        """Read this many bytes from the beginning."""
        with closing(self.consumer(0)) as consumer:
            began, used, got = time.monotonic(), self.cpu_s(), 0
            while got < size:
                for message in consumer.consume(100, 1.0):
                    got += len(message.value() or b"") if message.error() is None else 0
                if time.monotonic() - began > READ_S:
                    raise RunFailed(f"{self.zone}: {got} bytes of {size} read in {READ_S:.0f} s")
            self.rates.append(got / 1e6 / (time.monotonic() - began))
            self.object_cpu.append((self.cpu_s() - used) / got * GB)

    def read_tail(self, seconds: float) -> None:
        """Write at a rate, and read along."""
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, **CLIENT, "linger.ms": 5})
        with closing(self.consumer(-1)) as consumer:  # the end
            while not any(one.error() is None for one in consumer.consume(100, 0.1)):
                self._write(producer, 0)  # until it has found the end, and its node
            used, got, number = self.cpu_s(), 0, 0
            began = time.monotonic()
            while (passed := time.monotonic() - began) < seconds:
                while number * RECORD_BYTES < passed * RATE:
                    self._write(producer, number)
                    number += 1
                producer.poll(0)
                got += self._take(consumer)
            self.tail_cpu.append((self.cpu_s() - used) / got * GB)
        if producer.flush(ANSWER_S):
            raise RunFailed("not everything was taken")

    def _write(self, producer: Producer, number: int) -> None:
        value = _STAMP.pack(time.monotonic()).ljust(RECORD_BYTES, b"v")
        partition = self.partitions[number % len(self.partitions)]
        producer.produce(TOPIC, value, partition=partition)

    def _take(self, consumer: Consumer) -> int:
        got = 0
        for message in consumer.consume(100, 0.005):
            value = message.value()
            if message.error() is None and value is not None:
                self.delays.append(time.monotonic() - _STAMP.unpack_from(value)[0])
                got += len(value)
        return got


def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure with each source of the newest records."""
    figures: list[Figure] = []
    for tail, wal in ((TailSource.LEADER, "block"), (TailSource.WAL, "object")):
        place = folder / tail.value
        place.mkdir()
        figures += _compared(place, tail, wal, quick)
    return figures


def _compared(folder: Path, tail: TailSource, wal: str, quick: bool) -> list[Figure]:
    size = SIZE // 8 if quick else SIZE
    with ExitStack() as running:
        leader, zone = (_side(running, folder / one, one, tail, wal, size) for one in ZONES)
        sides = (leader, zone)
        for number in range(1 + (1 if quick else ROUNDS)):
            for side in sides:
                side.read_objects(size)
                side.read_tail(TAIL_S / 3 if quick else TAIL_S)
            if not number:  # the first warms
                for side in sides:
                    for values in (side.rates, side.object_cpu, side.tail_cpu, side.delays):
                        values.clear()
    what = f"tail from the {'leader' if tail is TailSource.LEADER else 'object WAL'}"
    median = statistics.median
    p99_ms, leader_p99_ms = (quantile(side.delays, 0.99) * 1000 for side in (zone, leader))
    p50_ms, leader_p50_ms = (median(side.delays) * 1000 for side in (zone, leader))
    return [
        _figure(f"{what}: objects", median(zone.rates), "MB/s", median(leader.rates), more=True),
        _figure(
            f"{what}: CPU of objects",
            median(zone.object_cpu),
            "s/GB",
            median(leader.object_cpu),
        ),
        _figure(
            f"{what}: CPU as they come", median(zone.tail_cpu), "s/GB", median(leader.tail_cpu)
        ),
        _figure(f"{what}: delay, median", p50_ms, "ms", leader_p50_ms, has_goal=False),
        _figure(f"{what}: delay, p99", p99_ms, "ms", leader_p99_ms, has_goal=False),
        Figure(
            part=PART,
            name=f"{what}: delay, p99, more than from the leader",
            value=p99_ms - leader_p99_ms,
            unit="ms",
            goal=HEARTBEAT_MS,
            more_is_better=False,
        ),
    ]


def _side(
    running: ExitStack, folder: Path, zone: str, tail: TailSource, wal: str, size: int
) -> Side:
    """Start a cluster that holds what is read, in objects."""
    folder.mkdir()
    places = [Place(flags=("--broker.rack", rack)) for rack in ZONES]
    flags = (*FLAGS, "--replica.read.tail", tail.value)
    cluster = running.enter_context(
        LakeheadCluster(folder, *flags, nodes=2, wal=wal, wal_size=256 << 20, places=places)
    )
    make_topic(cluster.bootstrap, TOPIC, PARTITIONS)
    led = [one for one, leader in leaders(cluster.bootstrap, TOPIC).items() if leader == 0]
    fill(cluster.bootstrap, TOPIC, led, size + BULK_BYTES)
    return Side(cluster, zone, led)


def _figure(
    name: str,
    value: float,
    unit: str,
    leader: float,
    *,
    more: bool = False,
    has_goal: bool = True,
) -> Figure:
    return Figure(
        part=PART,
        name=name,
        value=value,
        unit=unit,
        peer="leader",
        peer_value=leader,
        goal=1.0 if has_goal else None,
        more_is_better=more,
    )
