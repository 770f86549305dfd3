"""Clustering of a table: new files are put into the Z-order of its clustering columns, and cubes of
such files are joined (`lakehead.lake.tables.cubes`). No row changes.

Files are read twice: the clustering columns of all rows for a sample, then the rows. They go into
ranges of the order, in memory or in unnamed files of the temporary folder, and are put in order
range by range, so memory does not grow with the cube. Each cube has a commit of its own: work that
is done stays done when a later cube fails.
"""

import json
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakehead.lake.jobs.table_item import TableFiles
from lakehead.lake.tables.arrow_rows import gathered
from lakehead.lake.tables.cubes import CubePlan, cube_tags, plan_cubes
from lakehead.lake.tables.data_file import DataFile, as_written
from lakehead.lake.tables.delta_table import Table, TableUnavailable
from lakehead.lake.tables.logical_files import LogicalFile
from lakehead.lake.tables.table_file import TableFile
from lakehead.lake.tables.vector_merge import add_action
from lakehead.lake.tables.z_order import ZOrder, ZValues
from lakehead.storage.clock import SystemClock
from lakehead.storage.failpoints import failpoint

_ROWS_AT_ONCE = 1 << 17
_SAMPLED_ROWS = 1 << 16
_RANGE_BYTES = 32 << 20
_RANGES_MAX = 256
_HELD_BYTES = 128 << 20
_SORTED_BYTES = 128 << 20
_ADDED_BYTES = 4 << 20
_NUMBER = "_lakehead_z_order"


def cubes_to_make(table: Table, columns: Sequence[str], cube_bytes: int) -> list[CubePlan]:
    """Return the cubes that the table as of its version needs, so that all of its files are
    clustered by the columns. Raises TableUnavailable.
    """
    partitions: dict[tuple[tuple[str, Any], ...], list[LogicalFile]] = defaultdict(list)
    for file in table.logical_files().files.values():
        values = file.action.get("partitionValues") or {}
        partitions[tuple(sorted(values.items()))].append(file)
    return [
        plan for files in partitions.values() for plan in plan_cubes(files, columns, cube_bytes)
    ]


def make_cube(table: Table, plan: CubePlan, columns: Sequence[str], *, file_bytes: int) -> None:
    """Rewrite files of a table as one cube, in one commit, without their deleted rows.

    Raises CommitConflict if another run has changed one of the files since the table was opened,
    TableUnavailable, and what reading and writing files raises.
    """
    table.require_rewritable()
    if missing := [name for name in columns if name not in table.schema.names]:
        raise TableUnavailable(f"cannot cluster {table.uri}: it has no column {missing[0]}")
    files = table.files_at([file.path for file in plan.files])
    made = _ordered_files(table, files, columns, size=plan.size_bytes, file_bytes=file_bytes)
    modified_ms, tags = SystemClock().now_ms(), cube_tags(str(uuid.uuid4()), columns)
    failpoint("optimize_cube_written")
    table.commit_rewrite(
        plan.files,
        [add_action(one, modified_ms, is_data_change=False, tags=tags) for one in made],
        modified_ms=modified_ms,
        commit_info={"operationParameters": {"zOrderBy": json.dumps(list(columns))}},
    )


def _ordered_files(
    table: Table, files: Sequence[TableFile], columns: Sequence[str], *, size: int, file_bytes: int
) -> tuple[DataFile, ...]:
    sample = _sample(files, columns)
    order = ZOrder(sample, columns)
    ranges = _Ranges(order, order.values(sample), min(size // _RANGE_BYTES + 1, _RANGES_MAX))
    made = TableFiles(
        table.uri, table.partition_columns, file_bytes=file_bytes, of_one_partition=True
    )
    schema, taken = table.schema, 0
    for file in files:
        for rows in file.batches(_ROWS_AT_ONCE):
            ranges.add(as_written(rows, schema))
            taken += rows.num_rows
    for rows in ranges.in_order():
        for piece in _cut(rows, min(_ADDED_BYTES, file_bytes)):
            made.add(piece)
    written = made.finish()
    if taken != sum(file.record_count for file in written):
        raise TableUnavailable(f"cannot cluster {table.uri}: rows were lost on the way")
    return written


def _sample(files: Sequence[TableFile], columns: Sequence[str]) -> Any:
    """Return the clustering columns of rows at equal distances."""
    step = max(sum(file.row_count() for file in files) // _SAMPLED_ROWS, 1)
    pieces, skipped = [], 0
    for file in files:
        for rows in file.batches(_ROWS_AT_ONCE, list(columns)):
            numbers = np.arange(skipped, rows.num_rows, step)
            skipped = (skipped - rows.num_rows) % step
            pieces.append(rows.take(pa.array(numbers)))
    return pa.concat_tables(pieces)


class _Ranges:
    """Rows by ranges of their numbers in Z-order. `sample` are numbers of some of them."""

    def __init__(self, order: ZOrder, sample: ZValues, count: int) -> None:
        self._order = order
        numbers = np.sort(sample)
        cuts = np.arange(1, count) * len(numbers) // count
        self._splits: ZValues = np.unique(numbers[cuts]) if len(numbers) else numbers
        self._held: list[list[Any]] = [[] for _ in range(len(self._splits) + 1)]
        self._held_bytes = 0
        self._files: list[Any] = []

    def add(self, rows: Any) -> None:
        """Take an Arrow table of rows."""
        numbers = self._order.values(rows)
        places = np.argsort(numbers, kind="stable")
        numbers = numbers[places]
        sorted_rows = rows.take(pa.array(places)).append_column(_NUMBER, pa.array(numbers))
        ends = [*np.searchsorted(numbers, self._splits, "left").tolist(), rows.num_rows]
        first = 0
        for held, end in zip(self._held, ends, strict=True):
            if first < end:
                held.append(sorted_rows.slice(first, end - first))
            first = end
        self._held_bytes += sorted_rows.nbytes
        if self._held_bytes >= _HELD_BYTES:
            self._spill()

    def in_order(self) -> Iterator[Any]:
        """Yield all rows, in Z-order. Of a range that is much too large for memory, such as one of
        equal rows, each piece is in order.
        """
        for number, held in enumerate(self._held):
            spilled = self._files[number].tables() if self._files else iter(())
            for rows in gathered(chain(spilled, held), _SORTED_BYTES):
                numbers = np.asarray(rows.column(_NUMBER))
                places: npt.NDArray[np.int64] = np.argsort(numbers, kind="stable")
                whole = rows.drop_columns([_NUMBER]).combine_chunks()
                yield whole.take(pa.array(places))
            held.clear()

    def _spill(self) -> None:
        if not self._files:
            self._files = [_Spilled() for _ in self._held]
        for file, held in zip(self._files, self._held, strict=True):
            file.add(held)
            held.clear()
        self._held_bytes = 0


class _Spilled:
    """Arrow tables in a file without a name, which ends with the process."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it is read long after it is written
        self._writer: Any = None

    def add(self, tables: Sequence[Any]) -> None:
        """Append tables of one schema."""
        for table in tables:
            if self._writer is None:
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                self._writer = pa.ipc.new_stream(self._file, table.schema, options=options)
            self._writer.write_table(table)

    def tables(self) -> Iterator[Any]:
        """Yield the tables, and free the space."""
        if self._writer is not None:
            self._writer.close()
            self._file.seek(0)
            for batch in pa.ipc.open_stream(self._file):
                yield pa.Table.from_batches([batch])
        self._file.close()


def _cut(rows: Any, size_bytes: int) -> Iterator[Any]:
    """Yield rows in pieces that a writer of row groups puts together."""
    step = max(rows.num_rows * size_bytes // max(rows.nbytes, 1), 1)
    for first in range(0, rows.num_rows, step):
        yield rows.slice(first, step)
