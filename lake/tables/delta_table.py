"""A Delta table that records the progress of each partition of a topic in its transactions.

Progress is a `txn` action per partition in the same commit as the files: app id `lakehead:<topic
id>:<partition>`, version = the last offset that the table holds. Delta-rs writes these actions and
neither skips nor orders them, so the order is made here, by compare-and-set: a `DeltaTable` handle
is opened once, its txn versions are read, and the commit goes through that same handle, which
refuses if any commit since then wrote one of our app ids (`CommitConflict`). The loser opens the
table again.

The log is also read as JSON, for files with their statistics, which delta-rs returns only as typed
columns. Entries are read from the first to the newest, so that is for tables that only this package
writes: one that was made for a rebuild.

Nothing here runs before a fork: delta-rs hangs in a forked child whose parent used it.
"""

import hashlib
import os
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from lakehead.lake.store_reader import store_reader
from lakehead.lake.tables.data_file import DataFile, create_entry
from lakehead.lake.tables.ddl import VARIANT
from lakehead.lake.tables.deletion_vectors import ENABLED, FEATURE
from lakehead.lake.tables.logical_files import LogicalFile, LogicalFiles, whole_checkpoints
from lakehead.lake.tables.table_file import TableFile, table_dataset
from lakehead.lake.tables.table_root import (
    LOG,
    OWN_ROOT,
    is_data_file,
    names_below,
    refuse_others,
    require_own_root,
)
from lakehead.storage.errors import LakeheadError, ObjectNotFound, SettingsError, StorageError
from lakehead.storage.failpoints import failpoint
from lakehead.storage.object_store.s3.settings import parse_uri

if TYPE_CHECKING:
    from deltalake import DeltaTable, Schema
    from deltalake.table import ProtocolVersions
    from deltalake.transaction import AddAction


_log = structlog.get_logger("lake.tables")

_FEATURES_OF_1_2 = ("appendOnly", "invariants")
"""Writer features that protocol (1, 2) implies."""
_IMPLIED_FEATURES = (
    (2, _FEATURES_OF_1_2),
    (3, ("checkConstraints",)),
    (4, ("changeDataFeed", "generatedColumns")),
    (5, ("columnMapping",)),
    (6, ("identityColumns",)),
)
"""Writer features that a protocol without lists of features implies, from a writer version on."""
_FEATURES = "Unsupported table features required"
_NO_CHECKPOINT = "Had a _last_checkpoint hint but didn't find any checkpoints"
_FEATURES_OF_REWRITES = frozenset(
    {
        *_FEATURES_OF_1_2,
        FEATURE,
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "generatedColumns",
        "identityColumns",
        "timestampNtz",
        "variantType",
    }
)
"""Writer features that request nothing of a commit without changed rows, in a table whose files
have the names of its columns.
"""
_MAPPING_FEATURE, _READERS_OF_MAPPING = "columnMapping", 2
"""The feature of column mapping, and the reader version that implies it."""
_APPEND_ONLY = "delta.appendOnly"
_MAPPING, _PHYSICAL = "delta.columnMapping.mode", "delta.columnMapping.physicalName"
_CONSTRAINT = "delta.constraints."
_RULES = ("delta.invariants", "delta.generationExpression", "delta.identity.start")
"""Metadata of a column whose values a writer has to check, or to make."""
_TXN_RETENTION = "delta.setTransactionRetentionDuration"
_DIGESTED_BYTES = 16 * 1024
"""Of the end of a log entry. File names in it are random, and a small one is digested whole."""
NOTHING = -1
"""The txn version of an app id that the table has no `txn` action of."""


class CommitConflict(LakeheadError):
    """Another run has committed since this table was opened. Nothing was committed: open the table
    again.
    """


class TableUnavailable(LakeheadError):
    """The table cannot be read or written now. The message says why."""


def app_id(topic_id: str, partition: int) -> str:
    """Return the app id of a partition's progress."""
    return f"lakehead:{topic_id}:{partition}"


def first_id(topic_id: str, partition: int) -> str:
    """Return the app id of the first offset of a partition that a table holds."""
    return f"lakehead:first:{topic_id}:{partition}"


class TableIdentity(NamedTuple):
    """The table that data files are made for: its id, which one that is made again in the same
    place does not have, and its Arrow schema.
    """

    id: str
    schema: Any


class Table:
    """A snapshot of a Delta table of protocol (1, 2), or (3, 7) with deletion vectors or VARIANT
    columns: its schema and progress as of one version.

    Not updated by commits: open it again, or have it `refreshed`, to see them.
    """

    def __init__(self, uri: str, handle: "DeltaTable", log: LogicalFiles | None = None) -> None:
        self.uri = uri
        self._handle = handle
        self._log = log
        self.version = handle.version()

    def refreshed(self) -> "Table":
        """Return a snapshot of the newest version, by reading only the commits since this one,
        which must not be used any more. Raises TableUnavailable.
        """
        from deltalake.exceptions import DeltaError

        try:
            self._handle.update_incremental()
        except (DeltaError, OSError) as error:
            raise TableUnavailable(f"cannot read table {self.uri}: {one_line(error)}") from error
        return Table(self.uri, self._handle, self._log)

    @property
    def handle(self) -> "DeltaTable":
        """The handle of delta-rs: a commit through it succeeds only without a conflicting one."""
        return self._handle

    @property
    def schema(self) -> Any:
        """The Arrow schema, in the types that this package writes."""
        return _as_written(pa.schema(self._handle.schema().to_arrow()))

    @property
    def identity(self) -> TableIdentity:
        """The table's id and schema."""
        return TableIdentity(str(self._handle.metadata().id), self.schema)

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The columns that the table is partitioned by."""
        return tuple(self._handle.metadata().partition_columns)

    @property
    def configuration(self) -> dict[str, str | None]:
        """The table's properties."""
        return dict(self._handle.metadata().configuration)

    @property
    def has_vectors(self) -> bool:
        """True if files may have deletion vectors, so that readers must know them."""
        return FEATURE in (self._handle.protocol().reader_features or ())

    @property
    def takes_vectors(self) -> bool:
        """True if writers may add deletion vectors."""
        return self.has_vectors and (self.configuration.get(ENABLED) or "").lower() == "true"

    @property
    def merges_by_vectors(self) -> bool:
        """True if changes may be committed by deletion vectors here: the table takes them, and has
        no feature and no rule for its rows that request more of such a commit than is written.
        """
        features = set(self._handle.protocol().writer_features or ())
        is_append_only = (self.configuration.get(_APPEND_ONLY) or "").lower() == "true"
        # Features for rules request nothing while there is no rule.
        has_more = is_append_only or self.row_rule or not features <= _FEATURES_OF_REWRITES
        return self.takes_vectors and not has_more

    def logical_files(self, *, by_whole_log: bool = False) -> LogicalFiles:
        """Return the files with their deletion vectors; `by_whole_log` with all removals that the
        log has, of which checkpoints leave out old ones. Raises TableUnavailable.
        """
        if by_whole_log or self._log is None or self._log.version > self.version:
            self._log = LogicalFiles(self.uri)
        try:
            self._log.advance(self.version, by_whole_log=by_whole_log)
        except (OSError, StorageError) as error:
            raise TableUnavailable(f"cannot read the log of {self.uri}: {error}") from error
        return self._log

    @property
    def name(self) -> str | None:
        """The name that the table was created with: its topic's."""
        return self._handle.metadata().name

    def commit_digest(self, version: int) -> str | None:
        """Return a digest of the log's entry of a version, by its content: another commit under the
        same number, as after a restore from a backup, has another one. None if the log does not
        have the entry (any more). Raises the errors of `ObjectStore.get_suffix`.
        """
        reader = store_reader(self.uri)
        key = f"{LOG}{version:020}.json"
        try:
            end, size = reader.run(reader.store.get_suffix(key, _DIGESTED_BYTES))
        except ObjectNotFound:
            return None
        return _digest(end, size)

    def txn_version(self, app: str) -> int:
        """Return the version of the `txn` action of an app id, -1 without one. Raises
        TableUnavailable: what is not known yet is read now, and may be gone.
        """
        from deltalake.exceptions import DeltaError

        try:
            version = self._handle.transaction_version(app)
        except (DeltaError, OSError) as error:
            raise TableUnavailable(f"cannot read table {self.uri}: {one_line(error)}") from error
        return NOTHING if version is None else version

    def last_offset(self, topic_id: str, partition: int) -> int:
        """Return the last offset of a partition that the table holds, -1 if none."""
        return self.txn_version(app_id(topic_id, partition))

    def commit(
        self,
        files: Sequence[DataFile],
        txns: Mapping[str, int],
        *,
        modified_ms: int,
        commit_info: Mapping[str, str],
        replaced_by: Any = None,
    ) -> None:
        """Add `files` and set `txns` (txn versions by app id, such as last offsets), both or
        neither. With `replaced_by`, an Arrow schema, the files replace all rows of the table, and
        it gets this schema. `commit_info` is added to the commit's `commitInfo`.

        Raises CommitConflict if another run has set any of these txn versions since this table was
        opened, or changed the table's schema, with `replaced_by` if it has committed anything;
        TableUnavailable if the outcome is unknown. After CommitConflict the files are in no version
        of the table. TableUnavailable also for a table with a rule that the rows may break, or
        without a lasting record of txn versions.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import DeltaError

        self.require_writable()
        if files:
            self.require_plain_rows()
        if replaced_by is not None:
            self.require_unmapped()
        failpoint("table_commit_prepared")
        try:
            self._handle.create_write_transaction(
                [_add_action(file, modified_ms) for file in files],
                mode="append" if replaced_by is None else "overwrite",
                schema=self._handle.schema() if replaced_by is None else _delta_schema(replaced_by),
                partition_by=list(self.partition_columns),
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(app, mark) for app, mark in txns.items()],
                    custom_metadata=dict(commit_info),
                    # Delta-rs sees no conflict with an OPTIMIZE, whose files would stay.
                    max_commit_retries=None if replaced_by is None else 0,
                ),
            )
        except (DeltaError, OSError) as error:
            self._resolve(files, txns, error, is_overwrite=replaced_by is not None)
        failpoint("table_committed")

    def set_vectors(self, *, is_enabled: bool, modified_ms: int) -> None:
        """Have writers add deletion vectors, or add none: then the vectors that are there stay
        until their files are rewritten. Raises the protocol of the table to (3, 7).

        Raises CommitConflict, TableUnavailable as `commit_actions`, and for a table with features
        that `commit_rewrite` does not know.
        """
        self.require_rewritable()
        protocol, metadata = self._handle.protocol(), self._handle.metadata()
        readers = {*(protocol.reader_features or ()), FEATURE}
        if protocol.min_reader_version == _READERS_OF_MAPPING:
            readers.add(_MAPPING_FEATURE)
        writers = {*_writer_features(protocol), FEATURE}
        raised = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": sorted(readers),
            "writerFeatures": sorted(writers),
        }
        described = {
            "id": str(metadata.id),
            "name": metadata.name,
            "description": metadata.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": self._handle.schema().to_json(),
            "partitionColumns": list(metadata.partition_columns),
            "createdTime": metadata.created_time,
            "configuration": {**metadata.configuration, ENABLED: str(is_enabled).lower()},
        }
        self.commit_actions(
            [*([] if self.has_vectors else [{"protocol": raised}]), {"metaData": described}],
            {},
            operation="SET TBLPROPERTIES",
            modified_ms=modified_ms,
            commit_info={},
        )
        failpoint("table_vectors_set")

    def add_columns(self, fields: Sequence[Any]) -> None:
        """Give the table more columns (Arrow fields), null in the rows of before.

        Raises CommitConflict if they cannot be added any more, TableUnavailable.
        """
        from deltalake.exceptions import DeltaError

        self.require_unmapped()
        try:
            self._handle.alter.add_columns(_delta_schema(fields).fields)
        except (DeltaError, OSError) as error:
            table = open_table(self.uri)
            if table is not None and table.schema != self.schema:
                raise CommitConflict(f"the schema of {self.uri} has changed") from error
            raise TableUnavailable(f"cannot change {self.uri}: {one_line(error)}") from error
        failpoint("table_columns_added")

    def _resolve(
        self,
        files: Sequence[DataFile],
        txns: Mapping[str, int],
        error: Exception,
        *,
        is_overwrite: bool,
    ) -> None:
        """Read the table to find out whether a commit that raised was done after all.

        It may have been: a checkpoint that fails after the commit, or a lost response and a retry
        that met its own entry.
        """
        table = open_table(self.uri)
        if table is None:
            raise TableUnavailable(f"table {self.uri} is gone: {error}") from error
        is_conflict = any(table.txn_version(app) != self.txn_version(app) for app in txns)
        if is_conflict:
            reached = all(table.txn_version(app) >= mark for app, mark in txns.items())
            if files and reached and table.holds(files):  # without files it may be another's
                return
            raise CommitConflict(f"another run has committed to {self.uri}") from error
        if is_overwrite and table.version != self.version:
            if files and table.holds(files):
                return
            raise CommitConflict(f"another run has committed to {self.uri}") from error
        if table.schema != self.schema:
            raise CommitConflict(f"the schema of {self.uri} has changed") from error
        raise TableUnavailable(f"cannot commit to {self.uri}: {one_line(error)}") from error

    def holds(self, files: Sequence[DataFile]) -> bool:
        """Return whether the table's current version has every one of these files."""
        held = {uri.rsplit("/", 1)[-1] for uri in self._handle.file_uris()}
        return all(file.path.rsplit("/", 1)[-1] in held for file in files)

    def commit_actions(
        self,
        actions: Sequence[Mapping[str, Any]],
        txns: Mapping[str, int],
        *,
        operation: str,
        modified_ms: int,
        commit_info: Mapping[str, Any],
    ) -> None:
        """Commit actions of Delta's log that delta-rs does not write, such as those of deletion
        vectors, with `txns`, as the version after this one.

        Raises CommitConflict if there is such a version already, by another run: nothing was
        committed; TableUnavailable if the outcome is unknown.
        """
        marks = [
            {"txn": {"appId": app, "version": mark, "lastUpdated": modified_ms}}
            for app, mark in txns.items()
        ]
        entry = self._entry(operation, [*marks, *actions], modified_ms, commit_info)
        failpoint("table_commit_prepared")
        if not self._put(self.version + 1, entry):
            raise CommitConflict(f"another run has committed to {self.uri}")
        failpoint("table_committed")
        self._checkpoint_after(self.version + 1)

    def commit_rewrite(
        self,
        replaced: Sequence[LogicalFile],
        added: Sequence[Mapping[str, Any]],
        *,
        modified_ms: int,
        commit_info: Mapping[str, Any],
    ) -> None:
        """Replace files by others with the same rows (`added`, actions of Delta's log), after all
        that other runs have committed since this table was opened: a table that is written all the
        time is never the same until a rewrite is done.

        Raises CommitConflict if another run has removed one of the files or marked rows of it, or
        has changed the schema or the protocol: nothing was committed; TableUnavailable if the
        outcome is unknown. (Delta's conflicts of an OPTIMIZE.)
        """
        removed = [file.removal(modified_ms, is_data_change=False) for file in replaced]
        entry = self._entry("OPTIMIZE", [*removed, *added], modified_ms, commit_info)
        failpoint("table_commit_prepared")
        version = self.version + 1
        paths = {file.path for file in replaced}
        while not self._put(version, entry):
            self._require_apart(version, paths)
            version += 1
        failpoint("table_committed")
        self._checkpoint_after(version)

    def _entry(
        self,
        operation: str,
        actions: Sequence[Mapping[str, Any]],
        modified_ms: int,
        commit_info: Mapping[str, Any],
    ) -> bytes:
        self.require_writable()
        note = {
            "timestamp": modified_ms,
            "operation": operation,
            "operationParameters": {},
            "readVersion": self.version,
            "isBlindAppend": False,
            "engineInfo": "lakehead",
            "txnId": str(uuid.uuid4()),
            **commit_info,
        }
        return b"".join(
            msgspec.json.encode(one) + b"\n" for one in ({"commitInfo": note}, *actions)
        )

    def _put(self, version: int, entry: bytes) -> bool:
        """Create the entry of a version, unless there is one of another run."""
        try:
            return create_entry(self.uri, f"{LOG}{version:020}.json", entry)
        except (OSError, StorageError) as error:
            raise TableUnavailable(f"cannot commit to {self.uri}: {error}") from error

    def _require_apart(self, version: int, paths: Collection[str]) -> None:
        """Raise CommitConflict if a version has changed one of these files, or all of the table."""
        reader = store_reader(self.uri)
        try:
            entry = reader.run(reader.store.get(f"{LOG}{version:020}.json"))
        except (OSError, StorageError) as error:
            raise TableUnavailable(f"cannot read the log of {self.uri}: {error}") from error
        for line in entry.splitlines():
            action = msgspec.json.decode(line)
            removed = action.get("remove")
            is_touched = removed is not None and unquote(removed["path"]) in paths
            if is_touched or "metaData" in action or "protocol" in action:
                raise CommitConflict(f"another run has committed to {self.uri}")

    def _checkpoint_after(self, version: int) -> None:
        if version % _CHECKPOINT_COMMITS == 0:
            self._checkpoint()

    def _checkpoint(self) -> None:
        """Write a checkpoint of the newest version, as delta-rs does after its own commits. Without
        one, readers read more entries.
        """
        from deltalake.exceptions import DeltaError

        try:
            now = open_table(self.uri)
            if now is not None:
                now.handle.create_checkpoint()
                failpoint("table_checkpointed")
                now.handle.cleanup_metadata()
        except (DeltaError, OSError, TableUnavailable) as error:
            _log.info("table_checkpoint_failed", table=self.uri, error=one_line(error))

    def data_files(self, predicate: Any = None) -> Iterator[TableFile]:
        """Yield the files that may have rows which a predicate (of `pyarrow.dataset`) selects.
        Raises TableUnavailable.
        """
        from deltalake.exceptions import DeltaError

        self.require_own_names()
        if not self.has_vectors:
            plain = self.plain_dataset(by_bounds=predicate is not None)
            for fragment in plain.get_fragments(filter=predicate):
                yield TableFile(self.uri, fragment, plain.schema)
            return
        try:
            added = pa.table(self._handle.get_add_actions(flatten=True))
            schema = pa.schema(self._handle.schema().to_arrow())
            dataset = table_dataset(*location(self.uri), schema, added)
        except (DeltaError, OSError) as error:
            raise TableUnavailable(f"cannot read table {self.uri}: {one_line(error)}") from error
        known = self.logical_files().files
        for fragment in dataset.get_fragments(filter=predicate):
            file = known[fragment.path]
            yield TableFile(self.uri, fragment, schema, file)

    def require_own_names(self) -> None:
        """Raise TableUnavailable for a table whose files have other names for its columns, as after
        a column was renamed (column mapping): files are read and written by the columns' names.
        """
        mode = self.configuration.get(_MAPPING) or "none"
        if mode == "none":
            return
        schema = msgspec.json.decode(self._handle.schema().to_json())
        if mode != "name" or (name := _renamed(schema)):
            which = f": column {name}" if mode == "name" else ""
            raise TableUnavailable(
                f"{self.uri} has other names for columns in its files ({_MAPPING}={mode}{which}), "
                "which another engine has set: ALTER TABLE ... DROP FEATURE columnMapping, or name "
                "another place (lakehead.table.path)"
            )

    def require_unmapped(self) -> None:
        """Raise TableUnavailable for a table with column mapping, whose schema is not to be set:
        delta-rs would leave out the ids of columns, without which no engine reads the table.
        """
        mode = self.configuration.get(_MAPPING) or "none"
        if mode != "none":
            raise TableUnavailable(
                f"the columns of {self.uri} cannot be changed ({_MAPPING}={mode}), since another "
                "engine has given them ids: ALTER TABLE ... DROP FEATURE columnMapping, or name "
                "another place (lakehead.table.path)"
            )

    def require_writable(self) -> None:
        """Raise TableUnavailable as `require_own_names`, and for a table whose readers forget txn
        versions after some time: with them its progress, so that all records would be added again.
        """
        self.require_own_names()
        if self.configuration.get(_TXN_RETENTION):
            raise TableUnavailable(
                f"{self.uri} loses its record of progress after some time ({_TXN_RETENTION}), "
                f"which another engine has set: ALTER TABLE ... UNSET TBLPROPERTIES "
                f"('{_TXN_RETENTION}'), or name another place (lakehead.table.path)"
            )

    @property
    def row_rule(self) -> str:
        """A rule of the table for its rows, in words, which a writer of files has to obey: a
        constraint, or a column that is generated. Empty for none.
        """
        for name in self.configuration:
            if name.startswith(_CONSTRAINT):
                return f"constraint {name.removeprefix(_CONSTRAINT)}"
        for field in self._handle.schema().fields:
            for rule in _RULES:
                if rule in field.metadata:
                    return f"column {field.name} ({rule})"
        return ""

    def require_plain_rows(self) -> None:
        """Raise TableUnavailable for a table with a rule that rows of records may break."""
        if rule := self.row_rule:
            raise TableUnavailable(
                f"{self.uri} has a rule for its rows that records are not checked by: {rule}. "
                "Another engine has added it: drop it (ALTER TABLE), or name another place "
                "(lakehead.table.path)"
            )

    def require_rewritable(self) -> None:
        """Raise TableUnavailable for a table with features that `commit_rewrite` does not know."""
        features = set(self._handle.protocol().writer_features or ())
        if unknown := features - _FEATURES_OF_REWRITES:
            text = _with_advice(f"{_FEATURES}: {', '.join(sorted(unknown))}")
            raise TableUnavailable(f"cannot write {self.uri}: {text}")

    def files_at(self, paths: Collection[str]) -> list[TableFile]:
        """Return the files with these paths below the table's root. Raises TableUnavailable."""
        from deltalake.exceptions import DeltaError

        self.require_own_names()
        wanted, known = set(paths), self.logical_files().files
        try:
            added = pa.table(self._handle.get_add_actions(flatten=True))
            is_wanted = [unquote(path) in wanted for path in added.column("path").to_pylist()]
            schema = pa.schema(self._handle.schema().to_arrow())
            dataset = table_dataset(*location(self.uri), schema, added.filter(pa.array(is_wanted)))
        except (DeltaError, OSError) as error:
            raise TableUnavailable(f"cannot read table {self.uri}: {one_line(error)}") from error
        return [
            TableFile(self.uri, fragment, schema, known[fragment.path])
            for fragment in dataset.get_fragments()
        ]

    def files(self, rows_max: int, columns: Sequence[str] | None = None) -> Iterator[Iterator[Any]]:
        """Yield the rows of each file, with its partition columns, as `batches` does."""
        for file in self.data_files():
            yield file.batches(rows_max, columns)

    def batches(self, rows_max: int, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the rows of the table, all columns or some, as Arrow tables of at most
        `rows_max`.

        Files and row groups are read in turn, and about one row group is in memory: a file that is
        small because its rows are alike may be too much for that.
        """
        for batches in self.files(rows_max, columns):
            yield from batches

    def count(self, predicate: Any = None) -> int:
        """Return how many rows a predicate about partitions and offsets selects, without one
        all. Raises TableUnavailable.
        """
        if not self.has_vectors:
            plain = self.plain_dataset(by_bounds=predicate is not None)
            return int(plain.count_rows(filter=predicate))
        return sum(file.count(predicate) for file in self.data_files(predicate))

    def rows(self, columns: Sequence[str], predicate: Any) -> Any:
        """Return some columns of the rows that a predicate about partitions and offsets selects.
        Raises TableUnavailable.
        """
        if not self.has_vectors:
            plain = self.plain_dataset(by_bounds=predicate is not None)
            return plain.to_table(columns=list(columns), filter=predicate)
        schema = pa.schema(self._handle.schema().to_arrow())
        found = [pa.schema([schema.field(name) for name in columns]).empty_table()]
        found += [file.rows(columns, predicate) for file in self.data_files(predicate)]
        return pa.concat_tables(found)

    def plain_dataset(self, *, by_bounds: bool) -> Any:
        """Return the dataset of a table without deletion vectors; `by_bounds` for scans by a
        predicate. Raises TableUnavailable, also for a table with features that delta-rs does not
        read.
        """
        from deltalake.exceptions import DeltaError

        try:
            plain = self._handle.to_pyarrow_dataset()
            if not by_bounds:
                return plain
            # It has null for a bound that the log does not have, and so a predicate passes over
            # the file.
            added = pa.table(self._handle.get_add_actions(flatten=True))
            return table_dataset(*location(self.uri), plain.schema, added)
        except (DeltaError, OSError) as error:
            raise TableUnavailable(f"cannot read table {self.uri}: {one_line(error)}") from error


_CHECKPOINT_COMMITS = 100
"""Commits between two checkpoints, as delta-rs has it."""


def _add_action(file: DataFile, modified_ms: int) -> "AddAction":
    from deltalake.transaction import AddAction

    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values=dict(file.partition),
        modification_time=modified_ms,
        data_change=True,
        stats=file.statistics,
    )


def open_table(uri: str, version: int | None = None) -> Table | None:
    """Open a version of the table at `uri`, the newest unless one is named; None if there is no
    table.

    Raises TableUnavailable if it cannot be read.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        place, options = location(uri)
        return Table(uri, DeltaTable(place, version=version, storage_options=options))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise TableUnavailable(f"cannot read table {uri}: {one_line(error)}") from error


def create_table(
    uri: str,
    schema: Any,
    *,
    name: str,
    description: str,
    partition_by: Sequence[str] = (),
    txns: Mapping[str, int] = MappingProxyType({}),
) -> Table:
    """Create an empty table with these txns and open it; if another run has just created one, open
    that one.

    Delta-rs refuses properties of our own, so what a table is made from is its name. Raises
    SettingsError for a root that holds something else, as Delta does; TableUnavailable.
    """
    from deltalake import CommitProperties, DeltaTable, Transaction
    from deltalake.exceptions import DeltaError

    require_own_root(uri)
    try:
        place, options = location(uri)
        DeltaTable.create(
            place,
            _delta_schema(schema),
            mode="error",
            name=name,
            description=description,
            partition_by=list(partition_by),
            storage_options=options,
            commit_properties=CommitProperties(
                app_transactions=[
                    Transaction(app, mark) for app, mark in {**txns, OWN_ROOT: 1}.items()
                ]
            ),
        )
    except (DeltaError, OSError) as error:
        if (table := open_table(uri)) is not None:
            return table
        raise TableUnavailable(f"cannot create table {uri}: {one_line(error)}") from error
    table = open_table(uri)
    if table is None:
        raise TableUnavailable(f"table {uri} vanished after it was created")
    return table


def replace_table(
    uri: str,
    schema: Any,
    files: Sequence[DataFile],
    txns: Mapping[str, int],
    *,
    old: Table | None,
    name: str,
    description: str,
    partition_by: Sequence[str],
    modified_ms: int,
    commit_info: Mapping[str, str],
) -> None:
    """Replace the table at `uri`, as of `old` (None: there was none), in one commit: remove its
    files, add `files`, and set this schema, these partition columns and txns. Properties of the old
    table stay.

    Raises CommitConflict if another run has committed since `old`, SettingsError as `create_table`
    where there is no table, TableUnavailable.
    """
    from deltalake import CommitProperties, Transaction
    from deltalake.exceptions import DeltaError
    from deltalake.transaction import create_table_with_add_actions

    now = open_table(uri)
    if (None if now is None else now.version) != (None if old is None else old.version):
        raise CommitConflict(f"another run has committed to {uri}: run it again")
    if old is None:
        require_own_root(uri)
        txns = {**txns, OWN_ROOT: 1}
    else:  # its properties stay
        old.require_writable()
        old.require_plain_rows()
        old.require_unmapped()
    place, options = location(uri)
    kept = {} if old is None else {k: v for k, v in old.configuration.items() if k != ENABLED}
    try:
        create_table_with_add_actions(
            place,
            _delta_schema(schema),
            [_add_action(file, modified_ms) for file in files],
            mode="overwrite",
            partition_by=list(partition_by),
            name=name,
            description=description,
            configuration=kept,
            storage_options=options,
            commit_properties=CommitProperties(
                app_transactions=[Transaction(app, mark) for app, mark in txns.items()],
                custom_metadata=dict(commit_info),
                max_commit_retries=0,
            ),
        )
    except (DeltaError, OSError) as error:
        table = open_table(uri)
        if table is not None and (old is None or table.version != old.version):
            raise CommitConflict(
                f"another run has committed to {uri}: {one_line(error)}"
            ) from error
        raise TableUnavailable(f"cannot replace table {uri}: {one_line(error)}") from error
    if old is not None and old.takes_vectors:
        _take_vectors_again(uri, modified_ms)


def _take_vectors_again(uri: str, modified_ms: int) -> None:
    """Have writers of a table that was replaced add deletion vectors, as before: by a commit of its
    own, since delta-rs would have readers know VARIANT too. After a kill the next run does it.
    """
    table = open_table(uri)
    if table is not None:
        with suppress(CommitConflict):
            table.set_vectors(is_enabled=True, modified_ms=modified_ms)


def entry_digest(entry: bytes) -> str:
    """Return the digest that `Table.commit_digest` has of a log entry."""
    return _digest(entry[-_DIGESTED_BYTES:], len(entry))


def _digest(end: bytes, size: int) -> str:
    return hashlib.sha256(b"%d %b" % (size, end)).hexdigest()[:32]


def location(uri: str) -> tuple[str, dict[str, str] | None]:
    """Return what delta-rs calls the place that an object-store URI names, and how it gets there.

    Raises SettingsError for a place that cannot hold a table.
    """
    if uri.startswith("memory:"):
        raise SettingsError("a table cannot be kept in memory: use a folder or s3://bucket/prefix")
    if not uri.startswith("s3:"):
        return uri.removeprefix("file:").removeprefix("//") if uri.startswith(
            "file:"
        ) else uri, None
    settings = parse_uri(uri)
    if settings.profile:
        raise SettingsError("a table cannot use profile=: set AWS_PROFILE instead")
    has_keys = all(map(os.environ.get, ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")))
    options = {
        # Else delta-rs looks into profile files and the like for AWS's own endpoints alone.
        "aws_force_credential_load": "" if has_keys else "true",
        "region": settings.region,
        "endpoint": settings.endpoint,
        "allow_http": "true" if settings.endpoint.startswith("http://") else "",
        "virtual_hosted_style_request": "" if settings.is_path_style else "true",
        "aws_server_side_encryption": settings.encryption,
        "aws_sse_kms_key_id": settings.kms_key,
    }
    place = f"s3://{settings.bucket}/{settings.prefix}"
    return place, {name: value for name, value in options.items() if value}


def _delta_schema(schema: Any) -> "Schema":
    """The schema that a table has for the fields of an Arrow schema."""
    from deltalake import Field, Schema, VariantType

    return Schema(
        [
            Field(field.name, VariantType())
            if field.type == VARIANT
            else Schema.from_arrow(pa.schema([field])).fields[0]
            for field in schema
        ]
    )


def _as_written(schema: Any) -> Any:
    """The schema with plain Arrow types in place of delta-rs's large and view types."""
    return pa.schema([field.with_type(_plain(field.type)).with_metadata(None) for field in schema])


def _plain(kind: Any) -> Any:
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    return kind


def one_line(error: Exception) -> str:
    """Return what an error says, for a message of one line."""
    return _with_advice(" ".join(str(error).split()))


def _writer_features(protocol: "ProtocolVersions") -> set[str]:
    """Return the features of writers that a protocol lists, or else implies."""
    if protocol.writer_features is not None:
        return set(protocol.writer_features)
    return {
        feature
        for version, features in _IMPLIED_FEATURES
        if version <= protocol.min_writer_version
        for feature in features
    }


def _with_advice(text: str) -> str:
    if _NO_CHECKPOINT in text:
        return (
            f"{text}: restore the checkpoint, or delete _delta_log/_last_checkpoint, and the table "
            "is read from the entries of its log, if it has all of them"
        )
    if _FEATURES not in text:
        return text
    return (
        f"{text}: another engine has added them. Set another lakehead.table.path, "
        "where a new table is made, or drop them (ALTER TABLE ... DROP FEATURE; "
        "clustering stays)"
    )


def _renamed(kind: Any) -> str:
    """Return a field of a type, in Delta's JSON, that has another name in data files; empty for
    none.
    """
    if not isinstance(kind, dict):
        return ""
    for field in kind.get("fields", ()):
        name: str = field["name"]
        if field.get("metadata", {}).get(_PHYSICAL, name) != name:
            return name
        if inner := _renamed(field["type"]):
            return f"{name}.{inner}"
    inner_types = (kind.get(part) for part in ("elementType", "keyType", "valueType"))
    return next(filter(None, map(_renamed, inner_types)), "")


_FIRST = f"{LOG}{0:020}.json"


def current_files(uri: str) -> list[DataFile]:
    """Return the data files of the newest version. Raises what reading objects raises."""
    files: dict[str, DataFile] = {}
    for action in _actions(uri):
        if (added := action.get("add")) is not None:
            statistics = added["stats"]
            files[added["path"]] = DataFile(
                path=unquote(added["path"]),  # a URI there, a key here
                size_bytes=added["size"],
                record_count=msgspec.json.decode(statistics)["numRecords"],
                statistics=statistics,
                partition=tuple(added["partitionValues"].items()),
            )
        elif (removed := action.get("remove")) is not None:
            files.pop(removed["path"], None)
    return list(files.values())


def removed_files(uri: str) -> dict[str, int]:
    """Return the data files that commits have removed, with the times (milliseconds), as far as the
    log has its entries. Raises what reading objects raises.
    """
    removals = (one["remove"] for one in _actions(uri) if one.get("remove"))
    return {unquote(one["path"]): one.get("deletionTimestamp") or 0 for one in removals}


def applications(uri: str) -> set[str]:
    """Return the names of all `txn` actions that a table's log has: those of its newest checkpoint
    and of all entries that are left. Raises what reading objects raises.
    """
    reader = store_reader(uri)
    whole = whole_checkpoints(listed.key for listed in reader.run(reader.store.list(LOG)))
    names = {action["txn"]["appId"] for action in _actions(uri) if action.get("txn")}
    for key in whole[max(whole)] if whole else ():
        data = pa.BufferReader(reader.run(reader.store.get(key)))
        rows = pq.read_table(data, columns=["txn"]).column("txn").to_pylist()
        names |= {row["appId"] for row in rows if row is not None}
    return names


def _actions(uri: str) -> Iterator[dict[str, Any]]:
    reader = store_reader(uri)
    for listed in reader.run(reader.store.list(LOG)):
        if listed.key.endswith(".json"):
            for line in reader.run(reader.store.get(listed.key)).splitlines():
                yield msgspec.json.decode(line)


def delete_table(uri: str, *, name: str) -> None:
    """Delete the table of that name, as which it was created without rows in a root of its own: its
    log and its data files; nothing where there is no table. Killed on the way, it leaves a table of
    before.

    Raises SettingsError, and deletes nothing, for a table of another name and where other files lie
    below its root; TableUnavailable.
    """
    table = open_table(uri)
    if table is None:
        return
    if table.name != name or table.txn_version(OWN_ROOT) == NOTHING:
        raise SettingsError(
            f"{uri} is in the way, a table of the name {table.name!r} that was not made for this: "
            "move it away, or name another place for the other one (lakehead.table.path)"
        )
    names = names_below(uri)
    advice = "these files are in the way of a rebuild: move them away"
    refuse_others(uri, (one for one in names if not is_data_file(one)), advice)
    reader = store_reader(uri)
    log = sorted((one for one in names if one.startswith(LOG) and one != _FIRST), reverse=True)
    # The newest entry first, one by one: what is left is the log of an older version. The first
    # entry, of a table without rows, says until the end what all of this is.
    for one in log:
        reader.run(reader.store.delete([one]))
        failpoint("delta_log_entry_deleted")
    if files := [one for one in names if not one.startswith(LOG)]:
        reader.run(reader.store.delete(files))
    failpoint("delta_files_deleted")
    reader.run(reader.store.delete([_FIRST]))
