"""`make bench`: Lakehead and its peers on this machine, in turn, under Kafka's own clients.

LOADS=core      loads to run: core, all, names or patterns, between commas (bench/loads.py)
ONLY=lakehead   some contenders alone, between commas: lakehead, kafka, kafka-flush, and by choice
                    alone lakehead-s3 (object WAL and store on a local S3 server) and tansu
ROUNDS=3        how often each load is run against each contender
RECORDS=400000  size of a run, in records of 1 KiB
QUICK=1         one round of short runs, to see that they work
SECURITY=SASL_SSL  all over TLS, with SCRAM-SHA-512
KEEP=PATH       where the JSON goes (default: bench/results/raw/TIME.json); a run that was cut
                short goes on with what is there
"""

import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from rich.console import Console

from bench import figures, goals
from bench.apache_kafka.jars import KAFKA_VERSION, jars_directory
from bench.apache_kafka.server import java_version
from bench.comparison import (
    Rig,
    Sizes,
    Turn,
    missing,
    run,
    seconds,
    turns,
    warm_up,
    warming_seconds,
)
from bench.contenders import CONTENDERS, SERVERS, Contender
from bench.librdkafka.program import VERSION, program
from bench.loads import KIB, Client, Load, NoSuchLoad, chosen
from bench.maven import MissingTool
from bench.process import CUT_SHORT, NotEnoughCores, ServerFailed, ServerProcess, cores, on_cores
from bench.report import Report, Sample, machine, save, show
from bench.tls_and_sasl import TlsAndSasl
from bench.workloads import RunFailed

PLAINTEXT, SASL_SSL = "PLAINTEXT", "SASL_SSL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The choices of a run."""

    loads: tuple[Load, ...]
    contenders: tuple[Contender, ...]
    rounds: int
    sizes: Sizes
    security: str
    """Security protocol of the clients' listener."""
    pin: int
    """Cores of the servers, and others of the clients; 0 for all cores for both."""

    @classmethod
    def from_environment(cls) -> "Plan":
        """Return that of the variables, or end with one line about a wrong one."""
        only = [key for key in os.environ.get("ONLY", "").split(",") if key]
        known = [contender.key for contender in CONTENDERS]
        if unknown := set(only) - set(known):
            raise SystemExit(f"ONLY={','.join(sorted(unknown))}: some of {', '.join(known)}")
        security = os.environ.get("SECURITY") or PLAINTEXT
        if security not in {PLAINTEXT, SASL_SSL}:
            raise SystemExit(f"SECURITY={security}: {PLAINTEXT} or {SASL_SSL}")
        try:
            loads = chosen(os.environ.get("LOADS", ""))
        except NoSuchLoad as error:
            raise SystemExit(str(error)) from None
        quick = os.environ.get("QUICK", "") not in ("", "0")
        sizes = Sizes.quick() if quick else Sizes()
        if records := os.environ.get("RECORDS"):
            sizes = replace(sizes, run_bytes=int(records) * KIB)
        return cls(
            loads=loads,
            contenders=tuple(
                one for one in CONTENDERS if (one.key in only if only else one.by_default)
            ),
            rounds=int(os.environ.get("ROUNDS") or (1 if quick else 3)),
            sizes=sizes,
            security=security,
            pin=int(os.environ.get("PIN") or 0),
        )

    @property
    def turns(self) -> list[Turn]:
        """All runs in their order."""
        return list(turns(self.rounds, self.loads, self.contenders))

    @property
    def conditions(self) -> dict[str, Any]:
        """Choices that figures of one report must share."""
        return {"sizes": asdict(self.sizes), "security": self.security, "pin": self.pin}


def started(plan: Plan, stack: ExitStack) -> dict[str, ServerProcess]:
    """Start the servers of the contenders until the stack is left; their data goes with them."""
    secured = None
    if plan.security == SASL_SSL:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        secured = TlsAndSasl(Path(folder) / "ca")
    servers: dict[str, ServerProcess] = {}
    for key in dict.fromkeys(contender.server for contender in plan.contenders):
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        servers[key] = stack.enter_context(SERVERS[key](Path(folder), secured))
    return servers


def measure(plan: Plan, path: Path, console: Console) -> Report:
    """Run what `path` does not have yet, and keep each sample there as soon as it is made."""
    servers_cores, clients_cores = cores(plan.pin)
    report = kept(plan, path)
    left_over = missing(plan.turns, report.samples)
    left = sum(seconds(turn, plan.sizes) for turn in left_over)
    left += warming_seconds(plan.contenders, plan.sizes)
    console.print(
        f"{len(plan.loads)} loads, {len(left_over)} runs to do: about {left / 60:.0f} minutes. "
        f"If it is cut short, KEEP={path} goes on with it."
    )
    with ExitStack() as stack:
        with on_cores(servers_cores):
            servers = started(plan, stack)
        stack.enter_context(on_cores(clients_cores))
        for server in servers.values():
            console.print(f"warming {server.name} up ...")
            warm_up(server, plan.sizes)
        rig = Rig(servers=servers, sizes=plan.sizes, samples=list(report.samples))
        for sample in run(left_over, rig.measure):
            rig.samples.append(sample)
            now = {"load_average_at_end": os.getloadavg()}
            report = Report(samples=tuple(rig.samples), environment=report.environment | now)
            save(report, path)
            console.print(_line(plan, sample), markup=False, soft_wrap=True)
    return report


def kept(plan: Plan, path: Path) -> Report:
    """Return the report that is at `path`, without runs that failed, or an empty one of this
    machine. Ends with one line if the one there has other conditions.
    """
    if path.exists():
        report = Report.from_document(json.loads(path.read_text()))
        if report.environment["conditions"] != plan.conditions:
            raise SystemExit(f"KEEP={path}: its conditions are {report.environment['conditions']}")
        samples = tuple(sample for sample in report.samples if not sample.failure)
        return replace(report, samples=samples)
    environment = machine(
        kafka=KAFKA_VERSION,
        java=java_version(),
        librdkafka=VERSION,
        rounds=plan.rounds,
        conditions=plan.conditions,
    )
    return Report(samples=(), environment=environment)


def _line(plan: Plan, sample: Sample) -> str:
    found = sample.figures
    shown = []
    if sample.failure:
        shown.append("failed: " + sample.failure.strip().splitlines()[-1])
    if found.mb_per_second is not None:
        shown.append(f"{found.mb_per_second:.1f} MB/s")
    if found.p99_ms is not None:
        shown.append(f"p50 {found.p50_ms:.0f} ms, p99 {found.p99_ms:.0f} ms")
    if found.cpu_seconds_per_gb is not None:
        shown.append(f"{found.cpu_seconds_per_gb:.2f} CPU s/GB")
    place = f"[{sample.round_number}/{plan.rounds}] {sample.contender}: {sample.load}"
    return f"{place}: {', '.join(shown)}"


def main() -> None:
    """Measure, show, keep. Ends with status 1 if something is missing or a run failed."""
    console = Console(highlight=False)
    console.width = max(console.width, 150)  # where there is no terminal it would be 80
    plan = Plan.from_environment()
    stamp = time.strftime("%Y%m%dT%H%M%S")
    path = Path(os.environ.get("KEEP") or f"bench/results/raw/{stamp}.json")
    began = time.monotonic()
    try:
        jars_directory()
        if any(load.client is Client.LIBRDKAFKA for load in plan.loads):
            program()
        report = measure(plan, path, console)
    except (MissingTool, NotEnoughCores, ServerFailed, RunFailed, KafkaException) as error:
        console.print(f"bench: {error}", markup=False)
        sys.exit(1)
    except KeyboardInterrupt:
        console.print(f"bench: cut short; KEEP={path} goes on with it", markup=False)
        sys.exit(CUT_SHORT)
    show(report, console)
    if reached := goals.judged(report):
        figures.show("Goals", reached, console)
    console.print(f"{time.monotonic() - began:.0f} s in all; every figure is in {path}")
    sys.exit(any(sample.failure for sample in report.samples))


if __name__ == "__main__":
    main()
