"""A comparison: every load on every contender, in rounds; one that was cut short goes on.

Servers stay up for the whole comparison, so that none is measured cold; only one has a client at
any moment. Within a round contenders take turns at each load, so that what they are compared by is
measured minutes apart, and the order flips from round to round: A B, B A, A B ...
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import KafkaException

from bench import workloads
from bench.contenders import CONTENDERS, Contender
from bench.librdkafka import performance
from bench.loads import BASE, KIB, LOADS, MIB, PACED_S, Client, Kind, Load
from bench.process import ServerFailed, ServerProcess
from bench.report import Sample
from bench.store_use import counted
from bench.workloads import Figures, RunFailed

CACHE_BYTES = 640 * MIB
"""More than Lakehead keeps of recent data (`cache.size`): this much is written to leave it."""
TOOL_S = 3.0
"""Start and end of a tool, its topic, and the wait for dirty pages."""
GUESSED_MB_PER_S = {Kind.PRODUCE: 60.0, Kind.CONSUME: 200.0}
GUESSED_SMALL_BATCHES_MB_PER_S = 3.0
"""Of the slower contenders, for an estimate before anything is measured."""
WARM_RUNS = 2
_FILLED = Load(name="filled", kind=Kind.PRODUCE, batch_bytes=MIB)


class Turn(NamedTuple):
    """One run to do."""

    round_number: int
    load: Load
    contender: Contender

    @property
    def place(self) -> tuple[int, str, str]:
        """As the sample's."""
        return self.round_number, self.load.name, self.contender.name


def turns(rounds: int, loads: Sequence[Load], contenders: Sequence[Contender]) -> Iterator[Turn]:
    """Return all runs in their order."""
    for number in range(1, rounds + 1):
        order = contenders if number % 2 else tuple(reversed(contenders))
        for load in loads:
            for contender in order:
                if contender.takes(load):
                    yield Turn(number, load, contender)


def missing(every: Iterable[Turn], samples: Iterable[Sample]) -> list[Turn]:
    """Return the runs that have no sample yet."""
    there = {sample.place for sample in samples}
    return [turn for turn in every if turn.place not in there]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes of record values that runs move, and how long paced ones last."""

    run_bytes: int = 400_000 * KIB
    cache_bytes: int = CACHE_BYTES
    paced_s: float = PACED_S

    @classmethod
    def quick(cls) -> "Sizes":
        """Return those of a run that only shows that it works."""
        return cls(run_bytes=10_000 * KIB, cache_bytes=10 * MIB, paced_s=3.0)


def seconds(turn: Turn, sizes: Sizes) -> float:
    """Guess how long a run takes, with what has to be there before it."""
    load, volume = turn.load, int(sizes.run_bytes * turn.contender.volume)
    megabytes = load.records(volume) * load.record_bytes / MIB
    guess = GUESSED_MB_PER_S[Kind.PRODUCE]
    if load.batch_bytes < load.record_bytes:
        guess = GUESSED_SMALL_BATCHES_MB_PER_S
    filled = megabytes / guess
    if load.older:
        filled += TOOL_S + sizes.cache_bytes / MIB / guess
    match load.kind:
        case Kind.PRODUCE | Kind.TAIL:
            return TOOL_S + filled / turn.contender.volume
        case Kind.CONSUME:
            return 2 * TOOL_S + filled + megabytes / GUESSED_MB_PER_S[Kind.CONSUME]
        case Kind.PACED:
            return TOOL_S + sizes.paced_s
        case Kind.MIXED:
            return 2 * TOOL_S + filled + sizes.paced_s
        case _:
            return 3 * TOOL_S


def warming_seconds(contenders: Iterable[Contender], sizes: Sizes) -> float:
    """Guess how long the runs take that no figure comes from."""
    servers = len({contender.server for contender in contenders})
    moved = (WARM_RUNS + 0.3) * sizes.run_bytes / MIB / GUESSED_MB_PER_S[Kind.PRODUCE]
    return servers * ((WARM_RUNS + 1) * TOOL_S + moved)


def warm_up(server: ServerProcess, sizes: Sizes) -> None:
    """Run unmeasured first: a JVM compiles for most of a minute, and caches fill."""
    load = next(load for load in LOADS if load.name == BASE)
    records = load.records(sizes.run_bytes)
    with workloads.made_topic(server, "bench-warm", {}):
        for _ in range(WARM_RUNS):
            workloads.produce(server, "bench-warm", load, records)
        workloads.consume(server, "bench-warm", load, records)


def run(order: Iterable[Turn], measure: Callable[[Turn], Figures]) -> Iterator[Sample]:
    """Run these turns, one after another. One that fails is a sample with the reason, and the next
    one goes on.
    """
    for turn in order:
        try:
            figures, failure = measure(turn), ""
        except (RunFailed, ServerFailed, KafkaException) as error:
            figures, failure = Figures(), str(error)
        yield Sample(
            load=turn.load.name,
            contender=turn.contender.name,
            round_number=turn.round_number,
            figures=figures,
            failure=failure,
        )


@dataclass(slots=True, kw_only=True)
class Rig:
    """Measures turns on started servers, by their keys. `samples` has those so far."""

    servers: Mapping[str, ServerProcess]
    sizes: Sizes
    samples: list[Sample] = field(default_factory=list)

    def measure(self, turn: Turn) -> Figures:
        """Run one on a topic of its own, which is deleted afterwards."""
        load, contender = turn.load, turn.contender
        server = self.servers[contender.server]
        topic = f"bench-{load.name}-{contender.key}-{turn.round_number}"
        with workloads.made_topic(server, topic, contender.topic_config, load.partitions):
            return self._on_topic(server, topic, turn)

    def _on_topic(self, server: ServerProcess, topic: str, turn: Turn) -> Figures:
        load = turn.load
        records = load.records(int(self.sizes.run_bytes * turn.contender.volume))
        moved = records * load.record_bytes
        is_java = load.client is Client.JAVA
        produce = workloads.produce if is_java else performance.produce
        consume = workloads.consume if is_java else performance.consume
        match load.kind:
            case Kind.PRODUCE:
                return counted(server, lambda: produce(server, topic, load, records), moved)
            case Kind.PACED:
                return self._paced(server, topic, load)
            case Kind.CONSUME:
                self._fill(server, topic, load, records)
                return counted(server, lambda: consume(server, topic, load, records), moved)
            case Kind.TAIL:
                return performance.tail(server, topic, load, records)
            case Kind.MIXED:
                self._fill(server, topic, load, records)
                return self._mixed(server, topic, load, records)
            case Kind.LATENCY:
                return workloads.latency(server, topic, load, records)
            case Kind.TRANSACTIONS:
                return workloads.transactions(server, topic, load, records)

    def _fill(self, server: ServerProcess, topic: str, load: Load, records: int) -> None:
        """Produce what is to be consumed; older data is followed by enough to leave the cache."""
        workloads.produce(server, topic, load, records)
        if load.older:
            later = f"{topic}-later"
            with workloads.made_topic(server, later, {}):
                workloads.produce(server, later, _FILLED, _FILLED.records(self.sizes.cache_bytes))

    def _paced(self, server: ServerProcess, topic: str, load: Load) -> Figures:
        rate = load.share * full_rate(self.samples)
        records = max(1, int(rate * self.sizes.paced_s * MIB / load.record_bytes))
        return workloads.produce(server, topic, load, records, rate)

    def _mixed(self, server: ServerProcess, topic: str, load: Load, records: int) -> Figures:
        """Read the topic while a producer writes another one at its pace."""
        written = f"{topic}-written"
        with (
            workloads.made_topic(server, written, {}, load.partitions),
            ThreadPoolExecutor(1) as pool,
        ):
            producing = pool.submit(self._paced, server, written, load)
            time.sleep(TOOL_S)  # the producer's JVM is up, and writes
            read = workloads.consume(server, topic, load, records)
            beside = producing.result()
        return Figures(
            mb_per_second=read.mb_per_second,
            p50_ms=beside.p50_ms,
            p99_ms=beside.p99_ms,
            p999_ms=beside.p999_ms,
            peak_rss_bytes=beside.peak_rss_bytes,
            offered_mb_per_second=beside.offered_mb_per_second,
        )


def full_rate(samples: Sequence[Sample]) -> float:
    """Return the MB/s of the slower server at the load of the full rate, in the first round that
    has it. Raises RunFailed if it was not measured.
    """
    setting = {contender.name for contender in CONTENDERS if contender.sets_full_rate}
    rates: dict[int, list[float]] = {}
    for sample in samples:
        rate = sample.figures.mb_per_second
        if sample.load == BASE and sample.contender in setting and rate is not None:
            rates.setdefault(sample.round_number, []).append(rate)
    if not rates:
        raise RunFailed(f"{BASE} has no figures to take a share of")
    return min(rates[min(rates)])
