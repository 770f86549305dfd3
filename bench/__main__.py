"""`make bench`: Lakehead and Apache Kafka on this machine, in turn, under Kafka's own clients.

Both servers stay up for the whole benchmark, so that neither is measured cold; only one has a
client at any moment. Rounds alternate between them, and the order within a round flips each time.

    ROUNDS=3        how often each workload is run against each broker
    RECORDS=400000  1 KiB records of a run
    ONLY=lakehead   one broker alone (or: kafka), for work on it
    SECURITY=SASL_SSL  both over TLS, with SCRAM-SHA-512
    KEEP=PATH       where the JSON goes (default: bench/results/raw/TIME.json)
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from rich.console import Console

from bench import workloads
from bench.apache_kafka.jars import KAFKA_VERSION, jars_directory
from bench.apache_kafka.server import java_version, kafka_server
from bench.lakehead_server import lakehead_server
from bench.maven import MissingTool
from bench.process import ServerFailed, ServerProcess
from bench.report import (
    KAFKA,
    KAFKA_FLUSHING,
    LAKEHEAD,
    Report,
    Sample,
    machine,
    save,
    show,
)
from bench.tls_and_sasl import TlsAndSasl
from bench.workloads import Figures, RunFailed

PRODUCE_16K = "produce, 16 KiB batches"
PRODUCE_1M = "produce, 1 MiB batches"
CONSUME_RECENT = "consume recent data"
CONSUME_OLDER = "consume older data"
LATENCY = "end to end latency"
LATENCY_RECORDS = 2000
TRANSACTIONS = f"transactions of {workloads.TRANSACTION_RECORDS} records"
TRANSACTION_COUNT = 300
FLUSHING_SHARE = 4  # Kafka with a flush per batch is slow: a quarter of the records will do
PLAINTEXT, SASL_SSL = "PLAINTEXT", "SASL_SSL"


def _lakehead(folder: Path, secured: TlsAndSasl | None) -> ServerProcess:
    return lakehead_server(folder, secured=secured)


def _kafka(folder: Path, secured: TlsAndSasl | None) -> ServerProcess:
    return kafka_server(folder, secured=secured)


SERVERS: dict[str, Callable[[Path, TlsAndSasl | None], ServerProcess]] = {
    "lakehead": _lakehead,
    "kafka": _kafka,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Size of a run."""

    rounds: int
    records: int
    only: str
    security: str
    """Security protocol of the clients' listener."""

    @classmethod
    def from_environment(cls) -> "Plan":
        only = os.environ.get("ONLY", "")
        if only and only not in SERVERS:
            raise SystemExit(f"ONLY={only}: one of {', '.join(SERVERS)}")
        security = os.environ.get("SECURITY") or PLAINTEXT
        if security not in {PLAINTEXT, SASL_SSL}:
            raise SystemExit(f"SECURITY={security}: {PLAINTEXT} or {SASL_SSL}")
        return cls(
            rounds=int(os.environ.get("ROUNDS", "3")),
            records=int(os.environ.get("RECORDS", "400000")),
            only=only,
            security=security,
        )


def round_of(
    server: ServerProcess, contender: str, round_number: int, records: int
) -> Iterator[Sample]:
    """All workloads once against one server, each on a topic of its own."""

    def sample(workload: str, name: str, figures: Figures) -> Sample:
        return Sample(workload=workload, contender=name, round_number=round_number, figures=figures)

    def on_topic(kind: str, run: Callable[[str], Figures], flush: bool = False) -> Figures:
        topic = f"bench-{kind}-{round_number}"
        workloads.create_topic(server, topic, {"flush.messages": "1"} if flush else {})
        return run(topic)

    small = on_topic("16k", lambda topic: workloads.produce(server, topic, records, 16_384))
    yield sample(PRODUCE_16K, contender, small)
    recent = workloads.consume(server, f"bench-16k-{round_number}", records)
    yield sample(CONSUME_RECENT, contender, recent)
    if contender == KAFKA:
        few = max(records // FLUSHING_SHARE, 1)
        flushed = on_topic(
            "flush", lambda topic: workloads.produce(server, topic, few, 16_384), flush=True
        )
        yield sample(PRODUCE_16K, KAFKA_FLUSHING, flushed)
    large = on_topic("1m", lambda topic: workloads.produce(server, topic, records, 1 << 20))
    yield sample(PRODUCE_1M, contender, large)
    # By now the first topic has left Lakehead's log cache, if RECORDS is not made small.
    older = workloads.consume(server, f"bench-16k-{round_number}", records)
    yield sample(CONSUME_OLDER, contender, older)
    latency = on_topic("latency", lambda topic: workloads.latency(server, topic, LATENCY_RECORDS))
    yield sample(LATENCY, contender, latency)
    ended = on_topic(
        "transactions", lambda topic: workloads.transactions(server, topic, TRANSACTION_COUNT)
    )
    yield sample(TRANSACTIONS, contender, ended)
    if contender == KAFKA:
        ended = on_topic(
            "transactions-flush",
            lambda topic: workloads.transactions(server, topic, TRANSACTION_COUNT),
            flush=True,
        )
        yield sample(TRANSACTIONS, KAFKA_FLUSHING, ended)
    for kind in ("16k", "1m", "latency", "transactions") + (
        ("flush", "transactions-flush") if contender == KAFKA else ()
    ):
        workloads.delete_topic(server, f"bench-{kind}-{round_number}")


def warm_up(server: ServerProcess, records: int) -> None:
    """Run unmeasured first: a JVM compiles for most of a minute, and caches fill."""
    workloads.create_topic(server, "bench-warm", {})
    for _ in range(2):
        workloads.produce(server, "bench-warm", records, 16_384)
    workloads.consume(server, "bench-warm", records)
    workloads.delete_topic(server, "bench-warm")


def measure(plan: Plan, console: Console) -> Report:
    """Run everything and return the figures; servers and their data are gone afterwards."""
    names = {"lakehead": LAKEHEAD, "kafka": KAFKA}
    samples: list[Sample] = []
    with ExitStack() as stack:
        servers: dict[str, ServerProcess] = {}
        secured = None
        if plan.security == SASL_SSL:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
            secured = TlsAndSasl(Path(folder) / "ca")
        for key, make in SERVERS.items():
            if plan.only in ("", key):
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
                servers[names[key]] = stack.enter_context(make(Path(folder), secured))
        for contender, server in servers.items():
            console.print(f"warming {contender} up ...")
            warm_up(server, plan.records)
        for number in range(1, plan.rounds + 1):
            order = list(servers.items())
            for contender, server in order if number % 2 else reversed(order):
                for sample in round_of(server, contender, number, plan.records):
                    samples.append(sample)
                    console.print(_line(plan, sample), markup=False, soft_wrap=True)
        peaks = {name: server.usage().peak_rss_bytes for name, server in servers.items()}
    environment = machine(
        kafka=KAFKA_VERSION,
        java=java_version(),
        rounds=plan.rounds,
        records=plan.records,
        security=plan.security,
    )
    return Report(samples=tuple(samples), peak_rss_bytes=peaks, environment=environment)


def _line(plan: Plan, sample: Sample) -> str:
    figures = sample.figures
    if figures.mb_per_second is None:
        shown = f"p50 {figures.p50_ms:.0f} ms, p99 {figures.p99_ms:.0f} ms"
    else:
        shown = f"{figures.mb_per_second:.1f} MB/s, {figures.cpu_seconds_per_gb:.2f} CPU s/GB"
    return f"[{sample.round_number}/{plan.rounds}] {sample.contender}: {sample.workload}: {shown}"


def main() -> None:
    """Measure, show, keep. Ends with status 1 and one line if something is missing or failed."""
    console = Console(highlight=False)
    console.width = max(console.width, 100)  # where there is no terminal it would be 80
    plan = Plan.from_environment()
    began = time.monotonic()
    try:
        jars_directory()
        report = measure(plan, console)
    except (MissingTool, ServerFailed, RunFailed, KafkaException) as error:
        console.print(f"bench: {error}", markup=False)
        sys.exit(1)
    stamp = time.strftime("%Y%m%dT%H%M%S")
    path = Path(os.environ.get("KEEP") or f"bench/results/raw/{stamp}.json")
    save(report, path)
    show(report, console)
    console.print(f"{time.monotonic() - began:.0f} s in all; every figure is in {path}")


if __name__ == "__main__":
    main()
