"""The changes of a round into a table by upsert: staged files to one MERGE.

Work items leave changes in files below the table's root, which no commit names: what a killed run
leaves behind is removed by VACUUM, as any other file that came to nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehead.lake.tables.arrow_rows import gathered
from lakehead.lake.tables.data_file import DataFile, delete_data_files, read_data_file
from lakehead.lake.tables.delta_table import Table
from lakehead.lake.tables.layout import TableLayout
from lakehead.lake.tables.merge_engine import MergeEngine, TableProgress
from lakehead.lake.tables.upsert import Merge, change_schema, merge_of, resolved, unresolved_keys
from lakehead.storage.failpoints import failpoint

_ROWS_AT_ONCE = 1 << 20


def merge_changes(
    table: Table,
    layout: TableLayout,
    files: Sequence[DataFile],
    progress: TableProgress,
    counts: Mapping[str, int],
    *,
    engine: MergeEngine,
    notes: Mapping[str, str],
) -> None:
    """Apply the changes in `files` to the table as `table` saw it; move its progress and counts.

    Raises TableMoved, TableUnavailable, what reading files raises. The files are removed after it.
    """
    # No name for all changes: while the MERGE runs, only what it takes is in memory.
    merge = planned_merge(
        table,
        _staged(table, layout, files),
        layout.schema,
        layout.spec.keys,
        is_history=layout.is_history,
    )
    engine.merge(table, merge, progress, notes, counts)
    failpoint("merge_done")
    if files:
        delete_data_files(table.uri, [file.path for file in files])


def _staged(table: Table, layout: TableLayout, files: Sequence[DataFile]) -> Any:
    schema = change_schema(layout.schema)
    read = (read_data_file(table.uri, file.path).cast(schema) for file in files)
    return pa.concat_tables([schema.empty_table(), *read])


def planned_merge(
    table: Table, changes: Any, schema: Any, keys: Sequence[str], *, is_history: bool
) -> Merge:
    """Return the MERGE that changes are to the table as `table` saw it; `schema` is the table's."""
    wanted = unresolved_keys(changes, keys)
    if len(wanted):
        changes = resolved(changes, keys, _held(table, [*keys, "_key"], wanted))
    return merge_of(changes, schema, keys, is_history=is_history)


def _held(table: Table, names: list[str], record_keys: Any) -> Any:
    """Some columns of the rows that the table has under these record keys."""
    schema = pa.schema([table.schema.field(name) for name in names])
    found = [schema.empty_table()]
    for some in gathered(table.batches(_ROWS_AT_ONCE, names)):
        rows = some.cast(schema)
        found.append(rows.filter(pc.is_in(rows.column("_key"), record_keys)))
    return pa.concat_tables(found)
