"""The change data feed of a Delta table, version by version.

A version is in the topic as a whole or not at all: what it deletes comes first, as tombstones, then
what it inserts and updates, so that the newest record of a key is the row that the table has. The
position is the last version that was read, with a digest of its commit: a table that is put back to
an older state has other commits under the same numbers later.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from lakehead.connectors.runtime.errors import BadInput, InputChanged, InputLost
from lakehead.connectors.runtime.interfaces import (
    Batch,
    DeadLetter,
    Position,
    Positions,
    Record,
    Work,
)
from lakehead.connectors.settings import DeltaSettings
from lakehead.connectors.sources.values import (
    NoSuchValue,
    PythonRow,
    encoded,
    key_of,
    python_rows,
    timestamp_of,
)
from lakehead.storage.errors import SettingsError

if TYPE_CHECKING:
    from lakehead.lake.tables.delta_table import Table


T = TypeVar("T")

_BATCH_BYTES = 512 * 1024
_ROWS_AT_ONCE = 2_000
_CHANGE = "_change_type"
_VERSION = "_commit_version"
_TIME = "_commit_timestamp"
_GONE = ("not found", "No such file", "NoSuchKey")
_NAMES = {"insert": b"insert", "update_postimage": b"update", "delete": b"delete"}
_REMOVED = "_change_type = 'delete'"
_REMOVED_BY_UPDATES = "_change_type IN ('delete', 'update_preimage')"
_ADDED = "_change_type IN ('insert', 'update_postimage')"


class DeltaSource:
    """Reads the changes of one table; see `DeltaSettings`."""

    def __init__(self, settings: DeltaSettings) -> None:
        self._settings = settings
        self._table: Table | None = None

    def work(self, positions: Positions) -> Sequence[Work]:
        """See `Source.work`. Raises SettingsError, InputChanged, TableUnavailable."""
        table = self._opened()
        self._table = table
        position = positions(self._partition)
        if position is not None and position["id"] != self._id(table):
            raise InputChanged(
                f"{self._settings.path} is another table than the one that was read: give the "
                "connector another name"
            )
        if position is not None and position.get("was_read", True):
            self._check_history(table, position)
        if self._next(position, table) > table.version and position is not None:
            return []
        return [Work(self._partition, self._settings.path, 0)]

    def read(self, work: Work, position: Position | None) -> Iterator[Batch]:  # noqa: ARG002
        """See `Source.read`. Raises BadInput, InputLost, SettingsError."""
        table = self._table
        assert table is not None
        first = self._next(position, table)
        if position is None:  # so that "latest" means that of the first run
            is_there = first <= table.version + 1
            yield Batch((), {**self._at(table, first - 1), "was_read": is_there})
        for version in range(first, table.version + 1):
            removed = _REMOVED_BY_UPDATES if self._settings.keys_change else _REMOVED
            yield from self._changes(table, version, removed, "deletion")
            yield from self._changes(table, version, _ADDED, "row")
            yield Batch((), self._at(table, version))

    def _check_history(self, table: "Table", position: Position) -> None:
        """Raise InputChanged if the table was put back to an older state than the one that was
        read, also if it has had other commits since then.
        """
        path, version = self._settings.path, int(position["version"])
        if version > table.version:
            raise InputChanged(
                f"{path} ends at version {table.version} and was read to {version}: an older state "
                "was put in its place; give the connector another name"
            )
        was = position.get("commit")
        now = table.commit_digest(version) if was is not None else None
        if now not in {None, was}:
            raise InputChanged(
                f"version {version} of {path} is another commit than the one that was read: an "
                "older state was put in its place, and other commits followed; give the connector "
                "another name"
            )

    def close(self) -> None:
        """See `Source.close`: nothing is open."""

    @property
    def _partition(self) -> Mapping[str, str]:
        return {"source": "delta"}  # one table for each connector; its id is in the position

    def _next(self, position: Position | None, table: "Table") -> int:
        if position is not None:
            return int(position["version"]) + 1
        start = self._settings.start
        if start == "latest":
            return table.version + 1
        return 0 if start == "earliest" else start

    def _at(self, table: "Table", version: int) -> Position:
        digest = table.commit_digest(version) if version >= 0 else None
        position = {"version": version, "id": self._id(table)}
        return position if digest is None else {**position, "commit": digest}

    def _id(self, table: "Table") -> str:
        return str(table.handle.metadata().id)

    def _opened(self) -> "Table":
        try:
            from lakehead.lake.tables.delta_table import open_table
        except ModuleNotFoundError as error:
            raise SettingsError(
                f"{error.name} is not installed; get it with: pip install 'lakehead[lake]'"
            ) from None
        path = self._settings.path
        table = self._table.refreshed() if self._table is not None else open_table(path)
        if table is None:
            raise SettingsError(f"source.path: there is no Delta table at {path}")
        names = {field.name for field in table.handle.schema().fields}
        if absent := [name for name in self._settings.key if name not in names]:
            raise SettingsError(f"source.key: table {path} has no column {absent[0]}")
        return table

    def _changes(self, table: "Table", version: int, predicate: str, kind: str) -> Iterator[Batch]:
        """Yield the changes of one version that a predicate names, and `kind` for people."""
        records: list[Record] = []
        letters: list[DeadLetter] = []
        size = 0
        for number, row in enumerate(self._rows(table, version, predicate), 1):
            outcome = self._outcome(
                row, f"{self._settings.path}, version {version}, {kind} {number}"
            )
            if isinstance(outcome, DeadLetter):
                letters.append(outcome)
                size += len(outcome.raw)
            else:
                records.append(outcome)
                size += outcome.size_bytes
            if size >= _BATCH_BYTES or len(records) + len(letters) >= _ROWS_AT_ONCE:
                yield Batch(tuple(records), {}, tuple(letters), size, is_whole=False)
                records, letters, size = [], [], 0
        if records or letters:
            yield Batch(tuple(records), {}, tuple(letters), size, is_whole=False)

    def _rows(self, table: "Table", version: int, predicate: str) -> Iterator[PythonRow]:
        import pyarrow as pa
        from deltalake.exceptions import DeltaError

        def loaded() -> Any:
            feed = table.handle.load_cdf(
                starting_version=version, ending_version=version, predicate=predicate
            )
            return pa.RecordBatchReader.from_stream(feed)

        feed = self._explained(loaded, version, (DeltaError, OSError, pa.ArrowException))
        while True:
            batch = self._explained(
                lambda: next(feed, None), version, (DeltaError, OSError, pa.ArrowException)
            )
            if batch is None:
                return
            for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
                yield from python_rows(batch.slice(start, _ROWS_AT_ONCE))

    def _explained(
        self, call: Callable[[], T], version: int, errors: tuple[type[Exception], ...]
    ) -> T:
        from lakehead.lake.tables.delta_table import one_line

        try:
            return call()
        except errors as error:
            reason = one_line(error)
            path = self._settings.path
            if "change data enabled" in reason:
                raise BadInput(
                    f"version {version} of {path} has no change data feed: set the table property "
                    "delta.enableChangeDataFeed = true, and source.start to a version since then"
                ) from None
            if "Invalid table version" in reason:
                raise InputLost(
                    f"version {version} of {path} is not in the table's log any more: the log was "
                    "cleaned before it was read; give the connector another name and source.start "
                    "the oldest version there is"
                ) from None
            if any(word in reason for word in _GONE):
                raise InputLost(
                    f"files of version {version} of {path} were deleted, by VACUUM for example: "
                    "give the connector another name, and source.start a version that has its files"
                ) from None
            raise BadInput(f"cannot read version {version} of {path}: {reason}") from None

    def _outcome(self, row: PythonRow, place: str) -> Record | DeadLetter:
        columns = dict(row.columns)
        change = columns.pop(_CHANGE)
        version = columns.pop(_VERSION)
        moment = timestamp_of(columns, _TIME, "ms")
        del columns[_TIME]
        is_added = change in {"insert", "update_postimage"}
        needed = columns.keys() if is_added else set(self._settings.key)
        if not row.unreadable.keys().isdisjoint(needed):
            return DeadLetter(place, row.reason, encoded(columns))
        try:
            key = key_of(columns, self._settings.key)
        except NoSuchValue as error:
            return DeadLetter(place, str(error), encoded(columns))
        headers = (
            ("lakehead.change", _NAMES.get(change, b"delete")),
            ("lakehead.version", str(version).encode()),
        )
        value = encoded(columns) if is_added else None
        return Record(value, key, headers, moment, None, place)
