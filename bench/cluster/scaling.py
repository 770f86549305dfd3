"""One node, two and four: CPU seconds of all servers for each GB, to produce and to consume.

On a machine with fewer cores than nodes the throughput does not predict that of a larger one. The
servers' CPU time for a GB does: if it stays constant, more cores serve more. Three loads, each with
the same number of partitions for each node:

- *The same for each node*: every node gets the same requests at the same rate, which two cores
  carry four times over. This shows the cost of each further node for the others: peers, metadata,
  the store. It has the goal, and counts only if the rate was kept.
- *The same in all*: the rate of one node over more of them, in the same requests. This shows the
  cost of a node with little load, whose groups have fewer requests each.
- *Full*: Kafka's ProducerPerformance at full speed, then a consumer of librdkafka. Client and
  servers share the cores, so with more nodes each gets less of them, and the clients' batches
  and the servers' groups have another size: it does not measure more cores. Consuming includes
  uploading the produced data, and removing it from the write-ahead log.

None of them shows the effects of busy cores on each other (memory, caches, the disk).
"""

import asyncio
import functools
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.apache_kafka import tools
from bench.cluster import steady_load
from bench.cluster.load import ANSWER_S, leaders, make_topic, wait_for
from bench.cluster.steady_load import NodeLoad
from bench.figures import Figure
from bench.lakehead_cluster import LakeheadCluster
from bench.workloads import RunFailed

PART = "scaling"
SIZES = (1, 2, 4)
PARTITIONS = 16
"""Of each node."""
PRODUCE_RATES = {"block": 10 * 2**20, "object": 4 * 2**20}
"""Bytes a second for a node: two cores do this for four nodes without being busy all the time. An
object for each small request costs more than a block."""
CONSUME_RATE = 40 * 2**20
"""Consuming costs less, and four readers are usual."""
ROUNDS, QUICK_ROUNDS = 3, 1
"""Each round measures every size of cluster for a while: other load on the machine, and its
temperature, affect all of them."""
ROUND_SECONDS, WARM_SECONDS, TRIES = 2.5, 3.0, 3
SETTLE_SECONDS = 12.0
"""Wait until the produced data is uploaded: consuming must not pay for that."""
RECORDS, QUICK_RECORDS = 400_000, 50_000
"""Of a full run."""
SPREAD = 0.15
KEPT = 0.95
"""Below this, the machine was too busy: a late server gathers requests and spends less for a GB."""
WAL_SIZE = 1 << 30
GB = 2**30
WHATS = ("produce", "consume")
LOADS = {"each": "the same for each node", "all": "the same in all", "full": "full"}


@dataclass(slots=True)
class Spent:
    """CPU seconds of all servers, and the bytes that they served."""

    cpu_s: float = 0.0
    bytes: float = 0.0
    kept: float = 1.0
    """The least share of the rate that was kept in any round."""

    @property
    def per_gb(self) -> float:
        """CPU seconds for a GB."""
        return self.cpu_s / self.bytes * GB


Figured = dict[tuple[str, str, int], Spent]
"""By load, by produce and consume, by size of cluster."""


def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure each size of cluster with each write-ahead log."""
    figures: list[Figure] = []
    for wal in ("block", "object"):
        spent: Figured = defaultdict(Spent)
        _steady(folder / f"{wal}-steady", wal, QUICK_ROUNDS if quick else ROUNDS, spent)
        for size in SIZES:
            _full(folder / f"{wal}-{size}", wal, size, QUICK_RECORDS if quick else RECORDS, spent)
        kept = min(one.kept for one in spent.values())
        figures.append(
            Figure(part=PART, name=f"{wal} WAL, rate that was kept", value=kept, unit="", goal=KEPT)
        )
        for load, name in LOADS.items():
            for what in WHATS:
                values = {
                    size: spent["each" if (load, size) == ("all", 1) else load, what, size].per_gb
                    for size in SIZES
                }
                of = f"{wal} WAL, {name}, {what}"
                figures += [
                    _figure(f"{of}: {size} nodes", value, "s/GB", None)
                    for size, value in values.items()
                ]
                spread = max(values.values()) / min(values.values()) - 1
                figures.append(_figure(f"{of}: spread", spread, "", _goal(load)))
    return figures


def _goal(load: str) -> float | None:
    return SPREAD if load == "each" else None


def _steady(folder: Path, wal: str, rounds: int, spent: Figured) -> None:
    """Measure clusters of all sizes in turn. They are all there all the time, the others idle."""
    rate = PRODUCE_RATES[wal]
    held = int(rate * WARM_SECONDS)
    with ExitStack() as stack:
        clusters: dict[int, tuple[LakeheadCluster, list[NodeLoad]]] = {}
        for size in SIZES:
            cluster = stack.enter_context(_cluster(folder / str(size), wal, size))
            loads = [_own_topic(cluster, node_id) for node_id in range(size)]
            asyncio.run(steady_load.produce(loads, rate, WARM_SECONDS))
            clusters[size] = cluster, loads
        for what in WHATS:
            if what == "consume":
                time.sleep(SETTLE_SECONDS)
            for size, load, share in _turns(rounds):
                cluster, loads = clusters[size]
                serve = functools.partial(_serve, what, loads, held, rate, share)
                _measure(cluster, serve, spent[load, what, size])


def _turns(rounds: int) -> Iterator[tuple[int, str, int]]:
    """Yield size of cluster, load and the divisor of a node's rate."""
    for number in range(rounds):
        # forth and back: the first in one round is the last in the next
        for size in SIZES if number % 2 else reversed(SIZES):
            yield size, "each", 1
            # of one node it is the same, and measured twice
            yield size, "all" if size > 1 else "each", size


def _serve(
    what: str, loads: Sequence[NodeLoad], held: int, rate: int, share: int
) -> Coroutine[Any, Any, float]:
    if what == "produce":
        return steady_load.produce(loads, rate / share, ROUND_SECONDS)
    return steady_load.consume(loads, held, CONSUME_RATE / share, ROUND_SECONDS)


def _cluster(folder: Path, wal: str, size: int) -> LakeheadCluster:
    """Return a cluster, not started, whose leaders stay in place: another part measures the cost of
    moves.
    """
    folder.mkdir(parents=True)
    flags = ("--auto.leader.rebalance.enable", "false")
    return LakeheadCluster(folder, *flags, nodes=size, wal=wal, wal_size=WAL_SIZE // size)


def _measure(
    cluster: LakeheadCluster, serve: Callable[[], Coroutine[Any, Any, float]], spent: Spent
) -> None:
    """Measure until the rate is kept, a few times at most; the last time counts."""
    size = cpu_s = kept = 0.0
    for _ in range(TRIES):
        before, began = _cpu(cluster), time.monotonic()
        size = asyncio.run(serve())
        cpu_s, kept = _cpu(cluster) - before, ROUND_SECONDS / (time.monotonic() - began)
        if kept >= KEPT:
            break
    spent.bytes += size
    spent.cpu_s += cpu_s
    spent.kept = min(spent.kept, kept)


def _own_topic(cluster: LakeheadCluster, node_id: int) -> NodeLoad:
    """Create a topic that a node leads; wait until it does."""
    topic = f"steady-{node_id}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    new = NewTopic(topic, num_partitions=PARTITIONS, replica_assignment=[[node_id]] * PARTITIONS)
    admin.create_topics([new], operation_timeout=ANSWER_S)[topic].result(ANSWER_S)
    wanted = dict.fromkeys(range(PARTITIONS), node_id)
    wait_for(lambda: leaders(cluster.bootstrap, topic) == wanted, ANSWER_S, f"leaders of {topic}")
    return NodeLoad(port=cluster.nodes[node_id].server.port, topic=topic, partitions=PARTITIONS)


def _full(folder: Path, wal: str, size: int, records: int, spent: Figured) -> None:
    with _cluster(folder, wal, size) as cluster:
        make_topic(cluster.bootstrap, "load", PARTITIONS * size)
        _produce(cluster, records // 10)
        for what, load in (("produce", _produce), ("consume", _consume)):
            before = _cpu(cluster)
            load(cluster, records)
            spent["full", what, size] = Spent(
                _cpu(cluster) - before, records * steady_load.RECORD_BYTES
            )


def _produce(cluster: LakeheadCluster, records: int) -> None:
    done = tools.run(
        "kafka-producer-perf-test",
        *("--topic", "load", "--num-records", str(records)),
        *("--record-size", str(steady_load.RECORD_BYTES)),
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
