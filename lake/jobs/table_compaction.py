"""Compaction of a table: small files of a partition are joined to larger ones, and no row changes.

Not by delta-rs, whose OPTIMIZE finds no conflict with another one of the same files: each row would
be there twice. Here a commit is refused if one of its files is gone.

Files are read and written one after the other, a row group in memory. A table takes several
commits, so that a conflict costs no more than the work of one.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from lakehead.lake.jobs.table_item import TableFiles
from lakehead.lake.tables.data_file import DataFile, as_written
from lakehead.lake.tables.delta_table import Table, TableUnavailable
from lakehead.lake.tables.logical_files import LogicalFile
from lakehead.lake.tables.table_file import TableFile
from lakehead.lake.tables.vector_merge import add_action
from lakehead.storage.clock import SystemClock
from lakehead.storage.failpoints import failpoint

COMMIT_BYTES = 1 << 30
"""Size of the files that one commit replaces, about."""
SMALL_SHARE = 4
"""A file is small below this part, a quarter, of the size that files are to have."""
_ROWS_AT_ONCE = 1 << 20

Group = Sequence[LogicalFile]
"""Files of a partition that become one."""


def groups_to_join(table: Table, file_bytes: int) -> list[Group]:
    """Return the files of each partition to be joined. Raises TableUnavailable."""
    partitions: dict[tuple[tuple[str, Any], ...], list[LogicalFile]] = defaultdict(list)
    for file in table.logical_files().files.values():
        values = file.action.get("partitionValues") or {}
        partitions[tuple(sorted(values.items()))].append(file)
    return [group for files in partitions.values() for group in groups_of(files, file_bytes)]


def groups_of(files: Sequence[LogicalFile], file_bytes: int) -> Iterator[Group]:
    """Yield groups of at least two files of a partition, of up to `file_bytes` together. Small
    ones are joined first, so that one of them at most is left.
    """
    held: list[LogicalFile] = []
    size = 0
    smaller = (file for file in files if file.size_bytes < file_bytes)
    for file in sorted(smaller, key=lambda one: one.size_bytes * SMALL_SHARE >= file_bytes):
        if size + file.size_bytes > file_bytes:
            if len(held) > 1:
                yield held
            held, size = [], 0
        held.append(file)
        size += file.size_bytes
    if len(held) > 1:
        yield held


def join(table: Table, groups: Sequence[Group], *, file_bytes: int) -> None:
    """Join the files of each group, in commits of their own. Raises CommitConflict if another run
    has changed one of the files since the table was opened: groups before it are done;
    TableUnavailable, and what reading and writing files raises.
    """
    table.require_rewritable()
    paths = [file.path for group in groups for file in group]
    files = {file.path: file for file in table.files_at(paths)} if paths else {}
    replaced: list[LogicalFile] = []
    added: list[DataFile] = []
    for number, group in enumerate(groups, start=1):
        replaced += group
        added += rewritten(table, [files[file.path] for file in group], file_bytes=2 * file_bytes)
        size = sum(file.size_bytes for file in replaced)
        if number == len(groups) or size >= COMMIT_BYTES:
            _commit(table, replaced, added)
            replaced, added = [], []


def rewritten(table: Table, files: Sequence[TableFile], *, file_bytes: int) -> tuple[DataFile, ...]:
    """Write the rows of files of a partition, without deleted ones, to new files of `file_bytes`.
    Raises TableUnavailable if rows were lost on the way, and what reading and writing files raises.
    """
    schema, taken = table.schema, 0
    made = TableFiles(
        table.uri, table.partition_columns, file_bytes=file_bytes, of_one_partition=True
    )
    for file in files:
        for rows in file.batches(_ROWS_AT_ONCE):
            made.add(as_written(rows, schema))
            taken += rows.num_rows
    written = made.finish()
    if taken != sum(file.record_count for file in written):
        raise TableUnavailable(f"cannot optimize {table.uri}: rows were lost on the way")
    return written


def _commit(table: Table, replaced: Sequence[LogicalFile], added: Sequence[DataFile]) -> None:
    modified_ms = SystemClock().now_ms()
    counts = {
        "numRemovedFiles": len(replaced),
        "numRemovedBytes": sum(file.size_bytes for file in replaced),
        "numAddedFiles": len(added),
        "numAddedBytes": sum(file.size_bytes for file in added),
    }
    table.commit_rewrite(
        replaced,
        [add_action(file, modified_ms, is_data_change=False) for file in added],
        modified_ms=modified_ms,
        commit_info={"operationMetrics": {name: str(count) for name, count in counts.items()}},
    )
    failpoint("optimize_committed")
