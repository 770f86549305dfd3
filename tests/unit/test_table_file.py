"""Rows of a data file by a predicate: without those that its vector deletes, and without reading
row groups that have none of them.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.lake.tables.deletion_vectors import write_vectors
from lakehead.lake.tables.logical_files import LogicalFile
from lakehead.lake.tables.table_file import TableFile

SCHEMA = pa.schema([("_partition", pa.int32()), ("_offset", pa.int64())])
GROUP_ROWS = 10


def file_of(folder: Path, offsets: list[int], deleted: set[int]) -> TableFile:
    """A data file of row groups of ten rows, and its vector."""
    folder.mkdir(exist_ok=True)
    rows = pa.table([pa.array([0] * len(offsets), pa.int32()), offsets], schema=SCHEMA)
    pq.write_table(rows, folder / "a.parquet", row_group_size=GROUP_ROWS)
    files = pyarrow.fs.SubTreeFileSystem(str(folder), pyarrow.fs.LocalFileSystem())
    fragment = ds.ParquetFileFormat().make_fragment("a.parquet", filesystem=files)
    (vector,), _ = write_vectors(str(folder), [np.array(sorted(deleted), np.int64)])
    file = LogicalFile(path="a.parquet", action={}, vector=vector)
    return TableFile(str(folder), fragment, SCHEMA, file)


def test_row_groups_without_rows_of_a_predicate_are_not_read(tmp_path: Path) -> None:
    file = file_of(tmp_path / "table", list(range(30)), {1, 12, 25})
    is_late = ds.field("_offset") >= 22
    assert [group.first for group in file.row_groups(is_late)] == [20]
    assert file.rows(["_offset"], is_late).column(0).to_pylist() == [22, 23, 24, 26, 27, 28, 29]
    assert [group.first for group in file.row_groups()] == [0, 10, 20]
    assert file.rows([], None).num_rows == 27


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=45),
    st.sets(st.integers(0, 44)),
    st.integers(0, 50),
    st.integers(0, 50),
)
def test_rows_of_a_predicate_are_those_that_the_vector_leaves(
    tmp_path_factory: pytest.TempPathFactory,
    offsets: list[int],
    deleted: set[int],
    first: int,
    end: int,
) -> None:
    folder = tmp_path_factory.mktemp("table")
    gone = {row for row in deleted if row < len(offsets)}
    file = file_of(folder, offsets, gone)
    at = ds.field("_offset")
    found = file.rows(["_offset"], (at >= first) & (at < end)).column(0).to_pylist()
    left = [one for row, one in enumerate(offsets) if row not in gone]
    assert found == [one for one in left if first <= one < end]
