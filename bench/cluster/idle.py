"""Ten thousand partitions on three idle nodes: start, memory, CPU, requests.

The start counts from nothing running until every partition has a leader, on a cluster that was
stopped and has all partitions already. Memory is the difference between three nodes with and
without partitions, for each partition of the cluster.
"""

import functools
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil

from bench.cluster.load import leaders, make_topic, wait_for
from bench.figures import Figure
from bench.lakehead_cluster import LakeheadCluster

PART = "idle"
TOPICS, PARTITIONS, NODES = 10, 1000, 3
START_S, PARTITION_KB, CPU_PERCENT = 20.0, 20.0, 5.0
READY_S, SPREAD_S, QUIET_S, WATCHED_S = 180.0, 120.0, 15.0, 120.0


def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure a stopped cluster's start, then its use of resources while idle."""
    each = PARTITIONS // 10 if quick else PARTITIONS
    watched = 20.0 if quick else WATCHED_S
    topics = [f"idle-{number}" for number in range(TOPICS)]
    with LakeheadCluster(folder, nodes=NODES) as cluster:
        time.sleep(5)
        empty = _resident(cluster)
        began = time.monotonic()
        for topic in topics:
            make_topic(cluster.bootstrap, topic, each)
        created = time.monotonic() - began
    with_all = LakeheadCluster(folder, nodes=NODES)
    began = time.monotonic()
    with with_all as cluster:
        for topic in topics:
            led = functools.partial(_is_led, cluster.bootstrap, topic, each)
            wait_for(led, READY_S, f"leaders of {topic}")
        started = time.monotonic() - began
        spread = functools.partial(_is_spread, cluster.bootstrap, topics)
        wait_for(spread, SPREAD_S, "partitions spread over all nodes")
        time.sleep(QUIET_S)
        resident = _resident(cluster)
        before = _cpu(cluster), _requests(cluster)
        time.sleep(watched)
        cpu, requests = _cpu(cluster) - before[0], _requests(cluster) - before[1]
    count = TOPICS * each
    what = f"{count:,} partitions, {NODES} nodes"
    share = (resident - empty) / count / 1024
    return [
        _figure(f"{what}: start", started, "s", START_S),
        _figure(f"{what}: creation", created, "s", None),
        _figure(f"{what}: memory of a partition", share, "KB", PARTITION_KB),
        _figure(f"{what}: memory of a node", resident / NODES / 2**20, "MB", None),
        _figure(f"{what}: memory of a node without any", empty / NODES / 2**20, "MB", None),
        _figure(f"{what}: CPU of a node", cpu / NODES / watched * 100, "%", CPU_PERCENT),
        _figure(f"{what}: requests to the store", requests / watched * 3600, "an hour", None),
    ]


def _is_led(bootstrap: str, topic: str, partitions: int) -> bool:
    return len(leaders(bootstrap, topic)) == partitions


def _is_spread(bootstrap: str, topics: Sequence[str]) -> bool:
    """Return true if each node leads its share, or nearly: no more partitions move then."""
    led = Counter(node for topic in topics for node in leaders(bootstrap, topic).values())
    return len(led) == NODES and min(led.values()) > 0.9 * max(led.values())


def _processes(cluster: LakeheadCluster) -> list[psutil.Process]:
    return [psutil.Process(node.server.process.pid) for node in cluster.nodes]


def _resident(cluster: LakeheadCluster) -> int:
    return sum(int(process.memory_info().rss) for process in _processes(cluster))


def _cpu(cluster: LakeheadCluster) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in _processes(cluster))


def _requests(cluster: LakeheadCluster) -> float:
    return sum(node.metric("lakehead_store_requests_total") for node in cluster.nodes)


def _figure(name: str, value: float, unit: str, goal: float | None) -> Figure:
    return Figure(part=PART, name=name, value=value, unit=unit, goal=goal, more_is_better=False)
