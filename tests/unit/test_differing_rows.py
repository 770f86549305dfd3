"""`differing_rows` finds each row with another value, and no other row."""

import struct
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.lake.jobs.table_attestation import differing_rows
from lakehead.lake.tables.ddl import TIMESTAMP

DOUBLES = st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), 5e-324])
DECIMALS = st.integers(-(10**9), 10**9).map(lambda number: Decimal(number).scaleb(-4))
TEXTS = st.text(max_size=20)
COLUMNS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "long": (pa.int64(), st.integers(-3, 3)),
    "double": (pa.float64(), DOUBLES),
    "float": (pa.float32(), DOUBLES.filter(lambda number: number != 5e-324)),
    "truth": (pa.bool_(), st.booleans()),
    "text": (pa.string(), TEXTS),
    "bytes": (pa.binary(), st.binary(max_size=20)),
    "decimal": (pa.decimal128(18, 4), DECIMALS),
    "at": (TIMESTAMP, st.integers(-3, 3)),
    "list": (pa.list_(pa.float64()), st.lists(st.none() | DOUBLES, max_size=3)),
    "struct": (
        pa.struct([("x", pa.float64()), ("y", pa.string())]),
        st.fixed_dictionaries({"x": st.none() | DOUBLES, "y": st.none() | TEXTS}),
    ),
    "deep": (
        pa.list_(pa.struct([("x", pa.list_(pa.float32()))])),
        st.lists(
            st.fixed_dictionaries({"x": st.lists(DOUBLES.filter(lambda n: n != 5e-324))}),
            max_size=2,
        ),
    ),
    "map": (
        pa.map_(pa.string(), pa.float64()),
        st.lists(st.tuples(TEXTS, st.none() | DOUBLES), max_size=2),
    ),
}


def identity(value: Any) -> Any:
    """A form of a value in which 0.0 is not -0.0, and NaN is NaN."""
    if isinstance(value, float):
        return "nan" if value != value else struct.pack("<d", value)
    if isinstance(value, dict):
        return {name: identity(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [identity(one) for one in value]
    return value


def chunked(values: list[Any], kind: Any, cuts: list[int]) -> Any:
    """A column cut anywhere, whose chunks are parts of longer arrays."""
    bounds = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]
    whole = pa.array([None, *values, None], kind)
    chunks = [whole.slice(1 + first, end - first) for first, end in pairwise(bounds)]
    return pa.chunked_array(chunks, kind)


@pytest.mark.parametrize("name", COLUMNS)
@given(data=st.data())
def test_a_row_with_another_value_is_found_and_no_other(name: str, data: Any) -> None:
    kind, values = COLUMNS[name]
    held = data.draw(st.lists(st.none() | values, min_size=1, max_size=20))
    other = list(held)
    for row in data.draw(st.sets(st.integers(0, len(held) - 1), max_size=3)):
        other[row] = data.draw(st.none() | values)
    wrong = [identity(one) != identity(two) for one, two in zip(held, other, strict=True)]
    cuts = st.lists(st.integers(0, 20), max_size=3)
    tables = [
        pa.table(
            {"same": pa.array(range(len(column))), name: chunked(column, kind, data.draw(cuts))}
        )
        for column in (held, other)
    ]
    assert differing_rows(*tables).tolist() == wrong
    assert not differing_rows(tables[0], tables[0]).any()
