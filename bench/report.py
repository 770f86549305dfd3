"""The figures of a benchmark: medians, ratios, goals; as a table for people and JSON for tools."""

import dataclasses
import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.workloads import Figures

LAKEHEAD, KAFKA, KAFKA_FLUSHING = "Lakehead", "Kafka", "Kafka, flush.messages=1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measured run."""

    workload: str
    contender: str
    round_number: int
    figures: Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Our median throughput on `workload` is at least `ratio` times that of `rival`."""

    workload: str
    rival: str
    ratio: float


GOALS = (
    Goal(workload="produce, 16 KiB batches", rival=KAFKA, ratio=1.0),
    Goal(workload="produce, 16 KiB batches", rival=KAFKA_FLUSHING, ratio=2.0),
    Goal(workload="consume recent data", rival=KAFKA, ratio=0.8),
    Goal(workload="consume older data", rival=KAFKA, ratio=0.8),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Every sample of a benchmark, and its machine."""

    samples: tuple[Sample, ...]
    peak_rss_bytes: dict[str, int]
    environment: dict[str, Any]

    def median(self, workload: str, contender: str, figure: str) -> float | None:
        """Median of a figure over the rounds; None if it was not measured."""
        values = [
            value
            for sample in self.samples
            if (sample.workload, sample.contender) == (workload, contender)
            and (value := getattr(sample.figures, figure)) is not None
        ]
        return statistics.median(values) if values else None

    def ratio(self, goal: Goal) -> float | None:
        """Our median throughput as a multiple of the rival's; None if either is missing."""
        ours = self.median(goal.workload, LAKEHEAD, "mb_per_second")
        theirs = self.median(goal.workload, goal.rival, "mb_per_second")
        return ours / theirs if ours is not None and theirs else None


def machine(**parameters: Any) -> dict[str, Any]:
    """Machine and versions of the run."""
    return {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
    } | parameters


def save(report: Report, path: Path) -> None:
    """Write samples, medians and goals as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "environment": report.environment,
        "peak_rss_bytes": report.peak_rss_bytes,
        "medians": [
            {"workload": workload, "contender": contender}
            | {name: report.median(workload, contender, name) for name in _FIGURES}
            for workload, contender in _cells(report)
        ],
        "goals": [dataclasses.asdict(goal) | {"reached": report.ratio(goal)} for goal in GOALS],
        "samples": [dataclasses.asdict(sample) for sample in report.samples],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def show(report: Report, console: Console) -> None:
    """Print the medians with the range of the throughput, then the goals."""
    table = Table(title="Medians: 1 KiB records, 4 partitions, acks=all", title_justify="left")
    for heading in ("workload", "broker"):
        table.add_column(heading)
    for heading in ("MB/s", "range", "p50 ms", "p99 ms", "CPU s/GB"):
        table.add_column(heading, justify="right")
    previous = ""
    for workload, contender in _cells(report):
        if workload != previous and previous:
            table.add_section()
        table.add_row(
            workload if workload != previous else "",
            contender,
            _number(report.median(workload, contender, "mb_per_second"), 1),
            _range(report.samples, workload, contender),
            _number(report.median(workload, contender, "p50_ms"), 0),
            _number(report.median(workload, contender, "p99_ms"), 0),
            _number(report.median(workload, contender, "cpu_seconds_per_gb"), 2),
        )
        previous = workload
    console.print(table)
    peaks = (f"{name} {rss / 2**20:.0f} MB" for name, rss in report.peak_rss_bytes.items())
    console.print("Peak memory: " + ", ".join(peaks))
    goals = Table(title="Goals", title_justify="left")
    for heading in ("workload", "against"):
        goals.add_column(heading)
    for heading in ("goal", "reached"):
        goals.add_column(heading, justify="right")
    for goal in GOALS:
        reached = report.ratio(goal)
        colour = "green" if reached is not None and reached >= goal.ratio else "red"
        goals.add_row(
            goal.workload,
            goal.rival,
            f">= {goal.ratio:.2f}",
            f"[{colour}]{_number(reached, 2)}[/{colour}]",
        )
    console.print(goals)


_FIGURES = tuple(field.name for field in dataclasses.fields(Figures))


def _cells(report: Report) -> list[tuple[str, str]]:
    """Workloads in the order they were first run, within each the contenders likewise."""
    pairs = dict.fromkeys((sample.workload, sample.contender) for sample in report.samples)
    order = list(dict.fromkeys(workload for workload, _ in pairs))
    return sorted(pairs, key=lambda pair: order.index(pair[0]))


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _range(samples: Sequence[Sample], workload: str, contender: str) -> str:
    rates = [
        sample.figures.mb_per_second
        for sample in samples
        if (sample.workload, sample.contender) == (workload, contender)
        and sample.figures.mb_per_second is not None
    ]
    return f"{min(rates):.0f}-{max(rates):.0f}" if rates else "-"
