"""A run of the flood: a cluster, an honest client, and hostile clients of each kind at one node.

The honest client works alone first, then beside each kind, then beside all of them. The goal: its
99th percentile at most doubles, the node keeps within its memory, and no node is fenced.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.lakehead_cluster import ClusterNode, LakeheadCluster, Place
from bench.process import free_port
from tests.flood.honest_client import HonestClient, Latencies, quantile
from tests.support.secure_cluster import SecureCluster
from tests.support.waiting import wait_until

MIB = 1 << 20
MEMORY: Mapping[str, int] = {
    "cache.size": 32,
    "request.memory.size": 64,
    "block.cache.size": 16,
    "index.cache.size": 8,
    "cold.read.size": 16,
    "group.memory.size": 16,
    "wal.pending.size": 16,
}
"""Settings, in MiB. A node needs their sum and 150 MiB (docs/tuning.md)."""
BUDGET = (sum(MEMORY.values()) + 150) * MIB
FLAGS = (
    *(text for name, mib in MEMORY.items() for text in (f"--{name}", f"{mib}m")),
    *("--upload.age.ms", "1000", "--offsets.topic.num.partitions", "2"),
    *("--auto.leader.rebalance.enable", "false"),
)
HONEST, BULK = "honest", "bulk"
PARTITIONS = 6
BULK_BYTES = 8 * MIB
PAUSE_S = 0.02
OPEN_S = 60.0
CLOSED_S = 60.0
CALM = 50
"""Most connections of a node that is not attacked."""
LIMIT_S = 60.0
SAMPLE_S = 1.0
"""Between two looks at the node. Each renders its page of metrics, which takes milliseconds."""
GROWTH = 2.0
"""The 99th percentile beside hostile clients, by that before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The sizes of a run."""

    counts: Mapping[str, int]
    """Hostile clients of each kind."""
    seconds: float
    """Of each phase."""
    least_s: float
    """A percentile before that is below this counts as this: less cannot be told from noise."""
    nodes: int = 3


@dataclass(slots=True, kw_only=True)
class Phase:
    """Figures of the honest client and the node, beside some kinds of clients."""

    name: str
    latencies: Latencies = field(default_factory=Latencies)
    rss: int = 0
    """Largest resident memory of the attacked node, in bytes."""
    lag_s: float = 0.0
    """Longest delay of the event loop's tick."""
    cpu: float = 0.0
    """Processor time of the node, in cores."""
    connections: int = 0
    done: dict[str, int] = field(default_factory=dict)
    """Counts of the hostile clients, by name."""


@dataclass(slots=True, kw_only=True)
class Result:
    """The phases, the first one without hostile clients, and what was missed."""

    phases: list[Phase]
    fenced: int
    missed: list[str]


class FloodRun:
    """One cluster with its clients."""

    def __init__(self, folder: Path, options: Options, stack: ExitStack) -> None:
        self._options = options
        self._open_port = free_port()
        secure = SecureCluster.make(folder / "ca", ("localhost", "127.0.0.1"))
        places = [
            secure.place(Place(), open_port=self._open_port if not number else free_port())
            for number in range(options.nodes)
        ]
        self._cluster = stack.enter_context(
            LakeheadCluster(
                folder, *FLAGS, nodes=options.nodes, places=places, client=secure.user().librdkafka
            )
        )
        self._config: dict[str, str | int | float | bool] = {
            "bootstrap.servers": self._cluster.nodes[0].server.bootstrap,
            "log_level": "0",
            **secure.user().librdkafka,
        }

    @property
    def attacked(self) -> ClusterNode:
        """The node that hostile clients connect to, and that serves the honest one."""
        return self._cluster.nodes[0]

    def run(self) -> Result:
        """Do it, and judge."""
        options = self._options
        partitions = self._topics()
        fenced = self._fenced()
        bulk = partitions[BULK][0]
        with HonestClient(self._config, HONEST, partitions[HONEST], pause_s=PAUSE_S) as client:
            assert wait_until(lambda: bool(client.latencies(0, time.monotonic()).fetch), LIMIT_S)
            phases = [self._phase(client, "alone", {}, 0)]
            for kind, count in options.counts.items():
                phases.append(self._phase(client, kind, {kind: count}, bulk))
            if len(options.counts) > 1:
                phases.append(self._phase(client, "all together", options.counts, bulk))
        fenced = self._fenced() - fenced
        return Result(phases=phases, fenced=fenced, missed=missed(phases, fenced, options))

    def _topics(self) -> dict[str, list[int]]:
        """Create the topics; return the partitions of each that the attacked node leads."""
        admin = AdminClient(self._config)
        for made in admin.create_topics(
            [NewTopic(t, PARTITIONS, 1) for t in (HONEST, BULK)]
        ).values():
            made.result(LIMIT_S)
        found: dict[str, list[int]] = {}

        def are_led() -> bool:
            topics = admin.list_topics(timeout=LIMIT_S).topics
            leaders = {t: [p.leader for p in topics[t].partitions.values()] for t in (HONEST, BULK)}
            found.update(
                {t: [n for n, one in enumerate(ids) if one == 0] for t, ids in leaders.items()}
            )
            return all(min(ids) >= 0 for ids in leaders.values()) and all(found.values())

        assert wait_until(are_led, LIMIT_S), "the attacked node leads nothing"
        producer = Producer(self._config)
        for _ in range(BULK_BYTES // 10_000):
            producer.produce(BULK, bytes(10_000), partition=found[BULK][0])
            producer.poll(0)
        assert producer.flush(LIMIT_S) == 0
        return found

    def _phase(
        self, client: HonestClient, name: str, counts: Mapping[str, int], bulk: int
    ) -> Phase:
        phase = Phase(name=name)
        with ExitStack() as stack:
            floods = [
                stack.enter_context(self._hostile(kind, count, bulk))
                for kind, count in counts.items()
            ]
            wait_until(lambda: all(one.is_there for one in floods), OPEN_S)
            began, cpu_s = time.monotonic(), self._cpu_s()
            while time.monotonic() < began + self._options.seconds:
                time.sleep(SAMPLE_S)
                self._sample(phase)
            ended = time.monotonic()
            phase.cpu = (self._cpu_s() - cpu_s) / (ended - began)
            phase.latencies = client.latencies(began, ended)
            for one in floods:
                for what, count in one.last.items():
                    phase.done[what] = phase.done.get(what, 0) + count
        wait_until(lambda: 0 < self._metric("connections") < CALM, CLOSED_S)
        print(line(phase), flush=True)
        return phase

    def _sample(self, phase: Phase) -> None:
        if not self.attacked.server.is_running:
            return
        process = psutil.Process(self.attacked.server.process.pid)
        phase.rss = max(phase.rss, process.memory_info().rss)
        phase.lag_s = max(phase.lag_s, self._metric("event_loop_lag_seconds"))
        phase.connections = max(phase.connections, int(self._metric("connections")))

    def _metric(self, name: str) -> float:
        """Return a metric of the attacked node, 0 if its page does not respond."""
        try:
            return self.attacked.metric(f"lakehead_{name}")
        except OSError:
            return 0.0

    def _cpu_s(self) -> float:
        """Return the processor seconds of the attacked node so far."""
        if not self.attacked.server.is_running:
            return 0.0
        times = psutil.Process(self.attacked.server.process.pid).cpu_times()
        seconds: float = times.user + times.system
        return seconds

    def _fenced(self) -> int:
        """Return the number of nodes that were fenced, by the logs of all."""
        return sum(
            one.server.log.read_text(errors="replace").count("event=node_fenced")
            for one in self._cluster.nodes
        )

    @contextmanager
    def _hostile(self, kind: str, count: int, partition: int) -> Iterator["Flood"]:
        command = [
            *(sys.executable, "-m", "tests.flood.hostile_clients", kind, "--count", str(count)),
            *("--open-port", str(self._open_port), "--tls-port", str(self.attacked.server.port)),
            *("--topic", BULK, "--partition", str(partition)),
        ]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield Flood(process, count)
            finally:
                process.kill()


class Flood:
    """A process of hostile clients of one kind, and the last that it printed."""

    def __init__(self, process: "subprocess.Popen[str]", count: int) -> None:
        self.last: dict[str, int] = {}
        self._count = count
        self._process = process
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def is_there(self) -> bool:
        """Return true once all of its clients have been connected."""
        return self.last.get("opened", 0) >= self._count

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            self.last = json.loads(text)


def missed(phases: Sequence[Phase], fenced: int, options: Options) -> list[str]:
    """Return which parts of the goal were missed."""
    found = [f"{fenced} nodes were fenced"] if fenced else []
    alone = phases[0].latencies
    for phase in phases[1:]:
        for what, before, during in (
            ("produce", alone.produce, phase.latencies.produce),
            ("fetch", alone.fetch, phase.latencies.fetch),
        ):
            was, became = quantile(before, 0.99), quantile(during, 0.99)
            if not during or became > GROWTH * max(was, options.least_s):
                found.append(
                    f"{phase.name}: p99 of {what} is {became * 1e3:.1f} ms, {was * 1e3:.1f} before"
                )
        if phase.latencies.failed:
            found.append(f"{phase.name}: {phase.latencies.failed} operations failed")
        if phase.rss > BUDGET:
            found.append(f"{phase.name}: {phase.rss // MIB} MiB, {BUDGET // MIB} are allowed")
    return found


HEAD = (
    f"{'beside':<13} {'produce p50':>12} {'p99':>8} {'fetch p50':>10} {'p99':>8} "
    f"{'connect p50':>12} {'p99':>8} {'open':>7} {'memory':>9} {'lag':>8} {'cores':>6}"
)


def line(phase: Phase) -> str:
    """Return a phase as a line of the table; times in ms."""
    times = [
        quantile(found, share) * 1e3
        for found in (phase.latencies.produce, phase.latencies.fetch, phase.latencies.connect)
        for share in (0.5, 0.99)
    ]
    done = ", ".join(f"{count} {what}" for what, count in phase.done.items())
    return (
        f"{phase.name:<13} {times[0]:>12.1f} {times[1]:>8.1f} {times[2]:>10.1f} {times[3]:>8.1f} "
        f"{times[4]:>12.1f} {times[5]:>8.1f} {phase.connections:>7} {phase.rss // MIB:>5} MiB "
        f"{phase.lag_s * 1e3:>8.1f} {phase.cpu:>6.2f}  {done}"
    )


@contextmanager
def flood(folder: Path, options: Options) -> Iterator[FloodRun]:
    """A cluster that is attacked, until this ends."""
    with ExitStack() as stack:
        yield FloodRun(folder, options, stack)
