"""Data files of a Delta table: Parquet under the table's root, unseen until a commit names them.

An engine never reads what it skips by statistics, so a bound that is too tight loses rows. Each
bound here holds for every reader: text is cut to a prefix and its upper bound raised, instants are
rounded outwards to the millisecond, and NaN, infinities, bytes, decimals, booleans and arrays have
no bound. (Delta protocol, "Per-file Statistics".)
"""

import contextlib
import json
import math
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehead.lake.decode.memory import empty
from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.ddl import VARIANT
from lakehead.lake.tables.partitions import partition_folder
from lakehead.storage.errors import ObjectExists, OutcomeUnknown

CHUNK_BYTES = 4 << 20


class Chunks:
    """A file to write to, of any size, in memory."""

    def __init__(self) -> None:
        self._chunks: list[memoryview] = []
        self.size = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        """Append."""
        rest = memoryview(data)
        while rest:
            at = self.size % CHUNK_BYTES
            if at == 0:
                self._chunks.append(empty(CHUNK_BYTES, np.uint8).data)
            taken = min(len(rest), CHUNK_BYTES - at)
            self._chunks[-1][at : at + taken] = rest[:taken]
            self.size += taken
            rest = rest[taken:]
        return len(data)

    def flush(self) -> None:
        """Do nothing: it is in memory."""

    def close(self) -> None:
        """Do nothing: `pieces` is for afterwards."""

    def pieces(self) -> list[memoryview]:
        """Return what was written."""
        last = self.size - (len(self._chunks) - 1) * CHUNK_BYTES
        return [*self._chunks[:-1], *(chunk[:last] for chunk in self._chunks[-1:])]


TEXT_PREFIX = 32
"""Characters of text that are kept in a bound, as in Delta's own writer."""

_LAST_CHARACTER = "\U0010ffff"

_Path = tuple[str, ...]


class FileStatistics:
    """Statistics of the rows of a file, taken in pieces."""

    def __init__(self) -> None:
        self.record_count = 0
        self._columns: dict[_Path, _Column] = {}

    def add(self, rows: Any) -> None:
        """Take an Arrow table. All of them have the same schema."""
        for field in rows.schema:
            for path, column in _look(field, rows.column(field.name), (field.name,)):
                known = self._columns.get(path)
                self._columns[path] = column if known is None else known.with_more(column)
        self.record_count += rows.num_rows

    def text(self) -> str:
        """Return the `stats` of an add action, as JSON."""
        smallest: dict[str, Any] = {}
        largest: dict[str, Any] = {}
        nulls: dict[str, Any] = {}
        for path, column in self._columns.items():
            _put(nulls, path, column.nulls)
            if column.low is not None:
                _put(smallest, path, column.low)
            if column.high is not None:
                _put(largest, path, column.high)
        return json.dumps(
            {
                "numRecords": self.record_count,
                "minValues": smallest,
                "maxValues": largest,
                "nullCount": nulls,
            },
            ensure_ascii=False,
            allow_nan=False,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """Bounds as JSON values, whose order is that of what they stand for; None where there is none:
    for nothing but nulls, and where a value has no bound.
    """

    count: int
    nulls: int
    low: Any = None
    high: Any = None

    def with_more(self, more: "_Column") -> "_Column":
        held = [column for column in (self, more) if column.nulls < column.count]
        lows = [column.low for column in held]
        highs = [column.high for column in held]
        return _Column(
            count=self.count + more.count,
            nulls=self.nulls + more.nulls,
            low=None if None in lows else min(lows, default=None),
            high=None if None in highs else max(highs, default=None),
        )


def _look(field: Any, values: Any, path: _Path) -> Iterator[tuple[_Path, _Column]]:
    """Yield what is known of a column, or of the fields of a struct."""
    if field.type == VARIANT:  # no bounds, and a count of nulls that not all readers know
        return
    if pa.types.is_struct(field.type):
        for i, child in enumerate(field.type):
            # A field of a null struct is null: struct_field gives it the parent's nulls too.
            yield from _look(child, pc.struct_field(values, [i]), (*path, child.name))
        return
    nulls = values.null_count
    low, high = (None, None) if nulls == len(values) else _bounds(field.type, values)
    yield path, _Column(count=len(values), nulls=nulls, low=low, high=high)


def _put(target: dict[str, Any], path: _Path, value: Any) -> None:
    for name in path[:-1]:
        target = target.setdefault(name, {})
    target[path[-1]] = value


def _bounds(kind: Any, column: Any) -> tuple[Any, Any]:
    """Bounds as JSON values; None where there is none."""
    if pa.types.is_string(kind):
        low, high = _ends(column)
        return low[:TEXT_PREFIX], _raised(high)
    if pa.types.is_integer(kind):
        return _ends(column)
    if pa.types.is_date(kind):
        low, high = _ends(column.cast(pa.int32()))
        return _date(low), _date(high)
    if pa.types.is_timestamp(kind):
        low, high = _ends(column.cast(pa.int64()))
        return _instant(low // 1000), _instant(-(-high // 1000))
    if pa.types.is_floating(kind):
        if pc.any(pc.is_nan(column)).as_py():
            return None, None
        low, high = _ends(column)
        if not (math.isfinite(low) and math.isfinite(high)):
            return None, None
        # Some engines have -0.0 before 0.0, and Arrow has them as equal.
        return low or -0.0, high or 0.0
    return None, None


def _ends(column: Any) -> tuple[Any, Any]:
    ends = pc.min_max(column)
    return ends["min"].as_py(), ends["max"].as_py()


def _raised(text: str) -> str | None:
    """A short text that no text which begins like `text` exceeds."""
    if len(text) <= TEXT_PREFIX:
        return text
    prefix = text[:TEXT_PREFIX]
    return None if text[TEXT_PREFIX] == _LAST_CHARACTER else prefix + _LAST_CHARACTER


def _date(days: int) -> str | None:
    text = str(np.datetime64(days, "D"))
    return text if len(text) == 10 else None


def _instant(milliseconds: int) -> str | None:
    text = str(np.datetime64(milliseconds, "ms"))
    return f"{text}Z" if len(text) == 23 else None  # years 0001 to 9999


_ATTEMPTS = 4
_PLAIN_FOLDER = re.compile(r"[A-Za-z0-9_.=/-]*")
_UNIQUE = frozenset({"_offset", "_timestamp"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file that was written, with what a commit must say about it."""

    path: str  # below the table's root
    size_bytes: int
    record_count: int
    statistics: str
    partition: tuple[tuple[str, str | None], ...] = ()  # columns that are not in the file


class DataFileWriter:
    """One Parquet file below `root`, a row group at a time. Encoded bytes wait in memory.

    `partition` is that of its rows, which lack these columns.
    """

    def __init__(
        self, root: str, schema: Any, partition: Sequence[tuple[str, str | None]] = ()
    ) -> None:
        self._root = root
        self._partition = tuple(partition)
        self._body = Chunks()
        self._statistics = FileStatistics()
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._body, mode="w"),
            schema,
            compression="zstd",
            store_schema=False,
            use_dictionary=_dictionary_columns(schema),
        )

    @property
    def size_bytes(self) -> int:
        """Of what is encoded."""
        return self._body.size

    def add(self, rows: Any) -> None:
        """Encode an Arrow table, as one row group unless it is huge."""
        self._writer.write_table(_with_whole_variants(rows))
        self._statistics.add(rows)

    def finish(self) -> DataFile:
        """Create the file, durably, and return what a commit must say about it.

        The object store creates it whole or not at all, under a name that is never used again; a
        file that no commit names is removed by VACUUM. Raises the errors of `ObjectStore.create`.
        """
        self._writer.close()
        path = f"{partition_folder(self._partition)}part-{secrets.token_hex(16)}.zstd.parquet"
        create_file(self._root, path, self._body.pieces())
        return DataFile(
            path=path,
            size_bytes=self._body.size,
            record_count=self._statistics.record_count,
            statistics=self._statistics.text(),
            partition=self._partition,
        )


def _with_whole_variants(rows: Any) -> Any:
    """The rows with bytes in the fields of each VARIANT that is NULL: Parquet's writer refuses
    nulls there, which Arrow has in columns that it makes.
    """
    for number, field in enumerate(rows.schema):
        if field.type == VARIANT:
            rows = rows.set_column(number, field, _whole_variant(rows.column(number)))
    return rows


def _whole_variant(column: Any) -> Any:
    if column.type == VARIANT and not column.null_count:
        return column
    whole = [
        pa.StructArray.from_arrays(
            [pc.fill_null(chunk.field(i).cast(pa.binary()), b"") for i in range(len(VARIANT))],
            fields=list(VARIANT),
            mask=chunk.is_null(),
        )
        for chunk in column.chunks
    ]
    return pa.chunked_array(whole, VARIANT)


def as_written(rows: Any, schema: Any) -> Any:
    """Return the columns of `schema` of rows that were read from a table, in its types; one that
    they do not have is null. Arrow casts no VARIANT that is NULL, as in files from before there was
    the column.
    """
    if rows.schema.equals(schema) and VARIANT not in schema.types:
        return rows
    return pa.Table.from_arrays([_written_column(rows, field) for field in schema], schema=schema)


def _written_column(rows: Any, field: Any) -> Any:
    if field.name not in rows.column_names:
        return pa.nulls(rows.num_rows, field.type)
    column = rows.column(field.name)
    return _whole_variant(column) if field.type == VARIANT else column.cast(field.type)


def write_data_file(
    root: str, rows: Any, partition: Sequence[tuple[str, str | None]] = ()
) -> DataFile:
    """Write an Arrow table as one file, see `DataFileWriter`. Raises as its `finish`."""
    writer = DataFileWriter(root, rows.schema, partition)
    writer.add(rows)
    return writer.finish()


def _dictionary_columns(schema: Any) -> list[str]:
    """The columns to encode with a dictionary, by their paths in Parquet.

    Bytes, offsets and timestamps of records hardly repeat: to look for that would take as long as
    all the rest of a write. The names that rows of a VARIANT have in common are one entry.
    """
    paths = [path for field in schema for path in _leaves(field.name, field.type)]
    return [path for path in paths if path not in _UNIQUE]


def _leaves(path: str, kind: Any) -> Iterator[str]:
    if kind == VARIANT:
        yield f"{path}.metadata"
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{path}.{field.name}", field.type)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type)
        yield from _leaves(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    elif not pa.types.is_binary(kind):
        yield path


def delete_data_files(root: str, paths: list[str]) -> None:
    """Remove files that were never offered to a commit."""
    reader = store_reader(root)
    reader.run(reader.store.delete(paths))


def copy_file(source: str, target: str, file: DataFile) -> DataFile:
    """Copy a file below another root, and return it as it is there: under its own path, or without
    folders whose names would need escapes in a log. Doing it again does nothing.
    """
    reader = store_reader(source)
    folder, _, name = file.path.rpartition("/")
    path = file.path if _PLAIN_FOLDER.fullmatch(folder) else name
    create_file(target, path, [memoryview(reader.run(reader.store.get(file.path)))])
    return replace(file, path=path)


def read_data_file(root: str, path: str) -> Any:
    """Return the rows of a file that was written by `write_data_file`."""
    reader = store_reader(root)
    return pq.read_table(pa.BufferReader(reader.run(reader.store.get(path))))


def read_row_groups(root: str, path: str, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Yield the rows of a file that was written below `root`, all columns or some, by row group."""
    reader = store_reader(root)
    file = pq.ParquetFile(pa.BufferReader(reader.run(reader.store.get(path))))
    names = None if columns is None else list(columns)
    for group in range(file.num_row_groups):
        yield file.read_row_group(group, columns=names)


def create_file(root: str, path: str, pieces: Sequence[memoryview]) -> None:
    """Create a file below `root`, durably, under a name that is ours alone.

    Raises the errors of `ObjectStore.create`.
    """
    reader = store_reader(root)

    async def create() -> None:
        # If it exists, an earlier try had got through.
        with contextlib.suppress(ObjectExists):
            for _ in range(_ATTEMPTS - 1):
                with contextlib.suppress(OutcomeUnknown):
                    await reader.store.create(path, pieces)
                    return
            await reader.store.create(path, pieces)

    reader.run(create())


def create_entry(root: str, key: str, entry: bytes) -> bool:
    """Create an object below `root`, durably, of which another writer may create one of the same
    name. Returns whether this one is there.

    Raises the errors of `ObjectStore.create`.
    """
    reader = store_reader(root)

    async def create() -> bool:
        for attempt in range(_ATTEMPTS):
            try:
                await reader.store.create(key, [memoryview(entry)])
            except ObjectExists:
                # Of an earlier try that had got through, or another writer's.
                return bytes(await reader.store.get(key)) == entry
            except OutcomeUnknown:
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return True
        return False

    return reader.run(create())
