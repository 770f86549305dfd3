"""Pages of the benchmark: README's table, the pages that are kept, and their plots."""

import json
import re
from pathlib import Path

import pytest

from bench import pages
from bench.contenders import CONTENDERS, LAKEHEAD
from bench.loads import LOADS
from bench.own_environment import NotInstalled
from bench.pages import BEGIN, END, FOLDER, README, ROWS, drawings, kept, page, speed, with_speed
from bench.plots import draw
from bench.report import Report, Sample, Spread, number, save
from bench.workloads import Figures

ENVIRONMENT = {
    "date": "2026-11-26",
    "cores": 2,
    "processor": "Test | CPU",
    "machine": "x86_64",
    "memory_kb": "8388608",
    "kernel": "6.1",
    "load_average": [0.5, 0.4, 0.3],
    "load_average_at_end": [2.5, 1, 1],
    "rounds": 3,
    "kafka": "4.3.0",
    "librdkafka": "2.12.1",
    "python": "3.13.1",
    "java": "17",
    "conditions": {"sizes": {"run_bytes": 1}, "pin": 0},
}


def report() -> Report:
    """Three rounds of the core loads, each figure different."""
    samples = []
    for place, (load, contender) in enumerate(
        (load, one) for load in LOADS for one in CONTENDERS if load.core and one.takes(load)
    ):
        for number_ in (1, 2, 3):
            value = 10.0 * (place + 1) + number_
            figures = Figures(
                mb_per_second=value,
                p50_ms=value / 10,
                p99_ms=value / 5,
                p999_ms=value / 2,
                cpu_seconds_per_gb=value / 20,
                peak_rss_bytes=value * 2**24,
                offered_mb_per_second=5.0 if load.share else None,
                requests_per_gb=value if contender is LAKEHEAD else None,
                dollars_per_tb=value / 10 if contender is LAKEHEAD else None,
            )
            samples.append(
                Sample(
                    load=load.name,
                    contender=contender.name,
                    round_number=number_,
                    figures=figures,
                )
            )
    return Report(samples=tuple(samples), environment=ENVIRONMENT)


def test_readme_has_the_table_of_the_newest_page() -> None:
    """Until a run is kept, README has figures that no page claims."""
    text = README.read_text()
    block = text[text.index(BEGIN) : text.index(END) + len(END)]
    if reports := kept():
        assert block == speed(*list(reports.items())[-1]), "run: python -m bench.pages"
    else:
        assert "docs/benchmarks/" not in block


def test_each_page_is_that_of_its_figures() -> None:
    stale = [
        name
        for name, one in kept().items()
        if (FOLDER / f"{name}.md").read_text() != page(name, one)
    ]
    assert stale == []
    named = {path.stem for path in FOLDER.glob("*.md")} - {"README", "profiles"}
    assert named == set(kept())


def test_the_table_has_each_row_with_the_median_of_each_contender() -> None:
    made = report()
    block = speed("name", made)
    for row in ROWS:
        spread = made.spread(row.load, LAKEHEAD.name, row.figure)
        assert spread is not None
        assert f"| {row.label} | {number(spread.median)} {row.unit} |" in block
    widths = {line.count(" | ") for line in block.splitlines() if line.startswith("| ")}
    assert widths == {len(CONTENDERS)}


def test_another_figure_makes_another_table() -> None:
    made = report()
    [first, *others] = made.samples
    faster = Sample(
        load=first.load,
        contender=first.contender,
        round_number=first.round_number,
        figures=Figures(mb_per_second=900.0),
    )
    changed = Report(samples=(faster, *others), environment=made.environment)
    assert speed("name", changed) != speed("name", made)


def test_a_new_block_takes_the_place_of_the_old_one_and_of_nothing_else() -> None:
    text = f"before\n{BEGIN}\nold \\1\n{END}\nafter\n"
    assert with_speed(text, speed("name", report())).startswith(f"before\n{BEGIN}\n")
    assert with_speed(text, "new \\1") == "before\nnew \\1\nafter\n"


def test_a_page_has_the_machine_each_load_and_each_failure() -> None:
    made = report()
    failed = Sample(
        load="latency", contender="Kafka", round_number=4, failure="Traceback\nno leader"
    )
    text = page("day", Report(samples=(*made.samples, failed), environment=made.environment))
    assert "| Load at the start, at the end | 0.5, 2.5 |" in text
    assert "- latency, Kafka: no leader" in text
    rows = [
        line for line in text.splitlines() if re.match(r"\| [\w-]+ \| (Lakehead|Kafka|Tansu)", line)
    ]
    assert len(rows) == len(made.cells())
    assert {row.replace("\\|", "").count("|") for row in rows} == {12}


def test_a_plot_shows_the_least_and_the_most_beside_each_median() -> None:
    made = report()
    for drawing in drawings("day", made):
        for series in drawing.series:
            assert all(
                least < y < most
                for least, y, most in zip(series.least, series.y, series.most, strict=True)
            )
    latency, cpu, cost = drawings("day", made)
    assert [series.name for series in latency.series][:2] == ["Lakehead, p50", "Lakehead, p99"]
    assert [series.name for series in cost.series] == ["Lakehead"]
    spread = made.spread("produce-16k", LAKEHEAD.name, "cpu_seconds_per_gb")
    assert spread == Spread(
        median=cpu.series[0].y[0], least=cpu.series[0].least[0], most=cpu.series[0].most[0]
    )


@pytest.mark.slow
def test_a_page_is_written_with_the_same_plots_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, folder, readme = tmp_path / "raw.json", tmp_path / "pages", tmp_path / "README.md"
    folder.mkdir()
    readme.write_text(f"# Name\n\n{BEGIN}\n{END}\n")
    save(report(), raw)
    monkeypatch.setattr(pages, "FOLDER", folder)
    monkeypatch.setattr(pages, "README", readme)
    try:
        name = pages.write(raw)
        first = {path.name: path.read_bytes() for path in folder.iterdir()}
        pages.write(raw)
    except NotInstalled as error:
        pytest.skip(str(error))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first
    assert set(first) == {
        f"{name}{end}" for end in (".json", ".md", "-cost.svg", "-cpu.svg", "-latency.svg")
    }
    assert speed(name, Report.from_document(json.loads(raw.read_text()))) in readme.read_text()
    draw([], tmp_path)
