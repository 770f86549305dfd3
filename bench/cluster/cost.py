"""Dollars for a TB that is ingested, kept for a week and read once: three nodes in three zones.

Producers in each zone write to the leaders of its zone, as those with rack-aware partitioning do
(KIP-1123). A consumer in each zone reads a third of each leader's partitions, from the nodes of its
zone. Requests to the object store, and record bytes that cross zones, are counted by the nodes;
everything else is volume times price.

Apache Kafka's dollars are arithmetic: three replicas on gp3 volumes of which FILLED is used,
producers in any zone, followers in other zones, consumers that fetch from followers in theirs.
What AutoMQ publishes is set to the same retention.

Sides: the block WAL, whose newest records lie in one zone; the object WAL with its defaults, and
with groups of a quarter of a second and producers that wait 100 ms for a batch, as AutoMQ's
figures have them.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.cluster.load import ANSWER_S, CLIENT, leaders, make_topic, wait_for
from bench.figures import Figure
from bench.lakehead_cluster import LakeheadCluster, Place
from bench.workloads import RunFailed
from lakehead.broker.settings import RACK_AWARE
from lakehead.storage.object_store.counted import StoreStats, put_requests
from lakehead.storage.object_store.s3.limits import PART_SIZE

PART = "cost"
ZONES = ("zone-a", "zone-b", "zone-c")
TOPIC, PARTITIONS = "cost", 9
"""Three partitions a leader, one of them for each zone's consumer."""
RATE, RECORD_BYTES = 50 * 2**20, 10 * 1024
WARM_S, RUN_S = 15.0, 60.0
FALLEN_BEHIND = 0.95
"""Of the rate: a run below it is not one of that rate."""
DAYS_KEPT = 7
GIB, TIB = 2**30, 2**40
MONTH_S = 730 * 3600
TIB_A_MONTH = RATE * MONTH_S / TIB
COMPACTED_BYTES = 128 * 2**20
FILLED = 0.7
REPLICAS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """List prices of us-east-1 in dollars, 26 November 2026: those of infra/terraform."""

    instance_hour: float = 0.0408
    """m7g.medium: one core, 4 GiB."""
    gp3_gib: float = 0.08
    io2_gib: float = 0.125
    io2_iops: float = 0.065
    s3_gib: float = 0.023
    cross_zone_gib: float = 0.02
    """Both ways together."""


PRICES = Prices()
AUTOMQ_DOLLARS, AUTOMQ_DAYS, AUTOMQ_GIB_S = 12_899.0, 3, 1.0
"""A month of 1 GiB/s, of which $5,961 are storage: three days (AutoMQ's documentation, *AutoMQ vs.
Apache Kafka Benchmarks and Cost*).
"""
WAL_GIB, WAL_IOPS = 10, 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A write-ahead log with its options, and the source of the newest records in other zones."""

    name: str
    wal: str
    flags: tuple[str, ...]
    linger_ms: int = 5
    """Of the producers."""
    producers: int = 1
    """Of each zone: five requests of each are in flight, which is too few for a slow log."""
    wal_dollars: float = 0.0
    """A month of the volumes."""


SIDES = (
    Side(
        name="block WAL",
        wal="block",
        flags=("--replica.read.tail", "leader"),
        wal_dollars=len(ZONES) * (WAL_GIB * PRICES.io2_gib + WAL_IOPS * PRICES.io2_iops),
    ),
    Side(name="object WAL", wal="object", flags=("--replica.read.tail", "wal")),
    Side(
        name="object WAL, 250 ms",
        wal="object",
        flags=(
            *("--wal", "object:?linger_ms=250&object_size=8388608&budget=0"),
            *("--replica.read.tail", "wal"),
        ),
        linger_ms=100,
        producers=3,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Counters of all nodes, or what they grew by."""

    requests: float
    dollars: float
    crossed: float
    """Bytes of records that left their zone."""
    cpu_s: float

    @classmethod
    def of(cls, cluster: LakeheadCluster) -> "Counted":
        """Return those of this moment."""
        nodes = cluster.nodes
        return cls(
            requests=sum(node.metric("lakehead_store_requests_total") for node in nodes),
            dollars=sum(node.metric("lakehead_store_cost_dollars_total") for node in nodes),
            crossed=sum(
                node.metric(f'lakehead_fetched_record_bytes_total{{to="{to}"}}')
                for node in nodes
                for to in ("other zone", "node")
            ),
            cpu_s=sum(node.server.usage().cpu_seconds for node in nodes),
        )

    def since(self, before: "Counted") -> "Counted":
        """Return the growth."""
        return Counted(
            requests=self.requests - before.requests,
            dollars=self.dollars - before.dollars,
            crossed=self.crossed - before.crossed,
            cpu_s=self.cpu_s - before.cpu_s,
        )


@dataclass(slots=True, kw_only=True)
class Zone:
    """Producers and a consumer of one zone, each on a thread of its own."""

    bootstrap: str
    name: str
    written: Sequence[int]
    """Partitions that the zone leads."""
    read: Sequence[int]
    rate: float
    """Of each producer."""
    side: Side
    stopped: threading.Event = field(default_factory=threading.Event)
    sent: int = 0
    got: int = 0
    threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Begin to write and to read."""
        for work in (self._consume, *[self._produce] * self.side.producers):
            self.threads.append(threading.Thread(target=work, daemon=True))
            self.threads[-1].start()

    def stop(self) -> None:
        """End all, after the responses to all that was sent."""
        self.stopped.set()
        for thread in self.threads:
            thread.join(ANSWER_S)

    def _produce(self) -> None:
        config = {**CLIENT, "linger.ms": self.side.linger_ms, "batch.size": 2**20}
        producer = Producer({"bootstrap.servers": self.bootstrap, **config})
        value = bytes(RECORD_BYTES)
        began, number = time.monotonic(), 0
        while not self.stopped.wait(0.002):
            due = int((time.monotonic() - began) * self.rate / RECORD_BYTES)
            while number < due and len(producer) < 10_000:
                producer.produce(
                    TOPIC,
                    value=value,
                    partition=self.written[number // 16 % len(self.written)],
                    on_delivery=self._delivered,
                )
                number += 1
            producer.poll(0)
        producer.flush(ANSWER_S)

    def _delivered(self, error: object, _message: object) -> None:
        if error is None:
            self.sent += RECORD_BYTES

    def _consume(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": f"cost-{self.name}",
                "client.rack": self.name,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(TOPIC, one, 0) for one in self.read])
        with closing(consumer):
            while not self.stopped.is_set():
                for message in consumer.consume(1000, 0.1):
                    self.got += len(message.value() or b"") if message.error() is None else 0


def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Count on each side, and add up."""
    figures: list[Figure] = []
    for number, side in enumerate(SIDES):
        place = folder / str(number)
        place.mkdir()
        figures += _costs(side, place, RUN_S / 6 if quick else RUN_S)
    return figures


def _costs(side: Side, folder: Path, seconds: float) -> list[Figure]:
    places = [Place(flags=("--broker.rack", zone)) for zone in ZONES]
    flags = ("--replica.selector.class", RACK_AWARE, *side.flags)
    with LakeheadCluster(
        folder, *flags, nodes=len(ZONES), wal=side.wal, wal_size=1 << 30, places=places
    ) as cluster:
        counted, volume, read = _loaded(cluster, side, seconds)
    rate = volume / seconds
    if rate < FALLEN_BEHIND * RATE:
        raise RunFailed(f"{side.name}: {rate / 2**20:.1f} MiB/s of {RATE / 2**20:.0f}")
    parts = {
        "storage": DAYS_KEPT * 86400 / MONTH_S * PRICES.s3_gib * 1024,
        "instances": len(ZONES) * 730 * PRICES.instance_hour / TIB_A_MONTH,
        "WAL volumes": side.wal_dollars / TIB_A_MONTH,
        "requests": counted.dollars / volume * TIB,
        "compaction": compaction_dollars(),
        "between zones": counted.crossed / volume * PRICES.cross_zone_gib * 1024,
    }
    total = sum(parts.values())
    return [
        *(_figure(f"{side.name}: {name}", dollars) for name, dollars in parts.items() if dollars),
        _figure(f"{side.name}: in all", total, "Kafka", kafka_dollars(), 1 / 3),
        _figure(f"{side.name}: in all", total, "AutoMQ", automq_dollars(), 1.0),
        Figure(
            part=PART,
            name=f"{side.name}: requests",
            value=counted.requests / volume * GIB,
            unit="/GiB",
            more_is_better=False,
        ),
        Figure(
            part=PART,
            name=f"{side.name}: cores of all nodes",
            value=counted.cpu_s / seconds,
            unit="",
            more_is_better=False,
        ),
        Figure(part=PART, name=f"{side.name}: read", value=read / volume * 100, unit="%"),
    ]


def _loaded(cluster: LakeheadCluster, side: Side, seconds: float) -> tuple[Counted, float, float]:
    """Write and read for a time; return the growth of the counters, bytes written and read."""
    make_topic(cluster.bootstrap, TOPIC, PARTITIONS)
    wait_for(
        lambda: all(len(one) == PARTITIONS // len(ZONES) for one in _led(cluster).values()),
        ANSWER_S,
        "as many partitions in each zone",
    )
    led = _led(cluster)
    zones = [
        Zone(
            bootstrap=cluster.bootstrap,
            name=name,
            written=led[number],
            read=[partitions[number % len(partitions)] for partitions in led.values()],
            rate=RATE / len(ZONES) / side.producers,
            side=side,
        )
        for number, name in enumerate(ZONES)
    ]
    for zone in zones:
        zone.start()
    try:
        time.sleep(WARM_S)
        before = Counted.of(cluster), _moved(zones)
        time.sleep(seconds)
        after = Counted.of(cluster), _moved(zones)
    finally:
        for zone in zones:
            zone.stop()
    written, read = (now - then for now, then in zip(after[1], before[1], strict=True))
    return after[0].since(before[0]), written, read


def _led(cluster: LakeheadCluster) -> dict[int, list[int]]:
    """Return the partitions that each node leads."""
    led: dict[int, list[int]] = {node: [] for node in range(len(ZONES))}
    for partition, leader in leaders(cluster.bootstrap, TOPIC).items():
        led[leader].append(partition)
    return led


def _moved(zones: Sequence[Zone]) -> tuple[int, int]:
    return sum(zone.sent for zone in zones), sum(zone.got for zone in zones)


def compaction_dollars() -> float:
    """Return the requests of a TB's object compaction: every byte is read once, in parts of a
    multipart put, and written once, in objects of COMPACTED_BYTES.
    """
    stats = StoreStats()
    objects = TIB // COMPACTED_BYTES
    stats.put.requests = objects * put_requests(COMPACTED_BYTES)
    stats.get.requests = TIB // PART_SIZE
    return stats.cost()


def kafka_dollars() -> float:
    """Return those of a TB in Apache Kafka: disks, hosts, and what crosses zones, which is two
    thirds of what is produced and two copies of all.
    """
    kept = DAYS_KEPT * 86400 / MONTH_S * 1024 * REPLICAS / FILLED * PRICES.gp3_gib
    crossing = (1 - 1 / len(ZONES)) + (REPLICAS - 1)
    hosts = len(ZONES) * 730 * PRICES.instance_hour / TIB_A_MONTH
    return kept + crossing * 1024 * PRICES.cross_zone_gib + hosts


def automq_dollars() -> float:
    """Return those of a TB by AutoMQ's published month, with S3's price for the further days."""
    tib = AUTOMQ_GIB_S * MONTH_S / 1024
    further = (DAYS_KEPT - AUTOMQ_DAYS) * 86400 / MONTH_S * PRICES.s3_gib * 1024
    return AUTOMQ_DOLLARS / tib + further


def _figure(
    name: str, value: float, peer: str = "", peer_value: float | None = None, goal: float = 1.0
) -> Figure:
    return Figure(
        part=PART,
        name=name,
        value=value,
        unit="dollars/TB",
        peer=peer,
        peer_value=peer_value,
        goal=goal if peer else None,
        more_is_better=False,
    )
