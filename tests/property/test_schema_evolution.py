"""The rules of evolution: rows of before read the same after, and what is found then fits."""

import datetime as dt
import io
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.lake.tables.ddl import parse_schema
from lakehead.lake.tables.values.evolution import evolve, holds, merged
from tests.support.repetitions import examples

SCALARS = (
    *("STRING", "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DATE"),
    *("TIMESTAMP", "BINARY", "DECIMAL(9, 2)", "DECIMAL(12, 0)", "DECIMAL(38, 0)"),
)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    pa.string(): st.text(max_size=4),
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int16(): st.integers(-(1 << 15), (1 << 15) - 1),
    pa.int32(): st.integers(-(1 << 31), (1 << 31) - 1),
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.date32(): st.dates(),
    pa.binary(): st.binary(max_size=4),
}


def kinds() -> st.SearchStrategy[str]:
    return st.recursive(
        st.sampled_from(SCALARS),
        lambda inner: (
            inner.map("ARRAY<{}>".format)
            | inner.map("MAP<STRING, {}>".format)
            | st.lists(inner, min_size=1, max_size=3).map(
                lambda found: f"STRUCT<{', '.join(f'f{i}: {k}' for i, k in enumerate(found))}>"
            )
        ),
        max_leaves=4,
    )


def schemas() -> st.SearchStrategy[Any]:
    fields = st.dictionaries(st.sampled_from("abcd"), kinds(), min_size=1)
    return fields.map(lambda found: parse_schema(", ".join(f"{n} {k}" for n, k in found.items())))


def value(kind: Any) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return st.none() | st.fixed_dictionaries({f.name: value(f.type) for f in fields})
    if pa.types.is_list(kind):
        return st.none() | st.lists(value(kind.value_type), max_size=3)
    if pa.types.is_map(kind):
        pairs = st.dictionaries(st.text(max_size=2), value(kind.item_type), max_size=2)
        return st.none() | pairs.map(lambda found: list(found.items()))
    if pa.types.is_decimal(kind):
        most = 10 ** (kind.precision - kind.scale) - 1
        return st.none() | st.integers(-most, most).map(Decimal)
    if pa.types.is_timestamp(kind):
        return st.none() | st.datetimes(timezones=st.just(dt.UTC))
    return st.none() | VALUES[kind]


def only(rows: list[Any], schema: Any) -> list[Any]:
    """Rows with the fields of a schema alone."""

    def cut(each: Any, kind: Any) -> Any:
        if each is None:
            return None
        if pa.types.is_struct(kind):
            return {f.name: cut(each[f.name], f.type) for f in kind}
        if pa.types.is_list(kind):
            return [cut(one, kind.value_type) for one in each]
        if pa.types.is_map(kind):
            return [(key, cut(one, kind.item_type)) for key, one in each]
        return each

    return [{f.name: cut(row[f.name], f.type) for f in schema} for row in rows]


@settings(max_examples=examples(100), deadline=None)
@given(schemas(), schemas(), st.data())
def test_rows_of_before_read_the_same_after(table: Any, found: Any, data: st.DataObject) -> None:
    rows = data.draw(st.lists(value(pa.struct(list(table))).filter(bool), max_size=4))
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=table), file)
    evolution = evolve(table, found)
    written = pq.read_table(file)
    read = pa.Table.from_pylist(written.to_pylist(), schema=evolution.schema)
    assert only(read.to_pylist(), table) == written.to_pylist()
    if not evolution.is_needed:
        assert evolution.schema == table


@settings(max_examples=examples(200), deadline=None)
@given(schemas(), schemas())
def test_one_step_is_enough(table: Any, found: Any) -> None:
    first = evolve(table, found)
    again = evolve(first.schema, found)
    assert not again.added
    assert not again.widened
    assert again.conflicts == first.conflicts or len(again.conflicts) == len(first.conflicts)
    assert again.schema == first.schema
    assert evolve(first.schema, table).conflicts == ()
    assert not evolve(first.schema, table).added
    if not first.conflicts:
        assert holds(pa.struct(list(first.schema)), pa.struct(list(found)))
        assert not evolve(merged(table, found), found).is_needed


@pytest.mark.parametrize(
    ("table", "found", "after"),
    [
        ("a INT", "a INT", "a INT"),
        ("a INT", "b STRING", "a INT, b STRING"),
        ("a BIGINT", "a INT", "a BIGINT"),
        ("a INT", "a BIGINT", "a BIGINT"),
        ("a FLOAT", "a DOUBLE", "a DOUBLE"),
        ("a INT", "a DOUBLE", "a DOUBLE"),
        ("a DECIMAL(9, 2)", "a DECIMAL(12, 0)", "a DECIMAL(14, 2)"),
        ("a STRUCT<b: INT>", "a STRUCT<c: INT, b: BIGINT>", "a STRUCT<b: BIGINT, c: INT>"),
        ("a ARRAY<INT>", "a ARRAY<BIGINT>", "a ARRAY<BIGINT>"),
        ("a MAP<STRING, INT>", "a MAP<STRING, BIGINT>", "a MAP<STRING, BIGINT>"),
    ],
)
def test_what_a_table_may_follow(table: str, found: str, after: str) -> None:
    evolution = evolve(parse_schema(table), parse_schema(found))
    assert evolution.schema == parse_schema(after)
    assert evolution.conflicts == ()


@pytest.mark.parametrize(
    ("table", "found", "said"),
    [
        ("a INT", "a STRING", "a is INT, but values are STRING"),
        ("a BIGINT", "a DOUBLE", "a is BIGINT, but values are DOUBLE"),
        ("a STRUCT<b: DATE>", "a STRUCT<b: TIMESTAMP>", "a.b is DATE, but values are TIMESTAMP"),
        ("a INT", "a ARRAY<INT>", "a is INT, but values are ARRAY<INT>"),
        ("a INT", "A INT", "field A: the table has column a, another case of it"),
        (
            "a DECIMAL(38, 0)",
            "a DECIMAL(9, 2)",
            "a is DECIMAL(38, 0), but values are DECIMAL(9, 2)",
        ),
    ],
)
def test_what_it_may_not(table: str, found: str, said: str) -> None:
    evolution = evolve(parse_schema(table), parse_schema(found))
    assert [str(conflict) for conflict in evolution.conflicts] == [said]
    assert evolution.schema == parse_schema(table)
