"""The figures of a comparison: medians with their spread, and ratios to each peer.

A ratio is taken within a round, where both were measured minutes apart; its median and spread are
those of the rounds.
"""

import dataclasses
import json
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.table import Table

from bench.contenders import LAKEHEAD
from bench.workloads import Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run of a load. One that failed has the reason for it, and no figures."""

    load: str
    contender: str
    """Its name."""
    round_number: int
    figures: Figures = field(default_factory=Figures)
    failure: str = ""

    @property
    def place(self) -> tuple[int, str, str]:
        """Round, load and contender: once in a comparison."""
        return self.round_number, self.load, self.contender


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A median, and the least and the largest value."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """Return that of some values; None without any."""
        if not values:
            return None
        return cls(median=statistics.median(values), least=min(values), most=max(values))


UNITS = {
    "mb_per_second": "MB/s",
    "p50_ms": "ms",
    "p99_ms": "ms",
    "p999_ms": "ms",
    "cpu_seconds_per_gb": "CPU s/GB",
    "peak_rss_bytes": "bytes",
    "offered_mb_per_second": "MB/s",
    "requests_per_gb": "requests/GB",
    "dollars_per_tb": "dollars/TB",
}
"""Unit of each figure."""
MORE_IS_BETTER = frozenset({"mb_per_second"})
COMPARED = ("mb_per_second", "p50_ms", "p99_ms", "p999_ms", "cpu_seconds_per_gb")
"""Figures that are set in a ratio to each peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Samples of a comparison, and its machine."""

    samples: tuple[Sample, ...]
    environment: dict[str, Any]

    def cells(self) -> list[tuple[str, str]]:
        """Return loads in the order of their first run, each with its contenders likewise."""
        pairs = dict.fromkeys((sample.load, sample.contender) for sample in self.samples)
        order = list(dict.fromkeys(load for load, _ in pairs))
        return sorted(pairs, key=lambda pair: order.index(pair[0]))

    def by_round(self, load: str, contender: str, figure: str) -> dict[int, float]:
        """Return a figure in each round that has it."""
        return {
            sample.round_number: value
            for sample in self.samples
            if (sample.load, sample.contender) == (load, contender)
            and (value := getattr(sample.figures, figure)) is not None
        }

    def spread(self, load: str, contender: str, figure: str) -> Spread | None:
        """Return a figure over the rounds; None if it was not measured."""
        return Spread.of(list(self.by_round(load, contender, figure).values()))

    def ratio(self, load: str, figure: str, peer: str) -> Spread | None:
        """Return Lakehead's figure as a multiple of a peer's in the same round; None if no round
        has both.
        """
        return self.ratio_of((load, LAKEHEAD.name), (load, peer), figure)

    def ratio_of(self, cell: tuple[str, str], other: tuple[str, str], figure: str) -> Spread | None:
        """Return a figure of a load and contender as a multiple of that of another pair in the same
        round; None if no round has both.
        """
        ours, theirs = self.by_round(*cell, figure), self.by_round(*other, figure)
        return Spread.of([ours[n] / theirs[n] for n in ours if theirs.get(n)])

    def peak_rss_bytes(self, contender: str) -> float | None:
        """Return the largest memory of a contender's server in all loads."""
        return max(
            (
                sample.figures.peak_rss_bytes
                for sample in self.samples
                if sample.contender == contender and sample.figures.peak_rss_bytes is not None
            ),
            default=None,
        )

    def document(self) -> dict[str, Any]:
        """Return all of it as JSON has it: samples, medians, ratios."""
        return {
            "environment": self.environment,
            "medians": list(self._summaries(self.spread, tuple(UNITS))),
            "ratios": list(
                self._summaries(
                    lambda load, peer, figure: (
                        None if peer == LAKEHEAD.name else self.ratio(load, figure, peer)
                    ),
                    COMPARED,
                )
            ),
            "samples": [dataclasses.asdict(sample) for sample in self.samples],
        }

    def _summaries(
        self, of: Callable[[str, str, str], Spread | None], figures: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        for load, contender in self.cells():
            found = {name: spread for name in figures if (spread := of(load, contender, name))}
            if found:
                shown = {name: dataclasses.asdict(spread) for name, spread in found.items()}
                yield {"load": load, "contender": contender, **shown}

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Self:
        """Return a report that was saved."""
        samples = (
            Sample(**{**sample, "figures": Figures(**sample["figures"])})
            for sample in document["samples"]
        )
        return cls(samples=tuple(samples), environment=document["environment"])


def machine(**parameters: Any) -> dict[str, Any]:
    """Machine, versions and load of this moment, with parameters of a run."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "processor": _line(Path("/proc/cpuinfo"), r"model name\s*: (.+)"),
        "memory_kb": _line(Path("/proc/meminfo"), r"MemTotal:\s*(\d+) kB"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
    } | parameters


def _line(path: Path, pattern: str) -> str:
    found = re.search(pattern, path.read_text()) if path.exists() else None
    return found[1] if found else ""


def save(report: Report, path: Path) -> None:
    """Write all of a report as JSON, at once or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(report.document(), indent=1) + "\n")
    beside.replace(path)


def show(report: Report, console: Console) -> None:
    """Print medians with their spread, and ratios to each peer."""
    table = Table(title="Medians (least to most)", title_justify="left")
    for heading in ("load", "broker"):
        table.add_column(heading)
    for heading in ("MB/s", "p50 ms", "p99 ms", "p99.9 ms", "CPU s/GB", "Lakehead is"):
        table.add_column(heading, justify="right")
    previous = ""
    for load, contender in report.cells():
        if load != previous and previous:
            table.add_section()
        figures = (shown(report.spread(load, contender, name)) for name in COMPARED)
        table.add_row(
            load if load != previous else "", contender, *figures, _ratio(report, load, contender)
        )
        previous = load
    console.print(table)
    peaks = {
        contender: rss
        for _, contender in report.cells()
        if (rss := report.peak_rss_bytes(contender))
    }
    texts = (f"{name} {rss / 2**20:.0f} MB" for name, rss in peaks.items())
    console.print("Peak memory of the servers: " + ", ".join(texts))


def shown(spread: Spread | None) -> str:
    """Return a spread as text: the median, and the range of several values."""
    if spread is None:
        return "-"
    if spread.least == spread.most:
        return number(spread.median)
    return f"{number(spread.median)} ({number(spread.least)} to {number(spread.most)})"


def number(value: float) -> str:
    """Return a figure with three digits, and more only before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _ratio(report: Report, load: str, peer: str) -> str:
    """The ratio of the rates; of the 99th percentiles where the rate was given or not measured."""
    if peer == LAKEHEAD.name:
        return ""
    figures = [("mb_per_second", "x"), ("p99_ms", "x p99")]
    if report.spread(load, peer, "offered_mb_per_second"):
        figures.reverse()
    for figure, text in figures:
        if ratio := report.ratio(load, figure, peer):
            return f"{shown(ratio)} {text}"
    return "-"
