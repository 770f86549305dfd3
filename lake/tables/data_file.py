"""Data files of a Delta table: Parquet under the table's root, unseen until a commit names them."""

import contextlib
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.chunks import Chunks
from lakehead.lake.tables.file_statistics import FileStatistics
from lakehead.lake.tables.partitions import partition_folder
from lakehead.storage.errors import ObjectExists, OutcomeUnknown

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
    """One Parquet file below `root`, a row group at a time. What is encoded waits in memory.

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
        self._writer.write_table(rows)
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
    all the rest of a write.
    """
    paths = [path for field in schema for path in _leaves(field.name, field.type)]
    return [path for path in paths if path not in _UNIQUE]


def _leaves(path: str, kind: Any) -> Iterator[str]:
    if pa.types.is_struct(kind):
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
