"""Data files: whatever their row groups and size, every engine reads the rows that were given."""

import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.lake.jobs.table_item import TableFiles
from lakehead.lake.tables.data_file import CHUNK_BYTES, Chunks, DataFileWriter
from lakehead.lake.tables.delta_table import create_table, open_table

SCHEMA = pa.schema([("n", pa.int64()), ("value", pa.binary()), ("note", pa.string())])


def rows(start: int, count: int, size: int = 64) -> pa.Table:
    rng = random.Random(start)
    return pa.table(
        {
            "n": list(range(start, start + count)),
            "value": [None if n % 7 == 3 else rng.randbytes(size) for n in range(count)],
            "note": [f"note {n}" * 3 for n in range(count)],
        },
        schema=SCHEMA,
    )


@given(
    st.lists(
        st.sampled_from((0, 1, 1000, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1)), max_size=5
    )
)
@settings(max_examples=20, deadline=None)
def test_chunks_hold_what_was_written(sizes: Sequence[int]) -> None:
    body, expected = Chunks(), []
    for number, size in enumerate(sizes):
        expected.append(bytes([number]) * size)
        assert body.write(expected[-1]) == size
    pieces = body.pieces()
    assert b"".join(pieces) == b"".join(expected)
    assert body.size == sum(map(len, expected))
    assert all(pieces)


def test_every_engine_reads_a_file_of_many_row_groups(tmp_path: Path) -> None:
    uri = str(tmp_path)
    parts = [rows(0, 5000, size=800), rows(5000, 1), rows(5001, 7000, size=400)]
    create_table(uri, SCHEMA, name="t", description="")
    writer = DataFileWriter(uri, SCHEMA)
    for part in parts:
        writer.add(part)
    file = writer.finish()
    assert file.size_bytes > CHUNK_BYTES
    assert pq.ParquetFile(tmp_path / file.path).metadata.num_row_groups == len(parts)
    found = json.loads(file.statistics)
    assert found["numRecords"] == file.record_count == 12001
    assert (found["minValues"]["n"], found["maxValues"]["n"]) == (0, 12000)
    table = open_table(uri)
    assert table is not None
    table.commit([file], {}, modified_ms=1, commit_info={})

    expected = pa.concat_tables(parts)
    place = str(tmp_path / file.path)
    read: dict[str, Any] = {
        "arrow": pq.read_table(place),
        "deltalake": deltalake.DeltaTable(uri).to_pyarrow_table(),
        "duckdb": duckdb.read_parquet(place).order("n").to_arrow_table(),
        "polars": pl.read_parquet(place).to_arrow(),
    }
    for engine, got in read.items():
        assert got.select(SCHEMA.names).cast(SCHEMA).equals(expected), engine


@pytest.mark.parametrize("partitioned", [False, True])
def test_files_end_where_they_are_large_enough(tmp_path: Path, *, partitioned: bool) -> None:
    columns = ("note",) if partitioned else ()
    files = TableFiles(str(tmp_path), columns, file_bytes=64 << 10)
    parts = [rows(start, 100, size=1000) for start in range(0, 2000, 100)]
    if partitioned:
        note = pa.array(["x"] * 100)
        parts = [part.set_column(2, SCHEMA.field("note"), note) for part in parts]
    for part in parts:
        files.add(part)
    made = files.finish()
    assert sum(file.record_count for file in made) == 2000
    assert len(made) == 10
    assert max(file.size_bytes for file in made) < 4 * (64 << 10)
    numbers = [pq.read_table(tmp_path / file.path).column("n").to_pylist() for file in made]
    assert list(itertools.chain(*numbers)) == list(range(2000))
