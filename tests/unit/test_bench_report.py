"""The figures of a comparison: medians, spreads, ratios within a round, what is saved."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.contenders import KAFKA, KAFKA_FLUSHING, LAKEHEAD
from bench.report import Report, Sample, Spread, save, shown
from bench.workloads import Figures

LOAD = "produce-16k"


def report(**rates: list[float]) -> Report:
    names = {"ours": LAKEHEAD.name, "theirs": KAFKA.name, "flushed": KAFKA_FLUSHING.name}
    samples = [
        Sample(
            load=LOAD,
            contender=names[key],
            round_number=number,
            figures=Figures(mb_per_second=rate, p99_ms=1000 / rate),
        )
        for key, values in rates.items()
        for number, rate in enumerate(values, start=1)
    ]
    return Report(samples=tuple(samples), environment={"cores": 2})


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=9))
def test_a_median_lies_within_its_spread_and_halves_the_values(values: list[float]) -> None:
    spread = Spread.of(values)
    assert spread is not None
    assert spread.least == min(values) <= spread.median <= spread.most == max(values)
    assert sum(value <= spread.median for value in values) * 2 >= len(values)
    assert sum(value >= spread.median for value in values) * 2 >= len(values)


def test_nothing_measured_has_no_spread() -> None:
    assert Spread.of([]) is None
    assert report(ours=[1.0]).spread(LOAD, KAFKA.name, "mb_per_second") is None


def test_a_ratio_is_taken_within_a_round() -> None:
    """The machine halves its speed in the second round: no ratio notices."""
    found = report(ours=[100.0, 50.0, 100.0], theirs=[80.0, 40.0, 80.0])
    ratio = found.ratio(LOAD, "mb_per_second", KAFKA.name)
    assert ratio == Spread(median=1.25, least=1.25, most=1.25)


def test_a_round_that_lacks_one_of_both_has_no_ratio() -> None:
    found = report(ours=[100.0, 50.0], theirs=[80.0])
    assert found.ratio(LOAD, "mb_per_second", KAFKA.name) == Spread(
        median=1.25, least=1.25, most=1.25
    )
    assert found.ratio(LOAD, "mb_per_second", KAFKA_FLUSHING.name) is None


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    made = report(ours=[100.0, 50.0], theirs=[80.0, 30.0])
    save(made, tmp_path / "raw" / "one.json")
    document = json.loads((tmp_path / "raw" / "one.json").read_text())
    assert Report.from_document(document) == made
    assert document["ratios"][0]["contender"] == KAFKA.name
    assert [path.name for path in (tmp_path / "raw").iterdir()] == ["one.json"]


@pytest.mark.parametrize(
    ("values", "text"),
    [([1234.0], "1,234"), ([5.25, 5.35, 5.4], "5.35 (5.25 to 5.4)"), ([], "-")],
)
def test_a_spread_is_shown_with_three_digits(values: list[float], text: str) -> None:
    assert shown(Spread.of(values)) == text
