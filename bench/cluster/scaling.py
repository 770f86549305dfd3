"""One node, two and four under the same load a node: CPU seconds for each GB must not grow.

On a machine with fewer cores than nodes the throughput says nothing; what the servers spend for a
GB does: where it stays, more cores give more. The load is Kafka's ProducerPerformance as fast as it
goes, with 16 partitions for each node, so that its batches and requests are as full whatever the
number of nodes; then a consumer of librdkafka reads it all. (The same megabytes a second over more
nodes would make smaller requests, and the cost of a request is what a small one pays.)
"""

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from confluent_kafka import Consumer, TopicPartition

from bench.apache_kafka import tools
from bench.cluster.load import make_topic
from bench.figures import Figure
from bench.lakehead_cluster import LakeheadCluster
from bench.workloads import RECORD_BYTES, RunFailed

PART = "scaling"
SIZES = (1, 2, 4)
PARTITIONS = 16
"""Of each node."""
SPREAD = 0.15
GB = 2**30


def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure each size of cluster with each write-ahead log."""
    records = 100_000 if quick else 1_000_000
    figures: list[Figure] = []
    for wal in ("block", "object"):
        spent = {size: _spent(folder / f"{wal}-{size}", wal, size, records) for size in SIZES}
        figures += [
            _figure(f"{wal} WAL, {size} nodes: server CPU to {what}", value, "s/GB", None)
            for size in SIZES
            for what, value in zip(("produce", "consume"), spent[size], strict=True)
        ]
        for index, what in enumerate(("produce", "consume")):
            values = [spent[size][index] for size in SIZES]
            spread = max(values) / min(values) - 1
            figures.append(_figure(f"{wal} WAL: spread of {what}", spread, "", SPREAD))
    return figures


def _spent(folder: Path, wal: str, size: int, records: int) -> tuple[float, float]:
    """CPU seconds of all servers for a GB, to produce and to consume."""
    folder.mkdir()
    gigabytes = records * RECORD_BYTES / GB
    with LakeheadCluster(folder, nodes=size, wal=wal, wal_size=(1 << 30) // size) as cluster:
        make_topic(cluster.bootstrap, "load", PARTITIONS * size)
        _produce(cluster, records // 10)
        before = _cpu(cluster)
        _produce(cluster, records)
        produced = (_cpu(cluster) - before) / gigabytes
        before = _cpu(cluster)
        _consume(cluster, records)
        consumed = (_cpu(cluster) - before) / gigabytes
    return produced, consumed


def _produce(cluster: LakeheadCluster, records: int) -> None:
    done = tools.run(
        "kafka-producer-perf-test",
        *("--topic", "load", "--num-records", str(records)),
        *("--record-size", str(RECORD_BYTES)),
        *("--throughput", "-1"),
        *("--command-property", f"bootstrap.servers={cluster.bootstrap}", "acks=all"),
        timeout_s=300,
        jvm=tools.LONG_RUN,
    )
    if done.returncode or not re.search("99th", done.stdout):
        raise RunFailed(f"ProducerPerformance: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def _consume(cluster: LakeheadCluster, records: int) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "scaling",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign(
        [TopicPartition("load", index, 0) for index in range(PARTITIONS * len(cluster.nodes))]
    )
    seen, deadline = 0, time.monotonic() + 300
    while seen < records:
        if time.monotonic() > deadline:
            raise RunFailed(f"{seen} of {records} records were read")
        seen += sum(message.error() is None for message in consumer.consume(10_000, 1.0))
    consumer.close()


def _cpu(cluster: LakeheadCluster) -> float:
    os.sync()
    pids = (node.server.process.pid for node in cluster.nodes)
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def _figure(name: str, value: float, unit: str, goal: float | None) -> Figure:
    return Figure(part=PART, name=name, value=value, unit=unit, goal=goal, more_is_better=False)
