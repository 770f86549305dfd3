"""Data files of a table as they are read: their rows without those that a vector has deleted.

Delta-rs makes a dataset of Arrow of a table, but of none with deletion vectors. And where the log
has no bound of a file, that dataset has null for it, and a predicate passes over the file. So it is
made here, from the same actions.
"""

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs

from lakehead.lake.tables.deletion_vectors import read_vector
from lakehead.lake.tables.logical_files import LogicalFile
from lakehead.lake.tables.record_places import PLACE


class TableFile:
    """A data file of a table at `root`. `file` is what the log has of it; without, no row of it is
    deleted.
    """

    def __init__(
        self, root: str, fragment: Any, schema: Any, file: LogicalFile | None = None
    ) -> None:
        self.file = file
        self._root = root
        self._fragment = fragment
        self._schema = schema

    @property
    def path(self) -> str:
        """Below the table's root."""
        return str(self._fragment.path)

    def deleted(self) -> npt.NDArray[np.int64]:
        """Return the numbers of the deleted rows, in order. Raises as `read_vector`."""
        if self.file is None or self.file.vector is None:
            return np.array([], np.int64)
        return read_vector(self._root, self.file.vector)

    def row_count(self) -> int:
        """Return how many rows the data file has, deleted ones too."""
        return int(self._fragment.count_rows())

    def row_bytes(self) -> int:
        """Return the average bytes of a row before compression."""
        held = self._fragment.metadata
        groups = (held.row_group(number) for number in range(held.num_row_groups))
        return int(sum(group.total_byte_size for group in groups) // max(held.num_rows, 1))

    def row_groups(self, predicate: Any = None) -> Iterator["RowGroup"]:
        """Yield the row groups, in turn: all, or those that may have rows of a predicate by the
        bounds that the file has of them.
        """
        chosen = None
        if predicate is not None:
            some = self._fragment.split_by_row_group(filter=predicate, schema=self._schema)
            chosen = {one.row_groups[0].id for one in some}
        first = 0
        for fragment in self._fragment.split_by_row_group():
            if chosen is None or fragment.row_groups[0].id in chosen:
                yield RowGroup(fragment, self._schema, first)
            # Not count_rows(): of a part of a file it may be the number of rows of the whole file.
            first += sum(int(group.num_rows) for group in fragment.row_groups)

    def batches(
        self, rows_max: int, columns: Sequence[str] | None = None, predicate: Any = None
    ) -> Iterator[Any]:
        """Yield the rows, all columns or some, as Arrow tables of at most `rows_max`. Row groups
        are read in turn; with a predicate those of `row_groups`, and all rows of these.
        """
        deleted = self.deleted()
        # A scan of the whole file reads ahead, and holds several row groups with any options.
        for group in self.row_groups(predicate):
            first = group.first
            for rows in group.batches(rows_max, columns):
                is_kept = without(deleted, first, rows.num_rows)
                first += rows.num_rows
                yield rows if is_kept is None else rows.filter(pa.array(is_kept))

    def rows(self, columns: Sequence[str], predicate: Any) -> Any:
        """Return some columns of the rows that a predicate selects: about partitions and offsets
        alone, if rows of the file are deleted.
        """
        names = list(columns)
        if self.file is None or self.file.vector is None:
            return self._fragment.to_table(schema=self._schema, columns=names, filter=predicate)
        more = [name for name in PLACE if name not in names]
        found = [
            rows if predicate is None else rows.filter(predicate)
            for rows in self.batches(_ROWS_AT_ONCE, [*names, *more], predicate)
        ]
        schema = pa.schema([self._schema.field(name) for name in (*names, *more)])
        return pa.concat_tables([schema.empty_table(), *found]).select(names)

    def rows_with_deleted(self, columns: Sequence[str], predicate: Any) -> Any:
        """Return some columns of the rows of the data file that a predicate selects, of deleted
        ones too.
        """
        return self._fragment.to_table(schema=self._schema, columns=list(columns), filter=predicate)

    def count(self, predicate: Any = None) -> int:
        """Return how many rows a predicate about partitions and offsets selects."""
        if self.file is None or self.file.vector is None:
            return int(self._fragment.count_rows(filter=predicate))
        if predicate is None:
            return self.row_count() - self.file.vector.rows
        return int(self.rows([], predicate).num_rows)


_RAW_BOUNDS = frozenset({"BOOLEAN", "INT32", "INT64", "BYTE_ARRAY"})


class RowGroup:
    """A row group of a data file: all of its rows, deleted ones too. `first` is the number of its
    first row in the file.
    """

    def __init__(self, fragment: Any, schema: Any, first: int) -> None:
        self.first = first
        self._fragment = fragment
        self._schema = schema

    def bounds(self, name: str) -> tuple[Any, Any] | None:
        """Return the smallest and largest value of a column as Parquet has them: whole numbers (of
        days for dates, of microseconds for instants), booleans, bytes (UTF-8 for text). None if
        they are not known.
        """
        if "." in name:  # as that of a field of a struct may be
            return None
        group = self._fragment.metadata.row_group(self._fragment.row_groups[0].id)
        for number in range(group.num_columns):
            column = group.column(number)
            if column.path_in_schema != name:
                continue
            held = column.statistics
            # Not as Python's dates and times, which end with the year 9999.
            if held is None or not held.has_min_max or held.physical_type not in _RAW_BOUNDS:
                return None
            kind = str(held.logical_type)
            is_other_unit = kind.startswith("Timestamp") and "microseconds" not in kind
            return None if is_other_unit else (held.min_raw, held.max_raw)
        return None

    def rows(self, columns: Sequence[str]) -> Any:
        """Return some columns as an Arrow table."""
        return self._fragment.to_table(schema=self._schema, columns=list(columns))

    def batches(self, rows_max: int, columns: Sequence[str] | None) -> Iterator[Any]:
        """Yield all columns or some as Arrow tables of at most `rows_max` rows."""
        for batch in self._fragment.to_batches(
            schema=self._schema, columns=columns, batch_size=rows_max
        ):
            yield pa.Table.from_batches([batch])


def without(deleted: npt.NDArray[np.int64], first: int, count: int) -> npt.NDArray[np.bool_] | None:
    """Return which of `count` rows of a file, from the row `first` on, are left; None for all."""
    start, end = np.searchsorted(deleted, [first, first + count])
    if start == end:
        return None
    is_kept = np.ones(count, np.bool_)
    is_kept[deleted[start:end] - first] = False
    return is_kept


_ROWS_AT_ONCE = 1 << 20


def table_dataset(
    place: str, options: Mapping[str, str] | None, schema: Any, added: pa.Table
) -> Any:
    """Return the dataset of the files of a table, `added` being its flattened add actions. Bounds
    of whole numbers, dates and instants and the values of partitions say which files a predicate
    needs.
    """
    from deltalake.fs import DeltaStorageHandler

    files: Any
    if options is None:
        files = pyarrow.fs.SubTreeFileSystem(place, pyarrow.fs.LocalFileSystem())
    else:
        files = pyarrow.fs.PyFileSystem(DeltaStorageHandler(place, dict(options)))
    format_ = ds.ParquetFileFormat(
        default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True)
    )
    fragments = [
        format_.make_fragment(
            unquote(row["path"]), filesystem=files, partition_expression=_guarantee(row, schema)
        )
        for row in added.to_pylist()
    ]
    return ds.FileSystemDataset(fragments, schema, format_, files)


_MILLISECOND = dt.timedelta(milliseconds=1)


def _is_bounded(kind: Any) -> bool:
    is_instant = pa.types.is_timestamp(kind) and kind.tz is not None
    return bool(pa.types.is_integer(kind) or pa.types.is_date(kind) or is_instant)


def _guarantee(row: Mapping[str, Any], schema: Any) -> Any:
    """Return a condition that holds for each row of a file."""
    held = ds.scalar(True)
    for field in schema:
        at = ds.field(field.name)
        if (name := f"partition.{field.name}") in row:
            value = row[name]
            held &= at.is_null() if value is None else at == pa.scalar(value, field.type)
        elif _is_bounded(field.type) and "." not in field.name:  # as a field of a struct may be
            low, high = row.get(f"min.{field.name}"), row.get(f"max.{field.name}")
            if high is not None and pa.types.is_timestamp(field.type):
                # Writers may cut it to the millisecond.
                high = high + _MILLISECOND if high.year < dt.MAXYEAR else None
            if low is not None and high is not None:
                within = (at >= pa.scalar(low, field.type)) & (at <= pa.scalar(high, field.type))
                held &= (
                    within if row.get(f"null_count.{field.name}") == 0 else (within | at.is_null())
                )
    return held
