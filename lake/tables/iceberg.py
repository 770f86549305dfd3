"""An Iceberg table over the files of a Delta table: a snapshot for each version, with its files.

The data is there once. Iceberg's metadata names Delta's Parquet files by their places, with the
columns found by name (`schema.name-mapping.default`), since Delta's files have no field ids. The
version that a snapshot shows, and the offsets that its commit added, are in the snapshot's summary;
the newest one is a property of the table too, set in the same commit. A catalog takes a snapshot
only on top of the one that was read: of two runs one fails and reads again, and no file is named
twice. PyIceberg would repeat a lost commit on top of the other one, which is turned off.

Source: Iceberg table specification, version 2 (column projection by name mapping); Delta
transaction log protocol (actions `add`, `remove`, `metaData`).
"""

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import msgspec
import structlog

from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.delta_table import Table, entry_digest, location, one_line, open_table
from lakehead.lake.tables.table_history import CHANGE
from lakehead.lake.tables.table_root import LOG
from lakehead.storage.errors import LakeheadError, ObjectNotFound, SettingsError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table as IcebergTable
    from pyiceberg.table import Transaction
    from pyiceberg.table.snapshots import Snapshot

_log = structlog.get_logger("lake.tables")

_DELTA = "lakehead.delta.table"
VERSION = "lakehead.delta.version"
"""Property of the table, and in the summary of each snapshot: the Delta version that it shows."""
_COMMIT = "lakehead.delta.commit"
"""Property of the table: the digest of that version's commit. A Delta table that was made again in
the same place, or put back to an older state, has other commits under the same numbers.
"""
OFFSETS = "lakehead.change"
"""In the summary: the offsets, as the Delta commit has them."""
_TRIES = 5
_SETTINGS = {
    "commit.retry.num-retries": "0",
    # Each commit leaves a file with the list of all snapshots.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
VERSIONS_MAX = 100
"""Delta versions without a snapshot that get one each. More have one together."""
SNAPSHOTS_MAX = 500
"""Snapshots that the table keeps, the newest ones. PyIceberg copies their list fifteen times for
each commit, so that a table with thousands takes it longer than Delta's commits take.
"""
_EXPIRED_AT_ONCE = 100
_NAME_MAPPING = "schema.name-mapping.default"


class IcebergUnavailable(LakeheadError):
    """The Iceberg table cannot be read or written now. The Delta table is not affected, and the
    next run goes on. The message says why.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The Delta version that the Iceberg table shows now, and the snapshots that were added."""

    version: int
    snapshots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Commit:
    """The actions of a Delta version that a snapshot has."""

    version: int
    digest: str
    """See `_COMMIT`; empty if the log does not have the version any more."""
    added: Sequence[Mapping[str, Any]]
    removed: Sequence[str]
    """Paths as the log has them."""
    is_wider: bool
    """True if the schema may have changed."""
    change: str
    has_vectors: bool = False
    partition_columns: tuple[str, ...] | None = None
    """Those that it sets, if it does."""


def publish(uri: str, catalog: "Catalog", name: str) -> Published:
    """Bring the Iceberg table `name` (`namespace.table`) of a catalog up to the Delta table at
    `uri`. Creates the namespace and the table. May run twice at once, and be killed at any moment.

    Raises SettingsError for a table that cannot be shown (no Delta table, partition columns of
    other types than dates, whole numbers and texts, another table of the name),
    IcebergUnavailable, TableUnavailable.
    """
    from pyiceberg.exceptions import CommitFailedException

    delta = open_table(uri)
    if delta is None:
        raise SettingsError(f"there is no Delta table at {uri}")
    if delta.has_vectors and any(one.vector for one in delta.logical_files().files.values()):
        raise SettingsError(
            f"rows of {uri} are marked by deletion vectors, which Iceberg's readers of its files "
            "do not see: run lakehead optimize, then run it again"
        )
    snapshots = 0
    for attempt in range(_TRIES):
        table = _opened(delta, catalog, name)
        mirror = _Mirror(delta, table)
        try:
            try:
                for commit in mirror.missing():
                    mirror.show(commit)
                    snapshots += 1
            except (FileNotFoundError, LookupError, ValueError) as error:
                # A version between has files that VACUUM deleted, or of types that were replaced.
                _log.info("iceberg_versions_passed_over", table=name, error=one_line(error))
                mirror = _Mirror(delta, table.refresh())
                mirror.show(mirror.difference())
                snapshots += 1
            mirror.expire_old()
            return Published(version=delta.version, snapshots=snapshots)
        except CommitFailedException as error:
            _log.info("iceberg_commit_lost", table=name, attempt=attempt, error=str(error))
    raise IcebergUnavailable(f"other writers committed to {name} {_TRIES} times; run it again")


def expire_others(catalog: "Catalog", name: str) -> int:
    """Remove every snapshot of an Iceberg table but the newest, with the manifests that only they
    have: these hold bounds of columns of files that are to be forgotten. Returns how many there
    were.
    """
    table = catalog.load_table(name)
    kept = table.current_snapshot()
    old = [one for one in table.snapshots() if kept is None or one.snapshot_id != kept.snapshot_id]
    if not old or kept is None:
        return 0
    _expire(table, old, [kept])
    return len(old)


def _expire(table: "IcebergTable", old: "Sequence[Snapshot]", kept: "Sequence[Snapshot]") -> None:
    """Remove snapshots, with the manifests that none of `kept` has. Files go first, so that the
    next run does the rest after a kill.
    """
    needed = {path for one in kept for path in _manifest_paths(table, one)}
    for snapshot in old:
        try:
            manifests = _manifest_paths(table, snapshot)
        except FileNotFoundError:
            continue  # by an earlier run that was killed
        for place in (*(one for one in manifests if one not in needed), snapshot.manifest_list):
            with suppress(FileNotFoundError):
                table.io.delete(place)
    table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in old]).commit()


def _manifest_paths(table: "IcebergTable", snapshot: "Snapshot") -> list[str]:
    return [one.manifest_path for one in snapshot.manifests(table.io)]


def _opened(delta: Table, catalog: "Catalog", name: str) -> "IcebergTable":
    """Return the Iceberg table, made if there is none."""
    from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError

    try:
        table = catalog.load_table(name)
    except NoSuchTableError:
        namespace = name.rpartition(".")[0]
        if namespace:
            catalog.create_namespace_if_not_exists(namespace)
        try:
            table = _created(delta, catalog, name)
        except TableAlreadyExistsError:
            table = catalog.load_table(name)
    shown = table.properties.get(_DELTA)
    if shown != delta.uri:
        raise SettingsError(
            f"the Iceberg table {name} shows {shown or 'no Delta table'}, not {delta.uri}: "
            "choose another name"
        )
    if not _SETTINGS.items() <= table.properties.items():
        with table.transaction() as transaction:
            transaction.set_properties(_SETTINGS)
    return table


def _created(delta: Table, catalog: "Catalog", name: str) -> "IcebergTable":
    """Make the table with its partitions, and no snapshot."""
    for column in delta.partition_columns:
        _kind_of(delta.schema, column)
    properties = {_DELTA: delta.uri, VERSION: "-1", "format-version": "2", **_SETTINGS}
    with catalog.create_table_transaction(name, delta.schema, properties=properties) as transaction:
        with transaction.update_spec() as spec:
            for column in delta.partition_columns:
                spec.add_identity(column)
        _map_names(transaction)
    return catalog.load_table(name)


def _map_names(transaction: "Transaction") -> None:
    """Have columns found by their names, those of the present schema."""
    mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
    transaction.set_properties({_NAME_MAPPING: mapping})


class _Mirror:
    """One run: the Delta table at its version, and the Iceberg table as it was opened."""

    def __init__(self, delta: Table, table: "IcebergTable") -> None:
        self._delta = delta
        self._schema = delta.schema
        self._root = _root(delta.uri)
        self._table = table
        self._reader = store_reader(delta.uri)
        self._files: dict[str, DataFile] | None = None
        """Files of the newest snapshot by their places; None before the first look, which reads all
        manifests: only a commit that removes files needs it.
        """

    def missing(self) -> Iterator[_Commit]:
        """Yield the commits with files that have no snapshot, the oldest first. One commit has the
        difference of both states if there are many of them, if the log lacks one (Delta removes
        entries after 30 days), if one marks rows by deletion vectors that were purged since or sets
        other partition columns, and if the Delta table is another one than was shown.
        Columns that a commit without files has added come with the next one.
        """
        version, is_wider = int(self._table.properties[VERSION]), False
        if self._is_other(version) or self._delta.version - version > VERSIONS_MAX:
            yield self.difference()
            return
        while version < self._delta.version:
            version += 1
            try:
                entry = self._reader.run(self._reader.store.get(f"{LOG}{version:020}.json"))
            except ObjectNotFound:
                version, commit = self._delta.version, self.difference()
            else:
                commit = _commit_of(version, entry)
                columns = self._delta.partition_columns
                if (
                    commit.has_vectors  # rows that only a later version has purged
                    or commit.partition_columns not in {None, columns}
                    or self._partition_columns() != columns
                ):
                    version, commit = self._delta.version, self.difference()
            is_wider |= commit.is_wider
            if commit.added or commit.removed:
                yield replace(commit, is_wider=is_wider)
                is_wider = False

    def _is_other(self, version: int) -> bool:
        """Return whether the Delta table does not have the version that was shown."""
        if version > self._delta.version:
            return True
        shown = self._table.properties.get(_COMMIT)
        return bool(shown) and self._delta.commit_digest(version) not in {None, shown}

    def _partition_columns(self) -> tuple[str, ...]:
        return tuple(field.name for field in self._table.spec().fields)

    def show(self, commit: _Commit) -> None:
        """Commit the snapshot of a Delta version."""
        with self._table.transaction() as transaction:
            if commit.is_wider:
                self._widen(transaction)
            if (columns := self._partition_columns()) != self._delta.partition_columns:
                with transaction.update_spec() as spec:
                    for column in columns:
                        spec.remove_field(column)
                    for column in self._delta.partition_columns:
                        spec.add_identity(column)
            transaction.set_properties({VERSION: str(commit.version), _COMMIT: commit.digest})
            self._add_snapshot(transaction, commit)
        self._table = self._table.refresh()

    def expire_old(self) -> None:
        """Remove the oldest snapshots if there are many; those with a tag or a branch stay."""
        held = {one.snapshot_id for one in self._table.refs().values()}
        known = sorted(self._table.snapshots(), key=lambda one: one.sequence_number or 0)
        old = [one for one in known[:-SNAPSHOTS_MAX] if one.snapshot_id not in held]
        if len(old) < _EXPIRED_AT_ONCE:
            return
        kept = {one.snapshot_id for one in known} - {one.snapshot_id for one in old}
        # A snapshot has a manifest of an older one only if its parent has it too: the first ones
        # that are kept have all that removed ones have in common with later ones.
        first = [
            one
            for one in known
            if one.snapshot_id in held
            or (one.snapshot_id in kept and one.parent_snapshot_id not in kept)
        ]
        try:
            _expire(self._table, old, first)
        except FileNotFoundError as error:  # of a list that others deleted: its needs are unknown
            _log.info("iceberg_snapshots_stay", error=one_line(error))

    def _widen(self, transaction: "Transaction") -> None:
        """Add what the Delta table's schema has. Raises SettingsError for types that no column of
        an Iceberg table can become.
        """
        from pyiceberg.exceptions import ValidationError

        try:
            with transaction.update_schema() as update:
                update.union_by_name(self._schema)
        except ValidationError as error:
            raise SettingsError(
                f"the Iceberg table {'.'.join(self._table.name())} cannot get the columns of "
                f"{self._delta.uri} ({one_line(error)}): drop it from its catalog without purging "
                "its files, which are Delta's, and the next run makes it again"
            ) from error
        _map_names(transaction)

    def _add_snapshot(self, transaction: "Transaction", commit: _Commit) -> None:
        gone = [self._known().pop(self._place(path)) for path in commit.removed]
        added = [
            self._data_file(transaction, action)
            for action in commit.added
            if action.get("dataChange", True) or self._place(action["path"]) not in self._known()
        ]  # Delta adds a file once more to change what the log says of it
        summary = {VERSION: str(commit.version)}
        if commit.change:
            summary[OFFSETS] = commit.change
        update = transaction.update_snapshot(snapshot_properties=summary)
        with update.overwrite() if gone else update.fast_append() as snapshot:
            for file in gone:
                snapshot.delete_data_file(file)
            for file in added:
                snapshot.append_data_file(file)
        if self._files is not None:
            self._files |= {file.file_path: file for file in added}

    def _known(self) -> "dict[str, DataFile]":
        if self._files is None:
            snapshot = self._table.current_snapshot()
            manifests = snapshot.manifests(self._table.io) if snapshot else []
            entries = (
                entry for one in manifests for entry in one.fetch_manifest_entry(self._table.io)
            )
            self._files = {entry.data_file.file_path: entry.data_file for entry in entries}
        return self._files

    def difference(self) -> _Commit:
        """Return what leads from the newest snapshot to the Delta table's version."""
        import pyarrow as pa

        files = pa.table(self._delta.handle.get_add_actions()).to_pylist()
        there = {unquote(one["path"]): one for one in files}
        known = {place.removeprefix(self._root) for place in self._known()}
        return _Commit(
            version=self._delta.version,
            digest=self._delta.commit_digest(self._delta.version) or "",
            added=[
                {
                    "path": one["path"],
                    "size": one["size_bytes"],
                    "partitionValues": one.get("partition"),
                }
                for path, one in there.items()
                if path not in known
            ],
            removed=[quote(path) for path in known if path not in there],
            is_wider=True,
            change="",
        )

    def _place(self, path: str) -> str:
        """Return the whole place of a file, of its path in the log."""
        return self._root + unquote(path)

    def _data_file(self, transaction: "Transaction", action: Mapping[str, Any]) -> "DataFile":
        """Return a file with its statistics, from its own footer."""
        import pyarrow.parquet as pq
        from pyiceberg.io.pyarrow import (
            compute_statistics_plan,
            data_file_statistics_from_parquet_metadata,
            parquet_path_to_id_mapping,
        )
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        metadata = transaction.table_metadata
        place = self._place(action["path"])
        with self._table.io.new_input(place).open() as stream:
            footer = pq.read_metadata(stream)
        schema = metadata.schema()
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=footer,
            stats_columns=compute_statistics_plan(schema, metadata.properties),
            parquet_column_mapping=parquet_path_to_id_mapping(schema),
        )
        values = action.get("partitionValues") or {}
        partition = [
            _value_of(self._schema, column, values.get(column))
            for column in self._delta.partition_columns
        ]
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=place,
            file_format=FileFormat.PARQUET,
            partition=Record(*partition),
            file_size_in_bytes=action["size"],
            sort_order_id=None,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
        file.spec_id = metadata.default_spec_id
        return file


def _commit_of(version: int, entry: bytes) -> _Commit:
    """Return the snapshot of a log entry. A file that is removed and added again stays."""
    actions: list[Mapping[str, Any]] = [msgspec.json.decode(line) for line in entry.splitlines()]
    added = {one["add"]["path"]: one["add"] for one in actions if one.get("add")}
    removed = {one["remove"]["path"] for one in actions if one.get("remove")}
    notes: list[Mapping[str, Any]] = [one["commitInfo"] for one in actions if one.get("commitInfo")]
    metadata = next((one["metaData"] for one in actions if one.get("metaData")), None)
    return _Commit(
        version=version,
        digest=entry_digest(entry),
        added=[action for path, action in added.items() if path not in removed],
        removed=sorted(removed - set(added)),
        is_wider=metadata is not None,
        change=str(notes[0].get(CHANGE) or "") if notes else "",
        has_vectors=any(one.get("deletionVector") for one in added.values()),
        partition_columns=None if metadata is None else tuple(metadata["partitionColumns"]),
    )


def _root(uri: str) -> str:
    """Return a table's place as Iceberg names it, with a slash at the end."""
    place, options = location(uri)
    return (Path(place).absolute().as_uri() if options is None else place.rstrip("/")) + "/"


def _kind_of(schema: Any, column: str) -> Any:
    """Return the type of a partition column. Raises SettingsError for one that has no form here."""
    import pyarrow as pa

    kind = schema.field(column).type
    if not (pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_string(kind)):
        raise SettingsError(
            f"an Iceberg table cannot be partitioned by {column!r} of type {kind}: "
            "by a date, a whole number or a text"
        )
    return kind


def _value_of(schema: Any, column: str, value: Any) -> Any:
    """Return the value of a partition as Iceberg keeps it: a date as days since 1970."""
    import pyarrow as pa

    if value is None or value == "":
        return None
    kind = _kind_of(schema, column)
    if pa.types.is_date(kind):
        day = value if isinstance(value, dt.date) else dt.date.fromisoformat(value)
        return (day - dt.date(1970, 1, 1)).days
    return int(value) if pa.types.is_integer(kind) else str(value)
