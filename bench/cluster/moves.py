"""Partitions move from one node to another under load, by Kafka's AlterPartitionReassignments.

A thousand partitions move there and back. Fifty of them take 20 records a second each, the others
one every other second. The pause of each of the fifty is the longest time that it went without an
acknowledgement while the move was under way: the 50 ms between two records are part of it, and so
is the client's back-off of 100 ms. The same is measured for as long while nothing moves.

Ten producers share the fifty: librdkafka sends a request for each partition, and an idempotent
producer has five on their way, so one producer of fifty partitions would wait for itself.

Then two partitions move alone, one of 10 MB and one of 4 GB: a pause must not know the size.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from kafka import KafkaAdminClient, TopicPartition

from bench.cluster.load import (
    fill,
    leaders,
    make_topic,
    pauses,
    quantile,
    steady_producer,
    wait_for,
)
from bench.figures import Figure
from bench.lakehead_cluster import LakeheadCluster
from tests.checker.history import History
from tests.checker.rules import violations
from tests.support.traffic import read_log

PART = "moves"
PROBES, PROBED_RATE = tuple(f"probed-{number}" for number in range(10)), 20.0
CROWD, CROWD_RATE = "crowd", 0.5
MEDIAN_MS, P99_MS = 200.0, 1000.0
MOVED_S = 120.0
MB, GB = 10**6, 10**9
ROUNDS = 5


def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure the many, then the small one and the large one."""
    figures: list[Figure] = []
    for wal in ("block", "object"):
        place = folder / wal
        place.mkdir()
        figures += _many(place, wal, 100 if quick else 1000, 20 if quick else 50)
    figures += _sizes(folder, 100 * MB if quick else 4 * GB)
    return figures


def _many(folder: Path, wal: str, crowd: int, probed: int) -> list[Figure]:
    sizes = {**dict.fromkeys(PROBES, probed // len(PROBES)), CROWD: crowd - probed}
    rates = {**dict.fromkeys(PROBES, PROBED_RATE), CROWD: CROWD_RATE}
    histories = {topic: History() for topic in sizes}
    with LakeheadCluster(folder, *_STILL, nodes=2, wal=wal, wal_size=512 << 20) as cluster:
        for topic, size in sizes.items():
            make_topic(cluster.bootstrap, topic, size)
        _move(cluster, sizes, 0)
        producers = [
            steady_producer(
                cluster.bootstrap,
                topic,
                partitions=sizes[topic],
                history=histories[topic],
                records_per_s=rates[topic] * sizes[topic],
            )
            for topic in sizes
        ]
        for producer in producers:
            producer.start()
        time.sleep(5)
        begun = time.monotonic()
        time.sleep(_SETTLED_S)
        still = _probed_pauses_ms(histories, begun)
        taken, found = [], list[float]()
        for target in (1, 0):
            begun = time.monotonic()
            taken.append(_move(cluster, sizes, target))
            time.sleep(_SETTLED_S)
            found += _probed_pauses_ms(histories, begun)
        unanswered = sum(producer.finish() for producer in producers)
        broken = [
            line
            for topic, history in histories.items()
            for line in violations(history, read_log(cluster.bootstrap, topic, sizes[topic]))
        ]
    rate = sum(rates[topic] * sizes[topic] for topic in sizes)
    what = f"{wal} WAL, {crowd:,} partitions moved under {rate:,.0f} records/s"
    return [
        _figure(f"{what}: pause, median", statistics.median(found), "ms", MEDIAN_MS),
        _figure(f"{what}: pause, p99", quantile(found, 0.99), "ms", P99_MS),
        _figure(f"{what}: pause, longest", max(found), "ms", None),
        _figure(f"{what}: the same when nothing moves", statistics.median(still), "ms", None),
        _figure(f"{what}: all of it", statistics.mean(taken), "s", None),
        _figure(f"{what}: records lost, doubled, misplaced", len(broken), "records", 0),
        _figure(f"{what}: records without a response", unanswered, "records", 0),
    ]


def _sizes(folder: Path, large: int) -> list[Figure]:
    place = folder / "sizes"
    place.mkdir()
    figures: list[Figure] = []
    with LakeheadCluster(place, *_STILL, nodes=2, wal="block", wal_size=1 << 30) as cluster:
        for size in (10 * MB, large):
            topic = f"holds{size}"
            make_topic(cluster.bootstrap, topic, 1)
            fill(cluster.bootstrap, topic, [0], size)
            found = _alone(cluster, topic)
            what = f"a partition of {size // MB:,} MB"
            median, longest = statistics.median(found), max(found)
            figures += [
                _figure(f"{what}: pause, median of {len(found)}", median, "ms", MEDIAN_MS),
                _figure(f"{what}: pause, longest", longest, "ms", P99_MS),
            ]
    return figures


def _alone(cluster: LakeheadCluster, topic: str) -> list[float]:
    history, found = History(), list[float]()
    producer = steady_producer(
        cluster.bootstrap, topic, partitions=1, history=history, records_per_s=PROBED_RATE
    )
    producer.start()
    [home] = leaders(cluster.bootstrap, topic).values()
    for round_number in range(2 * ROUNDS):
        time.sleep(1)
        begun = time.monotonic()
        _move(cluster, {topic: 1}, home if round_number % 2 else 1 - home)
        time.sleep(1)
        found += _pauses_ms(history, begun)
    producer.finish()
    return found


_SETTLED_S = 2.0
_STILL = ("--auto.leader.rebalance.enable", "false")
"""Partitions move only on request."""


def _move(cluster: LakeheadCluster, sizes: Mapping[str, int], target: int) -> float:
    """Have all partitions of the topics led by one node; how long that took."""
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    wanted = {TopicPartition(t, p): [target] for t, size in sizes.items() for p in range(size)}
    try:
        began = time.monotonic()
        refused = {error for error in admin.alter_partition_reassignments(wanted).values() if error}
        assert not refused, refused
    finally:
        admin.close()
    wait_for(
        lambda: all(
            set(leaders(cluster.bootstrap, topic).values()) == {target}
            and len(leaders(cluster.bootstrap, topic)) == size
            for topic, size in sizes.items()
        ),
        MOVED_S,
        f"all led by node {target}",
    )
    return time.monotonic() - began


def _probed_pauses_ms(histories: Mapping[str, History], begun: float) -> list[float]:
    return [pause for topic in PROBES for pause in _pauses_ms(histories[topic], begun)]


def _pauses_ms(history: History, begun: float) -> list[float]:
    found = pauses(history, begun, time.monotonic())
    return [gap * 1000 for gap, _ in found.values()]


def _figure(name: str, value: float, unit: str, goal: float | None) -> Figure:
    return Figure(part=PART, name=name, value=value, unit=unit, goal=goal, more_is_better=False)
