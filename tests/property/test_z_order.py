"""Z-order: near rows get near numbers, of every type, with nulls and few or many values."""

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.lake.tables.z_order import ZOrder

COLUMNS: dict[str, tuple[Any, Any]] = {
    "bigint": (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    "tinyint": (pa.int8(), st.integers(-3, 3)),
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "text": (pa.string(), st.text(max_size=4)),
    "binary": (pa.binary(), st.binary(max_size=4)),
    "boolean": (pa.bool_(), st.booleans()),
    "decimal": (pa.decimal128(9, 2), st.decimals(-(10**6), 10**6, places=2)),
    "date": (pa.date32(), st.dates()),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        st.datetimes(timezones=st.just(dt.UTC)),
    ),
}


@pytest.mark.parametrize("kind", COLUMNS)
@given(data=st.data())
def test_one_column_is_in_its_own_order_with_nulls_first(kind: str, data: st.DataObject) -> None:
    arrow, values = COLUMNS[kind]
    held = data.draw(st.lists(st.none() | values, max_size=50))
    sample = data.draw(st.lists(st.none() | values, max_size=50))
    rows = pa.table({"c": pa.array(held, arrow)})
    order = ZOrder(pa.table({"c": pa.array(sample, arrow)}), ["c"])
    numbers = order.values(rows)
    assert len(numbers) == len(held)
    assert all(numbers >= 0)
    pairs = list(zip(held, numbers.tolist(), strict=True))
    for value, number in pairs:
        assert (number == 0) == (value is None)
        for other, beside in pairs:
            if value is not None and other is not None and value <= other:
                assert number <= beside


def test_each_of_two_columns_narrows_the_parts() -> None:
    """A sixteenth of the rows has a quarter to a half of each column's values, also of one whose
    values are a few texts and of one whose numbers are skewed.
    """
    rng = np.random.default_rng(7)
    count = 1 << 14
    rows = pa.table(
        {
            "n": np.exp(rng.random(count) * 40),
            "t": [f"common-prefix-{n % 16:02}" for n in rng.integers(0, 16, count)],
        }
    )
    numbers = ZOrder(rows.slice(0, 4096), ["n", "t"]).values(rows)
    ranked = np.argsort(np.argsort(np.asarray(rows["n"])))
    parts = np.array_split(np.argsort(numbers, kind="stable"), 16)
    widths = [np.ptp(ranked[part]) / count for part in parts]
    texts = [len(set(rows["t"].take(pa.array(part)).to_pylist())) for part in parts]
    assert np.mean(widths) < 0.35
    assert max(widths) < 0.6
    assert np.mean(texts) < 8
    assert max(texts) < 10


def test_values_that_are_all_equal_or_null_or_not_in_the_sample() -> None:
    sample = pa.table({"a": pa.array([5, 5], pa.int64()), "b": pa.array([None, None], pa.string())})
    rows = pa.table(
        {"a": pa.array([None, 1, 5, 9]), "b": pa.array(["x", None, "y", "z"], pa.string())}
    )
    assert len(set(ZOrder(sample, ["a", "b"]).values(rows).tolist())) == 3
    assert ZOrder(sample, ["a", "b"]).values(rows.slice(0, 0)).tolist() == []
    decimals = pa.table({"d": pa.array([Decimal("1.10"), None])})
    assert ZOrder(decimals, ["d"] * 70).values(decimals).tolist()[1] == 0
