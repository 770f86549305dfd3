"""Units of work in chunks for XCom: nothing is left out, nothing twice, and all of it is small."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.connectors.airflow.jobs import Chunk, cut, digest, job_named
from lakehead.storage.errors import SettingsError
from lakehead.storage.jobs.job import LINES_MAX, Planned, Unit, sum_of_fields
from lakehead.storage.jobs.options import names, truth

pytestmark = pytest.mark.xdist_group("airflow")

XCOM_BYTES_MAX = 2048

SIZES = st.integers(0, 1 << 40)
KEYS = st.text(min_size=0, max_size=200)
UNITS = st.lists(st.builds(lambda key, size: Unit(key=key, size=size), KEYS, SIZES), max_size=100)
COUNTS = st.integers(1, 70)
few = settings(max_examples=25)


@few
@given(UNITS, COUNTS)
def test_each_unit_is_in_one_chunk(units: list[Unit], count_max: int) -> None:
    chunks = cut(units, count_max)
    for unit in units:
        assert sum(chunk.has(unit.key) for chunk in chunks) == 1
    assert sum(chunk.units for chunk in chunks) == len(units)
    assert sum(chunk.size for chunk in chunks) == sum(unit.size for unit in units)


@few
@given(UNITS, COUNTS)
def test_chunks_are_few_and_small(units: list[Unit], count_max: int) -> None:
    chunks = cut(units, count_max)
    assert len(chunks) <= count_max
    for chunk in chunks:
        sent = json.dumps(chunk.to_json())
        assert len(sent) < XCOM_BYTES_MAX
        assert Chunk.of_json(json.loads(sent)) == chunk


@few
@given(UNITS, COUNTS)
def test_chunks_are_of_about_one_size(units: list[Unit], count_max: int) -> None:
    total = sum(max(unit.size, 1) for unit in units)
    by_digest: dict[str, int] = {}
    for unit in units:
        by_digest[digest(unit.key)] = by_digest.get(digest(unit.key), 0) + max(unit.size, 1)
    if len(by_digest) <= count_max:
        assert len(cut(units, count_max)) == len(by_digest)
        return
    largest = max(by_digest.values())
    for chunk in cut(units, count_max):
        assert chunk.size <= -(-total // count_max) + largest


@few
@given(UNITS, UNITS, COUNTS)
def test_a_chunk_means_the_same_in_another_plan(
    units: list[Unit], later: list[Unit], count_max: int
) -> None:
    """A task plans again when others have done their part, and when more has come."""
    chunks = cut(units, count_max)
    for chunk in chunks:
        first = {unit.key for unit in units if chunk.has(unit.key)}
        left = {unit.key for unit in [*units[::2], *later] if chunk.has(unit.key)}
        assert {unit.key for unit in units[::2]} & first <= left


@pytest.mark.parametrize(
    ("name", "count", "size", "tasks"),
    [
        ("verify", 45, 1, 1),
        ("verify", 2500, 1, 3),
        ("compact_objects", 10, 64 << 20, 5),
        ("sweep", 1000, 1 << 30, 1),
        ("sweep", 40_001, 1, 3),
        ("materialize", 45, 1, 45),
        ("verify", 0, 0, 1),
    ],
)
def test_small_work_shares_a_task(name: str, count: int, size: int, tasks: int) -> None:
    units = tuple(Unit(key=str(number), size=size) for number in range(count))
    assert job_named(name).tasks_worth(Planned(units=units)) == tasks


@pytest.mark.parametrize("item", [{}, {"first": "0"}, {"label": "x", "units": 1}])
def test_an_item_of_another_making_is_refused(item: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=r"expand\(item=plan.output\)"):
        Chunk.of_json(item)


def test_figures_add_up_and_lines_stay_few() -> None:
    one = {"bytes": 1, "damages": ["a"] * 15, "old": "", "is_new": True}
    more = {"bytes": 2, "damages": ["b"] * 15, "old": "x", "is_new": False, "objects": 3}
    both = sum_of_fields(one, more)
    assert both["bytes"] == 3
    assert both["objects"] == 3
    assert (both["old"], both["is_new"]) == ("x", True)
    assert len(both["damages"]) == LINES_MAX


@pytest.mark.parametrize("given_as", ["a, b", "a b", ["a", "b"], ("a", "b")])
def test_names_come_as_lists_and_as_texts(given_as: object) -> None:
    assert names(given_as) == ("a", "b")


def test_a_truth_value_may_be_a_template_s_text() -> None:
    assert truth("True")
    assert truth(1)
    assert not truth("false")
    with pytest.raises(ValueError, match="perhaps"):
        truth("perhaps")
