"""A node of three is killed (kill -9) or paused (SIGSTOP, ten seconds) under load, again and again.

The gap of a run is the longest time without an acknowledgement for any partition, measured at the
producer. Afterwards the whole log is read: every acknowledged record must be there, once, in order.
Each run hits the node with the most partitions. The node starts again, and the next run begins when
it leads some.

The phases: *detection* until the dead node's fence is in the metadata log, *recovery* until its
streams may be opened (the records of a block WAL are uploaded after that), *reopening* until a
survivor's metadata has a live leader for every partition, *client* until the producer has a
response of every partition again; *first answer* is from the fence to the first new acknowledgement
in a partition that the node led.
With a gibibyte not uploaded, the recovery has the indexes of that much to read (block WAL), or to
list it (object WAL).

    FAILOVERS=20       kills for each WAL, and a quarter as many pauses
    SECURITY=SASL_SSL  clients by TLS and SCRAM, access rules, mutual TLS between nodes
    ENCRYPTED=1        objects and logs are encrypted, by a key file
"""

import contextlib
import functools
import os
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient

from bench.cluster.load import (
    PATIENCE,
    fill,
    leaders,
    make_topic,
    pauses,
    quantile,
    steady_producer,
    wait_for,
)
from bench.cluster.log_events import log_events
from bench.figures import Figure
from bench.lakehead_cluster import ClusterNode, LakeheadCluster, Place
from bench.new_space import wait_filled
from lakehead.storage.encryption.key_file import add_key
from tests.checker.history import History
from tests.checker.rules import violations
from tests.support.secure_cluster import SecureCluster
from tests.support.traffic import ProducerThread, read_log

PART = "failover"
TOPIC = "t"
NODES, PARTITIONS, RATE = 3, 12, 600.0
PAUSED_S, SETTLE_S, BALANCED_S, ENDED_S, BACK_S = 10.0, 1.0, 20.0, 10.0, 60.0
MEDIAN_S, P99_S, FIRST_ANSWER_S = 3.0, 5.0, 1.0
GIB, WAL_SIZE = 1 << 30, 64 << 20
EVENTS = ("node_fenced", "tail_inherited", "node_recovered")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """One run, in seconds; phases that are in no log are None."""

    gap: float
    detection: float | None
    recovery: float | None
    reopening: float | None
    client: float | None
    first_answer: float | None


def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure both write-ahead logs, both causes, and a log that is full."""
    runs = 2 if quick else int(os.environ.get("FAILOVERS", "20"))
    figures: list[Figure] = []
    for wal in ("block", "object"):
        for cause, count in (("killed", runs), ("paused", max(2, runs // 4))):
            figures += _measure(folder / f"{wal}-{cause}", wal, cause, count)
        figures += _with_a_full_log(folder / f"{wal}-full", wal, GIB // 16 if quick else GIB)
    return figures


def _measure(folder: Path, wal: str, cause: str, runs: int) -> list[Figure]:
    folder.mkdir()
    history = History()
    with _cluster(folder, wal=wal) as cluster:
        make_topic(cluster.bootstrap, TOPIC, PARTITIONS, cluster.client)
        producer = _producer(cluster, history, cause)
        producer.start()
        found = [_fail_over(cluster, history, cause) for _ in range(runs)]
        unanswered = producer.finish()
        log = read_log(cluster.bootstrap, TOPIC, PARTITIONS, security=cluster.client)
        broken = violations(history, log)
    what = f"{wal} WAL, {cause} {runs} times"
    return [
        *_summary(what, found),
        _figure(f"{what}: records lost, doubled, misplaced", len(broken), "records", 0),
        _figure(f"{what}: records without a response", unanswered, "records", 0),
    ]


def _cluster(folder: Path, *flags: str, wal: str, wal_size: int = WAL_SIZE) -> LakeheadCluster:
    if os.environ.get("ENCRYPTED") == "1":
        keys = folder / "keys"
        add_key(keys, "bench", rng=random.SystemRandom())
        flags += ("--encryption.key.provider", "file", "--encryption.key.file", str(keys))
    if os.environ.get("SECURITY") != "SASL_SSL":
        return LakeheadCluster(folder, *flags, nodes=NODES, wal=wal, wal_size=wal_size)
    secure = SecureCluster.make(folder / "ca", ("localhost", "127.0.0.1"))
    return LakeheadCluster(
        folder,
        *flags,
        nodes=NODES,
        wal=wal,
        wal_size=wal_size,
        places=[secure.place(Place()) for _ in range(NODES)],
        client=secure.user().librdkafka,
    )


def _producer(cluster: LakeheadCluster, history: History, cause: str) -> ProducerThread:
    return steady_producer(
        cluster.bootstrap,
        TOPIC,
        partitions=PARTITIONS,
        history=history,
        records_per_s=RATE,
        config={**cluster.client, **(PATIENCE if cause == "paused" else {})},
    )


def _summary(what: str, found: Sequence[Failover]) -> list[Figure]:
    gaps = [one.gap for one in found]
    rows: list[tuple[str, float, float | None]] = [
        ("longest gap, median", statistics.median(gaps), MEDIAN_S),
        ("longest gap, p99", quantile(gaps, 0.99), P99_S),
    ]
    for phase in ("detection", "recovery", "reopening", "client", "first_answer"):
        values = [value for one in found if (value := getattr(one, phase)) is not None]
        if values:
            rows.append((f"{phase.replace('_', ' ')}, median", statistics.median(values), None))
    return [_figure(f"{what}: {name}", value, "s", goal) for name, value, goal in rows]


def _figure(name: str, value: float, unit: str, goal: float | None) -> Figure:
    return Figure(part=PART, name=name, value=value, unit=unit, goal=goal, more_is_better=False)


def _fail_over(
    cluster: LakeheadCluster, history: History, cause: str, victim: ClusterNode | None = None
) -> Failover:
    """Hit a node, or that with the most partitions; watch, and heal."""
    time.sleep(SETTLE_S)
    victim = victim or _leader_of_most(cluster)
    mine = [p for p, leader in _leaders(cluster).items() if leader == victim.node_id]
    begun, wall = time.monotonic(), time.time()
    if cause == "killed":
        victim.kill()
    else:
        victim.pause()
    led = _wait_led(cluster, victim) - begun
    if cause == "paused":
        time.sleep(max(begun + PAUSED_S - time.monotonic(), 0.0))
        victim.resume()
    _wait_answers(history)
    found = pauses(history, begun, time.monotonic())
    events = {e.name: e.when - wall for e in reversed(log_events(cluster.folder, EVENTS, wall))}
    result = _judged({p: (gap, at - begun) for p, (gap, at) in found.items()}, mine, events, led)
    _heal(cluster, victim, cause)
    return result


def _wait_led(cluster: LakeheadCluster, victim: ClusterNode) -> float:
    """Wait until a survivor's metadata has a live leader for all partitions; return that moment."""
    survivor = next(node for node in cluster.nodes if node is not victim)
    admin = AdminClient(
        {"bootstrap.servers": survivor.server.bootstrap, "log_level": 0, **cluster.client}
    )

    def is_led() -> bool:
        partitions = admin.list_topics(TOPIC, timeout=5).topics[TOPIC].partitions.values()
        led = [partition.leader for partition in partitions if partition.leader >= 0]
        return len(led) == PARTITIONS and victim.node_id not in led

    wait_for(is_led, BACK_S, "live leaders")
    return time.monotonic()


def _judged(
    found: Mapping[int, tuple[float, float]],
    mine: Sequence[int],
    events: Mapping[str, float],
    led: float,
) -> Failover:
    """Judge by every partition's longest pause and its end, and the victim's partitions."""
    fenced = events.get("node_fenced")
    recovered = events.get("tail_inherited", events.get("node_recovered"))
    gap, back = max(found.values())
    first = min((found[partition][1] for partition in mine), default=None)
    return Failover(
        gap=gap,
        detection=fenced,
        recovery=_between(fenced, recovered),
        reopening=_between(recovered, led),
        client=_between(led, back),
        first_answer=_between(fenced, first),
    )


def _between(earlier: float | None, later: float | None) -> float | None:
    return None if earlier is None or later is None else max(later - earlier, 0.0)


def _wait_answers(history: History) -> None:
    """Wait until every partition has responded twice from now on."""
    for _ in range(2):
        answered = functools.partial(_has_answered, history, time.monotonic())
        wait_for(answered, BACK_S, "a response of every partition")


def _has_answered(history: History, mark: float) -> bool:
    return all(history.latest.get(p, 0.0) > mark for p in range(PARTITIONS))


def _heal(cluster: LakeheadCluster, victim: ClusterNode, cause: str) -> None:
    """Have the node run again, and lead something."""
    if cause == "paused":  # fenced while it was paused, it ends by itself
        with contextlib.suppress(TimeoutError):
            wait_for(lambda: not victim.server.is_running, ENDED_S, "its end")
    if not victim.server.is_running:
        victim.server.start()
    cluster.wait_members(NODES)
    with contextlib.suppress(TimeoutError):
        wait_for(lambda: victim.node_id in _leaders(cluster).values(), BALANCED_S, "a share")


def _leaders(cluster: LakeheadCluster) -> dict[int, int]:
    return leaders(cluster.bootstrap, TOPIC, cluster.client)


def _leader_of_most(cluster: LakeheadCluster) -> ClusterNode:
    led = list(_leaders(cluster).values())
    return max(cluster.nodes, key=lambda node: led.count(node.node_id))


def _with_a_full_log(folder: Path, wal: str, size: int) -> list[Figure]:
    """Kill a node whose write-ahead log holds `size` bytes that were never uploaded."""
    folder.mkdir()
    history = History()
    keep = (
        *("--upload.size", "8g", "--upload.age.ms", "3600000", "--cache.size", "3g"),
        *("--auto.leader.rebalance.enable", "false"),  # what is filled stays where it is
    )
    # An upload begins when a quarter of the log is full, whatever the settings say.
    with _cluster(folder, *keep, wal=wal, wal_size=5 * size) as cluster:
        make_topic(cluster.bootstrap, TOPIC, PARTITIONS, cluster.client)
        victim = _leader_of_most(cluster)
        make_topic(cluster.bootstrap, "bulk", PARTITIONS, cluster.client)
        led = leaders(cluster.bootstrap, "bulk", cluster.client)
        mine = [partition for partition, node in led.items() if node == victim.node_id]
        if wal == "block":
            wait_filled(cluster.volume)
        fill(cluster.bootstrap, "bulk", mine, size, cluster.client)
        producer = _producer(cluster, history, "killed")
        producer.start()
        _wait_answers(history)
        left = victim.metric("lakehead_log_cache_uncommitted_bytes")
        found = _fail_over(cluster, history, "killed", victim)
        producer.finish()
    what = f"{wal} WAL, killed with {left / GIB:.2f} GiB not uploaded"
    rows = [_figure(f"{what}: longest gap", found.gap, "s", P99_S)]
    for phase, goal in (("recovery", None), ("first_answer", FIRST_ANSWER_S)):
        value = getattr(found, phase)
        if value is not None:
            rows.append(_figure(f"{what}: {phase.replace('_', ' ')}", value, "s", goal))
    return rows
