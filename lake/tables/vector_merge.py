"""MERGE by deletion vectors: rows that a change replaces or deletes are marked, new ones appended.

The key columns of the files that may have keys of the round are read, and partition, offset and
timestamp of the rows that have one. No file is rewritten: the commit has one new file for each
partition with put rows, and for each old file with changed rows its vector. It is made against the
version that was read, so a conflicting commit of another run fails it.

A MERGE that keeps history, empties the table or compares floating-point keys is left to delta-rs,
which knows vectors and rewrites files. So is one of a table to which another engine has given
features of Delta that are not written here (row tracking, constraints): delta-rs obeys or refuses.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakehead.lake.tables.data_file import DataFile, write_data_file
from lakehead.lake.tables.deletion_vectors import write_vectors
from lakehead.lake.tables.delta_table import Table, TableUnavailable
from lakehead.lake.tables.key_search import KeySearch
from lakehead.lake.tables.logical_files import LogicalFile
from lakehead.lake.tables.partitions import split_rows
from lakehead.lake.tables.table_file import RowGroup, TableFile, without
from lakehead.lake.tables.upsert import PUT, Merge
from lakehead.lake.tables.values.changes import OP
from lakehead.storage.failpoints import failpoint

_ORDER = ("_partition", "_offset", "_timestamp")


def can_merge_by_vectors(merge: Merge) -> bool:
    """Return whether a MERGE is one of newest changes, by keys that are compared exactly."""
    kinds = (merge.source.schema.field(name).type for name in merge.names)
    return bool(merge.names) and not any(map(pa.types.is_floating, kinds))


def merge_by_vectors(
    table: Table,
    merge: Merge,
    txns: Mapping[str, int],
    *,
    modified_ms: int,
    commit_info: Mapping[str, str],
) -> None:
    """Apply the changes and set `txns` in one commit. Raises CommitConflict if another run has
    committed since the table was looked at, TableUnavailable, and what reading and writing files
    raises.
    """
    changes = _Changes(merge)
    deleted: list[npt.NDArray[np.int64]] = []
    changed: list[tuple[LogicalFile, int]] = []
    actions: list[Mapping[str, Any]] = []
    replaced = 0
    for file in table.data_files(changes.condition()):
        try:
            before = file.deleted()
            found = changes.replaced(file, before)
            row_count = file.row_count() if len(found) else 0
        except (OSError, pa.ArrowException) as error:
            raise TableUnavailable(f"cannot read {file.path} of {table.uri}: {error}") from error
        if not len(found):
            continue
        assert file.file is not None, "a table with vectors has its files from the log"
        replaced += len(found)
        actions.append(file.file.removal(modified_ms, is_data_change=True))
        if (rows := np.union1d(before, found)).size < row_count:
            deleted.append(rows)
            changed.append((file.file, row_count))
    added = written_rows(table, changes.put_rows())
    vectors, vector_bytes = write_vectors(table.uri, deleted)
    failpoint("merge_vectors_written")
    actions += [
        file.with_vector(vector, row_count)
        for (file, row_count), vector in zip(changed, vectors, strict=True)
    ]
    actions += [add_action(file, modified_ms) for file in added]
    if not actions:
        table.commit([], txns, modified_ms=modified_ms, commit_info=commit_info)
        return
    counts = {
        "numTargetRowsInserted": sum(file.record_count for file in added),
        "numTargetRowsDeleted": replaced,
        "numTargetFilesAdded": len(added),
        "numTargetDeletionVectorsAdded": len(vectors),
        "numTargetBytesAdded": sum(file.size_bytes for file in added) + vector_bytes,
    }
    table.commit_actions(
        actions,
        txns,
        operation="MERGE",
        modified_ms=modified_ms,
        commit_info={
            **commit_info,
            "operationMetrics": {name: str(count) for name, count in counts.items()},
        },
    )


def written_rows(table: Table, rows: Any) -> list[DataFile]:
    """Write the table's columns of rows, a file for each partition that they have. Raises the
    errors of `ObjectStore.create`.
    """
    schema = table.schema
    plain = rows.select(schema.names).cast(schema)
    return [
        write_data_file(table.uri, part.rows, part.values)
        for part in split_rows(plain, table.partition_columns)
    ]


def add_action(
    file: DataFile, modified_ms: int, *, is_data_change: bool = True, **more: Any
) -> dict[str, Any]:
    """Return the action of the log that adds a file."""
    return {
        "add": {
            "path": quote(file.path, safe="/=-_.~"),
            "partitionValues": dict(file.partition),
            "size": file.size_bytes,
            "modificationTime": modified_ms,
            "dataChange": is_data_change,
            "stats": file.statistics,
            **more,
        }
    }


class _Changes:
    """The rows of a MERGE's source, and which of them the table has rows for."""

    def __init__(self, merge: Merge) -> None:
        self._source = merge.source.combine_chunks()
        self._search = KeySearch(self._source.select(list(merge.names)))
        self._is_put = np.asarray(pc.equal(self._source.column(OP), PUT))
        self._is_new = np.ones(self._source.num_rows, np.bool_)
        self._is_later = np.zeros(self._source.num_rows, np.bool_)

    def condition(self) -> Any:
        """Return what holds for each row of the table that a change may meet."""
        return self._search.condition()

    def replaced(self, file: TableFile, deleted: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the numbers of the rows of a file that changes replace or delete, in order;
        `deleted` ones are not there. Take note of the changes that a row was found for.
        """
        numbers, parts = [np.array([], np.int64)], []
        for group in file.row_groups():
            if not self._search.may_be_in(group):
                continue
            found = self._candidates(group, deleted)
            if len(found):
                numbers.append(found + group.first)
                parts.append(group.rows([*self._search.names, *_ORDER]).take(pa.array(found)))
        if not parts:
            return numbers[0]
        rows = pa.concat_tables(parts)
        which = self._search.key_of(rows)
        is_met = which >= 0
        rows, which = rows.filter(pa.array(is_met)), which[is_met]
        is_later = self._precede(rows, which)
        self._is_new[which] = False
        self._is_later[which[is_later]] = True
        return np.concatenate(numbers)[is_met][is_later]

    def put_rows(self) -> Any:
        """Return the put rows that are new, or later than the row that the table had."""
        return self._source.filter(pa.array(self._is_put & (self._is_new | self._is_later)))

    def _candidates(self, group: RowGroup, deleted: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The rows of a group, by their numbers in it, of which each key column has a value that
        some change has there.
        """
        rows = group.rows(self._search.names)
        mask = self._search.among(rows)
        if (is_kept := without(deleted, group.first, rows.num_rows)) is not None:
            mask &= is_kept
        return np.flatnonzero(mask)

    def _precede(self, rows: Any, which: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which rows of the table come before their changes (`upsert._IS_LATER`)."""
        changes = self._source.select(list(_ORDER)).take(pa.array(which))
        is_same = pc.equal(changes.column("_partition"), rows.column("_partition"))
        by_offset = pc.greater(changes.column("_offset"), rows.column("_offset"))
        times = rows.column("_timestamp").cast(changes.schema.field("_timestamp").type)
        by_time = pc.greater_equal(changes.column("_timestamp"), times)
        return np.asarray(pc.fill_null(pc.if_else(is_same, by_offset, by_time), False))
