"""Bounds that engines skip files by: they must hold for every row."""

import datetime as dt
import itertools
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from lakehead.lake.tables.data_file import FileStatistics

UTC_MICROSECONDS = pa.timestamp("us", tz="UTC")


def statistics(**columns: pa.Array) -> dict[str, Any]:
    return of_pieces(pa.table(columns))


def of_pieces(*pieces: pa.Table) -> dict[str, Any]:
    collected = FileStatistics()
    for piece in pieces:
        collected.add(piece)
    found: dict[str, Any] = json.loads(collected.text())
    return found


def test_counts_and_bounds_of_plain_columns() -> None:
    found = statistics(
        n=pa.array([3, None, -1]),
        s=pa.array(["b", "a", None]),
        d=pa.array([dt.date(2013, 1, 1), None, dt.date(1969, 12, 31)]),
        f=pa.array([1.5, -0.5, None]),
        nothing=pa.array([None] * 3, pa.string()),
    )
    assert found == {
        "numRecords": 3,
        "minValues": {"n": -1, "s": "a", "d": "1969-12-31", "f": -0.5},
        "maxValues": {"n": 3, "s": "b", "d": "2013-01-01", "f": 1.5},
        "nullCount": {"n": 1, "s": 1, "d": 1, "f": 1, "nothing": 3},
    }


def test_an_empty_file_and_chunks() -> None:
    assert statistics(n=pa.array([], pa.int64()))["nullCount"] == {"n": 0}
    chunks = pa.table({"n": pa.chunked_array([[1], [None, 5], []], pa.int64())})
    assert of_pieces(chunks)["maxValues"] == {"n": 5}


def test_instants_are_rounded_outwards_to_milliseconds() -> None:
    micros = pa.array([-1, 1_700_000_000_123_456], pa.int64()).cast(UTC_MICROSECONDS)
    found = statistics(t=micros)
    assert found["minValues"]["t"] == "1969-12-31T23:59:59.999Z"
    assert found["maxValues"]["t"] == "2023-11-14T22:13:20.124Z"


def test_long_text_is_cut_to_bounds_that_still_hold() -> None:
    long = "x" * 40
    found = statistics(s=pa.array([long]))
    assert found["minValues"]["s"] == "x" * 32
    assert found["maxValues"]["s"] == "x" * 32 + "\U0010ffff"
    last = "x" * 32 + "\U0010ffff" * 3
    assert "s" not in statistics(s=pa.array([last]))["maxValues"]


def test_what_has_no_safe_bound_has_none() -> None:
    found = statistics(
        nan=pa.array([1.0, float("nan")]),
        infinite=pa.array([1.0, float("inf")]),
        b=pa.array([b"x", b"y"]),
        flag=pa.array([True, False]),
        money=pa.array([Decimal("1.25"), Decimal("2.50")]),
        many=pa.array([[1], None]),
    )
    assert found["minValues"] == found["maxValues"] == {}
    assert found["nullCount"]["many"] == 1


def test_bounds_hold_for_zeros_of_both_signs() -> None:
    """Engines that sort -0.0 before 0.0, as DataFusion does, must find both."""
    for zeros in itertools.permutations([0.0, -0.0]):
        found = statistics(f=pa.array(zeros))
        low, high = found["minValues"]["f"], found["maxValues"]["f"]
        assert (math.copysign(1, low), math.copysign(1, high)) == (-1, 1)
    joined = of_pieces(*(pa.table({"f": pa.array([zero])}) for zero in (-0.0, 0.0)))
    assert math.copysign(1, joined["maxValues"]["f"]) == 1


def test_fields_of_a_null_struct_are_null() -> None:
    found = statistics(o=pa.array([{"x": 1, "y": {"z": None}}, None, {"x": None, "y": {"z": 7}}]))
    assert found["nullCount"] == {"o": {"x": 2, "y": {"z": 2}}}
    assert found["minValues"] == found["maxValues"] | {} == {"o": {"x": 1, "y": {"z": 7}}}


@given(st.lists(st.text() | st.none(), min_size=1))
def test_text_bounds_hold_in_the_order_of_utf8(values: list[str | None]) -> None:
    found = statistics(s=pa.array(values, pa.string()))
    present = [value.encode() for value in values if value is not None]
    if present:
        assert found["minValues"]["s"].encode() <= min(present)
        high = found["maxValues"].get("s")
        assert high is None or high.encode() >= max(present)


@given(st.lists(st.integers(-62_135_596_800_000_000, 253_402_300_799_000_000), min_size=1))
def test_instant_bounds_hold(micros: list[int]) -> None:
    column = pa.array(micros, pa.int64()).cast(UTC_MICROSECONDS)
    found = statistics(t=column)
    low = pc.strptime(found["minValues"]["t"][:19], "%Y-%m-%dT%H:%M:%S", "us").cast(pa.int64())
    high = pc.strptime(found["maxValues"]["t"][:19], "%Y-%m-%dT%H:%M:%S", "us").cast(pa.int64())
    assert low.as_py() <= min(micros)
    assert high.as_py() + 999_000 >= max(micros)


TEXT = st.text(st.sampled_from("ab\U0010ffff"), max_size=40) | st.none()
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.integers(-5, 5) | st.none(),
            "f": st.sampled_from((None, 1.5, -0.0, float("nan"), float("inf"))),
            "s": TEXT,
            "t": st.integers(-(10**15), 10**16).map(lambda at: at * 7) | st.none(),
            "o": st.none() | st.fixed_dictionaries({"x": st.integers(0, 9) | st.none()}),
        }
    ),
    max_size=12,
)
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("t", UTC_MICROSECONDS),
        ("o", pa.struct([("x", pa.int32())])),
    ]
)


@given(ROWS, st.lists(st.integers(0, 12), max_size=4))
def test_pieces_tell_what_the_whole_tells(rows: list[dict[str, Any]], cuts: list[int]) -> None:
    whole = pa.Table.from_pylist(rows, SCHEMA)
    ends = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    pieces = [whole.slice(start, stop - start) for start, stop in itertools.pairwise(ends)]
    if pieces:
        assert of_pieces(*pieces) == of_pieces(whole)
