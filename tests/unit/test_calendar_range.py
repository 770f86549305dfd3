"""Times that a table does not hold are faults of their record, wherever in a value they are."""

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.lake.tables.values.calendar_range import (
    FIRST_DAY,
    FIRST_US,
    LAST_DAY,
    LAST_US,
    rows_beyond,
)
from tests.support.repetitions import examples

INSTANT, DAY = pa.timestamp("us", tz="UTC"), pa.date32()
instants = st.none() | st.sampled_from(
    [FIRST_US - 1, FIRST_US, 0, LAST_US, LAST_US + 1, -(2**63), 2**63 - 1]
)
days = st.none() | st.sampled_from(
    [FIRST_DAY - 1, FIRST_DAY, 0, LAST_DAY, LAST_DAY + 1, -(2**31), 2**31 - 1]
)
SHAPES: dict[str, tuple[Any, Any]] = {
    "instant": (INSTANT, instants),
    "day": (DAY, days),
    "struct": (
        pa.struct([("at", INSTANT), ("n", pa.int32())]),
        st.none() | st.fixed_dictionaries({"at": instants, "n": st.just(1)}),
    ),
    "list": (pa.list_(DAY), st.none() | st.lists(days, max_size=3)),
    "list of structs": (
        pa.list_(pa.struct([("on", DAY)])),
        st.none() | st.lists(st.none() | st.fixed_dictionaries({"on": days}), max_size=3),
    ),
    "map": (
        pa.map_(pa.string(), INSTANT),
        st.none() | st.lists(st.tuples(st.just("k"), instants), max_size=2),
    ),
    "neither": (pa.list_(pa.string()), st.none() | st.lists(st.just("x"), max_size=2)),
}


def is_beyond(kind: Any, value: Any) -> bool:
    """Told value by value."""
    if value is None:
        return False
    if pa.types.is_struct(kind):
        return any(is_beyond(field.type, value[field.name]) for field in kind)
    if pa.types.is_map(kind):
        return any(is_beyond(kind.item_type, item) for _, item in value)
    if pa.types.is_list(kind):
        return any(is_beyond(kind.value_type, item) for item in value)
    if kind == INSTANT:
        return not FIRST_US <= value <= LAST_US
    return kind == DAY and not FIRST_DAY <= value <= LAST_DAY


@pytest.mark.parametrize("shape", SHAPES)
@settings(deadline=None, max_examples=examples(60))
@given(data=st.data(), start=st.integers(0, 2), cut=st.integers(0, 6))
def test_rows_beyond_are_those_that_hold_one_such_value(
    shape: str, data: st.DataObject, start: int, cut: int
) -> None:
    kind, values = SHAPES[shape]
    rows = data.draw(st.lists(values, max_size=6))
    whole = (
        pa.array(rows, _plain(kind)).view(kind) if kind in (INSTANT, DAY) else _built(rows, kind)
    )
    expected = [is_beyond(kind, value) for value in rows]
    for array, wanted in (
        (whole, expected),
        (whole.slice(start), expected[start:]),
        (pa.chunked_array([whole.slice(0, cut), whole.slice(cut)], kind), expected),
    ):
        found = rows_beyond(array)
        assert (found is None) == (not any(wanted))
        assert found is None or found.tolist() == wanted


def _plain(kind: Any) -> Any:
    """The type of the numbers below a type."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _plain(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    return {INSTANT: pa.int64(), DAY: pa.int32()}.get(kind, kind)


def _built(rows: list[Any], kind: Any) -> Any:
    return pa.array(rows, _plain(kind)).cast(kind)


def test_the_edges_are_those_of_python() -> None:
    for day, of_python in ((FIRST_DAY, dt.date.min), (LAST_DAY, dt.date.max)):
        assert np.datetime64(day, "D").astype(object) == of_python
    last = dt.datetime.max.replace(tzinfo=dt.UTC)
    assert pa.scalar(LAST_US, INSTANT).as_py() == last
