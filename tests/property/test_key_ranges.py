"""Ranges of keys: every key lies in one, whatever keys there are; other files are not read."""

import datetime as dt
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.lake.tables.data_file import write_data_file
from lakehead.lake.tables.delta_table import create_table, open_table
from lakehead.lake.tables.upsert import within_ranges
from tests.support.repetitions import examples

KINDS: dict[Any, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-5, 5),
    pa.int32(): st.integers(-(1 << 31), (1 << 31) - 1),
    pa.date32(): st.dates(),
    pa.string(): st.text("abz'\\\n é€😀"),
    pa.binary(): st.binary(),
}


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data(), kind=st.sampled_from(list(KINDS)))
def test_every_key_lies_in_a_range(data: st.DataObject, kind: Any) -> None:
    keys = data.draw(st.lists(KINDS[kind], min_size=1, max_size=40))
    source = pa.table(
        {"key": pa.array([*keys, None], kind), "part": pa.array([1] * len(keys) + [2])}
    )
    condition = within_ranges(source, ["key", "part"], ["key", "part"])
    assert "part BETWEEN 1 AND 2" in condition
    rows = source.filter(source["key"].is_valid())
    connection = duckdb.connect()
    connection.register("rows", rows)
    found = connection.sql(f"SELECT count(*) FROM rows WHERE {condition}").fetchall()
    assert found == [(rows.num_rows,)]


def test_nothing_is_said_of_what_has_no_literal() -> None:
    least = pa.array([-(1 << 63), 0], pa.int64())
    for keys in (least, pa.array(["it's"]), pa.array(["a\\b"]), pa.array([b"a"]), pa.array([1.5])):
        assert within_ranges(pa.table({"key": keys}), ["key"], ["key"]) == ""
    beyond = pa.array([-800_000, 5], pa.int32()).cast(pa.date32())
    assert within_ranges(pa.table({"key": beyond}), ["key"], ["key"]) == ""
    days = pa.array([dt.date(2026, 1, 2), dt.date(2026, 1, 1)])
    told = within_ranges(pa.table({"key": days}), ["key"], ["t.`key`"])
    assert told == "(t.`key` BETWEEN DATE '2026-01-01' AND DATE '2026-01-02')"


@pytest.mark.parametrize("kind", [pa.int64(), pa.int16(), pa.date32()])
def test_files_between_ranges_are_not_read(kind: Any) -> None:
    schema = pa.schema([pa.field("key", kind), pa.field("v", pa.int64())])

    def rows(keys: list[int], value: int) -> Any:
        numbers = pa.array(keys, pa.int32()).cast(kind)
        return pa.table([numbers, pa.array([value] * len(keys))], schema=schema)

    with tempfile.TemporaryDirectory() as folder:
        uri = str(Path(folder) / "t")
        table = create_table(uri, schema, name="t", description="")
        files = [write_data_file(uri, rows(list(np.arange(100) + n * 100), 0)) for n in range(10)]
        table.commit(files, {}, modified_ms=1, commit_info={})
        source = rows([250, 260, 710, 1500], 1)
        ranges = within_ranges(source, ["key"], ["t.key"])
        opened = open_table(uri)
        assert opened is not None
        merger = opened.handle.merge(source, f"t.key = s.key AND {ranges}", "s", "t")
        told = merger.when_matched_update_all().when_not_matched_insert_all().execute()
        assert told["num_target_files_skipped_during_scan"] >= 7
        held = DeltaTable(uri).to_pyarrow_table()
        assert (held.num_rows, sum(held["v"].to_pylist())) == (1001, 4)
