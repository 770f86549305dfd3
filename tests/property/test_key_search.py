"""Looks for keys find each row that has one, whatever keys, files and row groups there are.

Row groups whose bounds have none of the keys are not read.
"""

import datetime as dt
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.lake.tables.data_file import DataFile, DataFileWriter
from lakehead.lake.tables.delta_table import Table, create_table, open_table
from lakehead.lake.tables.key_search import has_keys, rows_with_keys
from lakehead.lake.tables.table_file import RowGroup
from lakehead.lake.tables.unavailable_values import Place
from tests.support.repetitions import examples

KINDS: dict[Any, st.SearchStrategy[Any]] = {
    pa.int64(): st.sampled_from([-(1 << 63), -7, 0, 1, 2, 3, 900, (1 << 63) - 1]),
    pa.int32(): st.integers(-3, 12),
    pa.date32(): st.dates(dt.date(2026, 1, 1), dt.date(2026, 1, 9)),
    pa.string(): st.text("abz€😀", max_size=2) | st.just("z" * 40),
    pa.binary(): st.binary(max_size=1),
    pa.float64(): st.sampled_from([0.5, 1.5, float("inf")]),
    pa.bool_(): st.booleans(),
}


def table_of(
    root: str, files: list[list[pa.Table]], schema: pa.Schema, plain: Sequence[int] = ()
) -> Table:
    """A table of these files, each of these row groups; some are `plain`, without bounds."""
    table = create_table(root, schema, name="t", description="")
    made: list[DataFile] = []
    for number, groups in enumerate(files):
        writer = DataFileWriter(root, schema)
        for rows in groups:
            writer.add(rows)
        file = writer.finish()
        # As of a writer that takes no statistics.
        made.append(replace(file, statistics='{"numRecords": 1}') if number in plain else file)
    table.commit(made, {"a": 1}, modified_ms=1, commit_info={})
    opened = open_table(root)
    assert opened is not None
    return opened


@settings(max_examples=examples(120), deadline=None)
@given(data=st.data(), kinds=st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=2))
def test_each_row_with_a_key_is_found(data: st.DataObject, kinds: list[Any]) -> None:
    names = [f"k{number}" for number in range(len(kinds))]
    each = st.tuples(*(KINDS[kind] | st.none() for kind in kinds), st.booleans())
    groups = st.lists(st.lists(each, min_size=1, max_size=4), min_size=1, max_size=3)
    drawn = data.draw(st.lists(groups, min_size=1, max_size=3))
    fields = [pa.field(name, kind) for name, kind in zip(names, kinds, strict=True)]
    schema = pa.schema([*fields, pa.field("_is_current", pa.bool_()), pa.field("v", pa.int64())])
    count = 0
    rows: list[dict[str, Any]] = []
    files = []
    for file in drawn:
        made = []
        for group in file:
            some = [
                dict(zip([*names, "_is_current"], one, strict=True)) | {"v": count + place}
                for place, one in enumerate(group)
            ]
            count += len(some)
            rows += some
            made.append(pa.Table.from_pylist(some, schema))
        files.append(made)
    keys = data.draw(st.lists(st.tuples(*(KINDS[kind] for kind in kinds)), max_size=5))
    wanted = pa.Table.from_pylist(
        [dict(zip(names, key, strict=True)) for key in keys], pa.schema(fields)
    )
    is_current = data.draw(st.booleans())
    with tempfile.TemporaryDirectory() as root:
        plain = data.draw(st.lists(st.sampled_from(range(len(files))), max_size=2))
        table = table_of(f"{root}/t", files, schema, plain)
        found = rows_with_keys(table, wanted, ["v"], is_current=is_current)
        assert has_keys(table, wanted) == any(tuple(r[n] for n in names) in keys for r in rows)
    assert found.schema.names == [*names, "v"]
    expected = [
        row["v"]
        for row in rows
        if tuple(row[name] for name in names) in keys and (row["_is_current"] or not is_current)
    ]
    assert sorted(found.column("v").to_pylist()) == expected


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.binary()])
def test_row_groups_without_a_key_are_not_read(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    def rows(first: int, *, is_current: bool = True) -> pa.Table:
        numbers = np.arange(first, first + 100)
        key = numbers if kind == pa.int64() else [f"{n:05}".encode() for n in numbers]
        keys = pa.array(key) if kind == pa.int64() else pa.array(key, pa.binary()).cast(kind)
        current = pa.array(np.full(100, is_current))
        return pa.table({"key": keys, "v": pa.array(numbers), "_is_current": current})

    schema = rows(0).schema
    files = [[rows(0), rows(100)], [rows(200)], [rows(300), rows(300, is_current=False)]]
    table = table_of(str(tmp_path / "t"), files, schema)
    read: list[list[str]] = []
    inner = RowGroup.rows

    def counted(self: RowGroup, columns: Any) -> Any:
        read.append(list(columns))
        return inner(self, columns)

    monkeypatch.setattr(RowGroup, "rows", counted)
    few = rows(350).select(["key"]).slice(0, 5)
    assert rows_with_keys(table, few, ["v"], is_current=True).num_rows == 5
    assert read == [["key", "_is_current"], ["v"]]
    read.clear()
    assert rows_with_keys(table, rows(150).select(["key"]).slice(20, 5), ["v"]).num_rows == 5
    assert read == [["key"], ["v"]]
    read.clear()
    assert not has_keys(table, rows(5000).select(["key"]))
    assert read == []


def history_rows(first: int, at_us: int) -> pa.Table:
    numbers = np.arange(first, first + 100)
    return pa.table(
        {
            "key": pa.array(numbers % 100),
            "_offset": pa.array(numbers),
            "_timestamp": pa.array(numbers + at_us, pa.timestamp("us", tz="UTC")),
            "_is_current": pa.array(np.full(100, fill_value=True)),
        }
    )


def test_rows_that_are_before_all_changes_are_not_read(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row counts that has a later timestamp, or an offset that is not lower."""
    files = [[history_rows(0, 0), history_rows(100, 5_000_000)], [history_rows(200, 1_000_000)]]
    table = table_of(str(tmp_path / "t"), files, history_rows(0, 0).schema)
    read: list[int] = []
    inner = RowGroup.rows

    def counted(self: RowGroup, columns: Any) -> Any:
        rows = inner(self, columns)
        read.append(rows.num_rows)
        return rows

    monkeypatch.setattr(RowGroup, "rows", counted)
    keys = history_rows(0, 0).select(["key"])

    def found(beyond: Place) -> list[int]:
        read.clear()
        rows = rows_with_keys(table, keys, ["_offset"], is_current=True, beyond=beyond)
        return sorted(rows.column("_offset").to_pylist())

    assert found(Place(300, 6_000_000)) == []
    assert read == []
    assert set(range(100, 200)) <= set(found(Place(300, 5_000_100)))
    assert set(range(200, 300)) <= set(found(Place(299, 6_000_000)))
    assert found(Place(0, 6_000_000)) == list(range(300))
    assert found(Place(300, -(1 << 63))) == list(range(300))


def test_times_beyond_the_year_9999_are_bounds_too(tmp_path: Any) -> None:
    """They are beyond the times of Python, and no bounds in the table's log."""
    far = 400_000_000_000_000_000
    table = table_of(str(tmp_path / "t"), [[history_rows(0, far)]], history_rows(0, 0).schema)
    keys = history_rows(0, 0).select(["key"])
    assert rows_with_keys(table, keys, ["_offset"], beyond=Place(500, far + 99)).num_rows == 0
    assert rows_with_keys(table, keys, ["_offset"], beyond=Place(500, far + 98)).num_rows == 100
    assert has_keys(table, keys)


def test_a_file_without_bounds_in_the_log_is_read(tmp_path: Any) -> None:
    """As engines write that take no statistics. Its rows are counted and found by a predicate."""
    files = [[history_rows(0, 0)], [history_rows(100, 0)]]
    table = table_of(str(tmp_path / "t"), files, history_rows(0, 0).schema, plain=[1])
    predicate = ds.field("_offset") >= 50
    assert table.count(predicate) == 150
    assert table.rows(["_offset"], predicate).num_rows == 150
    assert len(list(table.data_files(predicate))) == 2


def test_a_column_does_not_get_the_bounds_of_a_field_with_its_name(tmp_path: Any) -> None:
    """The log's bounds of both have one name in the columns that delta-rs makes of them."""
    kind = pa.struct([pa.field("b", pa.int64())])
    for names in (["a", "a.b"], ["a.b", "a"]):
        columns = {"a": pa.array([{"b": 5}], kind), "a.b": pa.array([1], pa.int64())}
        rows = pa.table({name: columns[name] for name in names})
        table = table_of(str(tmp_path / names[0]), [[rows]], rows.schema)
        assert has_keys(table, pa.table({"a.b": pa.array([1], pa.int64())})), names
