"""Logical files of a Delta table: its data files with their deletion vectors, read from the log.

Delta-rs gives the paths and statistics of files, and not which vector belongs to one; so the newest
checkpoint and the entries after it are read here. `LogicalFiles` is the state as of a version, and
goes on from there: a run that commits every few seconds reads one entry a time.

Source: Delta transaction log protocol, "Action Reconciliation" and "Checkpoints". Checkpoints of
version 1 alone, in one part or several; other ones have a table feature that is not written here.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from lakehead.lake.store_reader import StoreReader, store_reader
from lakehead.lake.tables.deletion_vectors import DeletionVector
from lakehead.lake.tables.table_root import LOG
from lakehead.storage.errors import ObjectNotFound

_CHECKPOINT = re.compile(rf"{LOG}(\d{{20}})\.checkpoint\.(?:\d{{10}}\.(\d{{10}})\.)?parquet")
"""The name of a checkpoint, or of a part of one; the groups are its version and the number of
parts.
"""

_ENTRIES_MAX = 200
"""Entries that are read one after the other before a checkpoint is looked for, which costs a
listing of the log. A table with a commit every few seconds keeps half a million of them.
"""


def whole_checkpoints(keys: Iterable[str]) -> dict[int, list[str]]:
    """Return the objects of each checkpoint of a log, by its version, that has all its parts: a
    writer that was killed leaves some.
    """
    parts: dict[tuple[int, int], list[str]] = defaultdict(list)
    for key in keys:
        if (match := _CHECKPOINT.fullmatch(key)) is not None:
            parts[int(match[1]), int(match[2] or 1)].append(key)
    return {version: found for (version, count), found in parts.items() if len(found) == count}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalFile:
    """A data file of a table, and its rows that are deleted. `path` is a key below the table's
    root; `action` is the `add` action, as the log has it.
    """

    path: str
    action: Mapping[str, Any]
    vector: DeletionVector | None

    @property
    def size_bytes(self) -> int:
        """Of the data file."""
        return int(self.action["size"])

    @property
    def tags(self) -> Mapping[str, str]:
        """Tags of the file."""
        return self.action.get("tags") or {}

    def row_count(self) -> int:
        """Return how many rows the data file has, deleted ones too; 0 if the log does not say."""
        statistics = self.action.get("stats")
        return int(msgspec.json.decode(statistics).get("numRecords", 0)) if statistics else 0

    def removal(self, now_ms: int, *, is_data_change: bool) -> dict[str, Any]:
        """Return the action that removes the logical file."""
        vector = {} if self.vector is None else {"deletionVector": self.vector.descriptor()}
        return {
            "remove": {
                "path": self.action["path"],
                "deletionTimestamp": now_ms,
                "dataChange": is_data_change,
                "extendedFileMetadata": True,
                "partitionValues": dict(self.action.get("partitionValues") or {}),
                "size": self.action["size"],
                **vector,
            }
        }

    def with_vector(self, vector: DeletionVector, row_count: int) -> dict[str, Any]:
        """Return the action that adds the file with a vector in place of its own. The bounds of
        its columns hold for more rows than there are now.
        """
        statistics = msgspec.json.decode(self.action.get("stats") or "{}")
        statistics |= {"numRecords": row_count, "tightBounds": False}
        kept = ("path", "partitionValues", "size", "modificationTime", "tags")
        values = {name: self.action[name] for name in kept if self.action.get(name) is not None}
        return {
            "add": {
                "partitionValues": {},
                **values,
                "dataChange": True,
                "stats": msgspec.json.encode(statistics).decode(),
                "deletionVector": vector.descriptor(),
            }
        }

    def with_partition(self, values: Mapping[str, str | None]) -> dict[str, Any]:
        """Return the action that adds the file with other texts of its partition's values, and else
        as it was. No row changes.
        """
        kept = ("path", "size", "modificationTime", "stats", "tags", "deletionVector")
        same = {name: self.action[name] for name in kept if self.action.get(name) is not None}
        return {"add": {**same, "partitionValues": dict(values), "dataChange": False}}


class LogicalFiles:
    """The files of a table as of `version`; `removed` are vectors of logical files that commits
    removed, with the times (milliseconds), as far as the log has them.
    """

    def __init__(self, root: str) -> None:
        self.version = -1
        self.files: dict[str, LogicalFile] = {}
        self.removed: dict[DeletionVector, int] = {}
        self._root = root

    def advance(self, version: int, *, by_whole_log: bool = False) -> None:
        """Read the log up to a version: from its newest checkpoint on, if there are many entries,
        unless `by_whole_log`. Raises what reading objects raises, ObjectNotFound if the log does
        not have the version any more.
        """
        reader = store_reader(self._root)
        if version - self.version > _ENTRIES_MAX and not by_whole_log:
            self._read_checkpoint(reader, version)
        while self.version < version:
            try:
                entry = reader.run(reader.store.get(f"{LOG}{self.version + 1:020}.json"))
            except ObjectNotFound:
                if not self._read_checkpoint(reader, version):
                    raise
            else:
                self._apply([msgspec.json.decode(line) for line in entry.splitlines() if line])
                self.version += 1

    def _read_checkpoint(self, reader: StoreReader, version: int) -> bool:
        whole = whole_checkpoints(listed.key for listed in reader.run(reader.store.list(LOG)))
        found = max((one for one in whole if self.version < one <= version), default=None)
        if found is None:
            return False
        self.files, self.removed = {}, {}
        for key in whole[found]:
            for action in _checkpoint_actions(reader, key):
                self._note_removed(action)  # of a file that may be there with another vector
                self._note_added(action)
        self.version = found
        return True

    def _apply(self, actions: list[Mapping[str, Any]]) -> None:
        # A version removes a file with one vector and adds it with another, in any order.
        for action in actions:
            if (removed := action.get("remove")) is not None:
                self.files.pop(unquote(removed["path"]), None)
                self._note_removed(action)
        for action in actions:
            self._note_added(action)

    def _note_removed(self, action: Mapping[str, Any]) -> None:
        removed = action.get("remove") or {}
        if (vector := _vector_of(removed)) is not None:
            self.removed[vector] = removed.get("deletionTimestamp") or 0

    def _note_added(self, action: Mapping[str, Any]) -> None:
        if (added := action.get("add")) is not None:
            path = unquote(added["path"])
            self.files[path] = LogicalFile(path=path, action=added, vector=_vector_of(added))


def _vector_of(action: Mapping[str, Any]) -> DeletionVector | None:
    descriptor = action.get("deletionVector")
    return None if descriptor is None else DeletionVector.of(descriptor)


def _checkpoint_actions(reader: StoreReader, key: str) -> Iterator[dict[str, Any]]:
    file = pq.ParquetFile(pa.BufferReader(reader.run(reader.store.get(key))))
    names = [name for name in ("add", "remove") if name in file.schema_arrow.names]
    for batch in file.iter_batches(columns=names):
        for row in batch.to_pylist():
            for name in names:
                if (action := row[name]) is not None:
                    yield {name: _plain(action)}


def _plain(action: dict[str, Any]) -> dict[str, Any]:
    """Return an action of a checkpoint as an entry of the log has it: maps of Arrow as such."""
    names = [name for name in ("partitionValues", "tags") if action.get(name) is not None]
    maps = {name: dict(action[name]) for name in names}
    return {name: value for name, value in action.items() if value is not None} | maps
