"""Pages of kept comparisons: `python -m bench.pages bench/results/raw/TIME.json`.

Writes `docs/benchmarks/DATE-CORES-cores.md`, its plots and its figures, and README's table, which
is that of the newest page. NAME=... names the page otherwise.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.contenders import CONTENDERS
from bench.loads import LOADS, Kind
from bench.own_environment import NotInstalled
from bench.plots import Drawing, Series, draw
from bench.report import COMPARED, Report, Spread, number, shown

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "benchmarks"
README = ROOT / "README.md"
SHOWN = (*COMPARED, "requests_per_gb", "dollars_per_tb")
"""Figures of the page's table."""
BEGIN = "<!-- speed: made by `python -m bench.pages` -->"
END = "<!-- end of speed -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of README's table: a figure of a load, with its unit."""

    label: str
    load: str
    figure: str
    unit: str


ROWS = (
    Row(
        label="Produce, `batch.size` 16 KiB",
        load="produce-16k",
        figure="mb_per_second",
        unit="MB/s",
    ),
    Row(
        label="Broker CPU per GB of that", load="produce-16k", figure="cpu_seconds_per_gb", unit="s"
    ),
    Row(
        label="Produce, `batch.size` 1 MiB", load="produce-1m", figure="mb_per_second", unit="MB/s"
    ),
    Row(
        label="Broker CPU per GB of that", load="produce-1m", figure="cpu_seconds_per_gb", unit="s"
    ),
    Row(label="Consume recent data", load="consume-recent", figure="mb_per_second", unit="MB/s"),
    Row(
        label="Broker CPU per GB of that",
        load="consume-recent",
        figure="cpu_seconds_per_gb",
        unit="s",
    ),
    Row(
        label="Consume older data (objects; Kafka: page cache)",
        load="consume-older",
        figure="mb_per_second",
        unit="MB/s",
    ),
    Row(
        label="Broker CPU per GB of that",
        load="consume-older",
        figure="cpu_seconds_per_gb",
        unit="s",
    ),
    Row(label="At half of the full rate, p99", load="paced-50", figure="p99_ms", unit="ms"),
    Row(label="End to end, p50", load="latency", figure="p50_ms", unit="ms"),
    Row(label="End to end, p99", load="latency", figure="p99_ms", unit="ms"),
)


def kept() -> dict[str, Report]:
    """Return the reports that have a page, by its name, the newest last."""
    return {
        path.stem: Report.from_document(json.loads(path.read_text()))
        for path in sorted(FOLDER.glob("*.json"))
    }


def speed(name: str, report: Report) -> str:
    """Return README's block, from its first mark to its last."""
    names = [one.name for one in CONTENDERS if one.name in {cell[1] for cell in report.cells()}]
    lines = [
        BEGIN,
        "",
        (
            f"Medians of {report.environment['rounds']} rounds, {_machine(report)}; 1 KiB records, "
            f"`acks=all`, [ranges and ratios](docs/benchmarks/{name}.md)."
        ),
        "",
        "| | " + " | ".join(names) + " |",
        "| --- |" + " ---: |" * len(names),
    ]
    for row in ROWS:
        values = [_value(report.spread(row.load, one, row.figure), row.unit) for one in names]
        if any(values):
            lines.append(f"| {row.label} | {' | '.join(values)} |")
    peaks = [report.peak_rss_bytes(one) for one in names]
    shown_peaks = (f"{peak / 2**30:.1f} GB" if peak else "" for peak in peaks)
    lines += [f"| Peak memory | {' | '.join(shown_peaks)} |", "", END]
    return "\n".join(lines)


def page(name: str, report: Report) -> str:
    """Return the page of a report."""
    environment = report.environment
    before, after = environment["load_average"], environment.get("load_average_at_end", [0, 0, 0])
    facts = {
        "Date": environment["date"],
        "Machine": _machine(report),
        "Memory": f"{int(environment['memory_kb'] or 0) / 2**20:.0f} GB",
        "Kernel": environment["kernel"],
        "Load at the start, at the end": f"{before[0]:.1f}, {after[0]:.1f}",
        "Versions": ", ".join(
            f"{tool} {environment[tool]}" for tool in ("kafka", "librdkafka", "python", "java")
        ),
        "Rounds": str(environment["rounds"]),
        "Conditions": ", ".join(f"{key} {value}" for key, value in _conditions(report)),
    }
    plots = [f"![{one.title}]({one.file})\n" for one in drawings(name, report)]
    failures = [
        f"- {one.load}, {one.contender}: {one.failure.strip().splitlines()[-1]}"
        for one in report.samples
        if one.failure
    ]
    return "\n".join(
        [
            f"# Benchmark {name}\n",
            (
                "Made by `python -m bench.pages`; [the method](README.md). A figure is the median "
                "of the rounds, with the least and the largest value. A ratio is Lakehead's figure "
                "divided by the peer's in the same round.\n"
            ),
            "| | |",
            "| --- | --- |",
            *(f"| {key} | {value} |" for key, value in facts.items()),
            "",
            *plots,
            *_table(report),
            *(["", "## Failed runs\n", *failures] if failures else []),
            "",
        ]
    )


def _table(report: Report) -> Iterator[str]:
    heads = (
        *("MB/s", "p50 ms", "p99 ms", "p99.9 ms", "CPU s/GB", "Requests/GB", "Dollars/TB"),
        *("Ratio, MB/s", "Ratio, p99"),
    )
    yield "## All figures\n"
    yield "| Load | Broker | " + " | ".join(heads) + " |"
    yield "| --- | --- |" + " ---: |" * len(heads)
    for load, contender in report.cells():
        cells = [shown(report.spread(load, contender, figure)) for figure in SHOWN]
        cells += [
            shown(report.ratio(load, figure, contender)) if contender != "Lakehead" else ""
            for figure in ("mb_per_second", "p99_ms")
        ]
        yield f"| {load} | {contender} | " + " | ".join(cells) + " |"


def drawings(name: str, report: Report) -> list[Drawing]:
    """Return the plots that a report has figures for."""
    contenders = list(dict.fromkeys(contender for _, contender in report.cells()))
    paced = [load.name for load in LOADS if load.kind is Kind.PACED]
    moved = [load.name for load in LOADS if load.kind in {Kind.PRODUCE, Kind.CONSUME} and load.core]
    latencies = [
        series
        for contender in contenders
        for figure, title in (("p50_ms", "p50"), ("p99_ms", "p99"))
        if (series := _over_load(report, contender, figure, title, paced))
    ]
    costs = [
        series
        for one in contenders
        if (series := _by_load(report, one, "cpu_seconds_per_gb", moved))
    ]
    found = []
    if latencies:
        found.append(
            Drawing(
                file=f"{name}-latency.svg",
                title="Latency of acknowledgements over load",
                x_label="MB/s offered",
                y_label="ms",
                series=latencies,
                is_logarithmic=True,
            )
        )
    if costs:
        found.append(
            Drawing(
                file=f"{name}-cpu.svg",
                title="CPU of the broker",
                x_label="",
                y_label="CPU seconds per GB",
                series=costs,
            )
        )
    prices = [
        series for one in contenders if (series := _by_load(report, one, "dollars_per_tb", moved))
    ]
    if prices:
        found.append(
            Drawing(
                file=f"{name}-cost.svg",
                title="Requests to the object store, at S3 Standard's list prices",
                x_label="",
                y_label="dollars per TB",
                series=prices,
            )
        )
    return found


def _over_load(
    report: Report, contender: str, figure: str, title: str, loads: list[str]
) -> Series | None:
    points = [
        (rate.median, spread)
        for load in loads
        if (rate := report.spread(load, contender, "offered_mb_per_second"))
        and (spread := report.spread(load, contender, figure))
    ]
    return _series(f"{contender}, {title}", points, is_dashed=title == "p50")


def _by_load(report: Report, contender: str, figure: str, loads: list[str]) -> Series | None:
    points = [
        (load, spread) for load in loads if (spread := report.spread(load, contender, figure))
    ]
    return _series(contender, points)


def _series(
    name: str,
    points: list[tuple[float, Spread]] | list[tuple[str, Spread]],
    *,
    is_dashed: bool = False,
) -> Series | None:
    if not points:
        return None
    return Series(
        name=name,
        x=[x for x, _ in points],
        y=[spread.median for _, spread in points],
        least=[spread.least for _, spread in points],
        most=[spread.most for _, spread in points],
        is_dashed=is_dashed,
    )


def _machine(report: Report) -> str:
    environment = report.environment
    processor = environment["processor"] or environment["machine"]
    return f"{environment['cores']} cores ({processor})".replace("|", "\\|")


def _conditions(report: Report) -> Iterator[tuple[str, object]]:
    conditions = report.environment["conditions"]
    yield from conditions["sizes"].items()
    yield from ((key, value) for key, value in conditions.items() if key != "sizes")


def _value(spread: Spread | None, unit: str) -> str:
    return f"{number(spread.median)} {unit}" if spread else ""


def with_speed(text: str, block: str) -> str:
    """Return README's text with the block in the place of the one that it has."""
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, text, flags=re.DOTALL)


def write(raw: Path, name: str = "") -> str:
    """Write the page of the report in a file; return its name. Raises NotInstalled if its plots
    cannot be drawn.
    """
    report = Report.from_document(json.loads(raw.read_text()))
    environment = report.environment
    name = name or f"{environment['date']}-{environment['cores']}-cores"
    draw(drawings(name, report), FOLDER)
    shutil.copyfile(raw, FOLDER / f"{name}.json")
    (FOLDER / f"{name}.md").write_text(page(name, report))
    newest, its_report = list(kept().items())[-1]
    README.write_text(with_speed(README.read_text(), speed(newest, its_report)))
    return name


def main() -> None:
    """Write a page from the file that is named on the command line."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m bench.pages bench/results/raw/TIME.json")
    try:
        name = write(Path(sys.argv[1]), os.environ.get("NAME", ""))
    except NotInstalled as error:
        raise SystemExit(f"pages: {error}") from None
    print(f"docs/benchmarks/{name}.md, and README's table is that of the newest page")


if __name__ == "__main__":
    main()
