"""MERGE by delta-rs: in this process, without a JVM, committed by compare-and-set.

A round whose keys the table does not have, as when it is first filled, is an append: a MERGE would
read all of the table for each of them, where one column is soon read.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lakehead.lake.tables.data_file import DataFile, write_data_file
from lakehead.lake.tables.delta_table import (
    Table,
    TableMoved,
    TableUnavailable,
    one_line,
    open_table,
)
from lakehead.lake.tables.arrow_rows import gathered
from lakehead.lake.tables.left_out import NO_COUNTS
from lakehead.lake.tables.merge_engine import Progress, claim, progress_marks
from lakehead.lake.tables.partitions import split_rows
from lakehead.lake.tables.upsert import Clause, Merge, new_rows
from lakehead.storage.clock import SystemClock
from lakehead.storage.failpoints import failpoint

if TYPE_CHECKING:
    from deltalake.table import TableMerger

_SPILL_BYTES = 1 << 30
_KEYS_AT_ONCE = 1 << 20


class DeltaMerge:
    """See `MergeEngine`."""

    def merge(
        self,
        table: Table,
        merge: Merge,
        progress: Progress,
        notes: Mapping[str, str],
        counts: Mapping[str, int] = NO_COUNTS,
    ) -> None:
        """Apply the changes, move the progress and set counts in one commit."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import DeltaError

        marks = {**progress_marks(progress), **counts}
        for topic_id in {topic_id for topic_id, _ in progress}:
            marks |= claim(table, topic_id)
        if not merge.source.num_rows and not _is_for_missing(merge):
            table.commit([], marks, modified_ms=_now_ms(), notes=notes)
            return
        if (rows := new_rows(merge, _held_keys(table, merge.key))) is not None:
            table.commit(_written(table, rows), marks, modified_ms=_now_ms(), notes=notes)
            return
        properties = CommitProperties(
            app_transactions=[Transaction(app, mark) for app, mark in marks.items()],
            custom_metadata=dict(notes),
        )
        failpoint("table_commit_prepared")
        try:
            merger = table.handle.merge(
                merge.source,
                predicate=merge.on,
                source_alias="s",
                target_alias="t",
                max_spill_size=_SPILL_BYTES,
                commit_properties=properties,
            )
            for clause in merge.clauses:
                merger = _with(merger, clause)
            merger.execute()
        except (DeltaError, OSError) as error:
            now = open_table(table.uri)
            if now is None or now.version != table.version:
                # Ours, or another's: the table says how far it is.
                raise TableMoved(f"another run has committed to {table.uri}") from error
            raise TableUnavailable(f"cannot merge into {table.uri}: {one_line(error)}") from error
        failpoint("table_committed")
        if table.handle.version() == table.version:
            # A MERGE that changes no row is no commit to delta-rs, and progress is still made.
            table.commit([], marks, modified_ms=_now_ms(), notes=notes)


def _now_ms() -> int:
    return SystemClock().now_ms()


def _held_keys(table: Table, key: str) -> Iterator[Any]:
    """The keys that the table has, some at a time."""
    if not key:
        return
    kind = table.schema.field(key).type
    for rows in gathered(table.batches(_KEYS_AT_ONCE, [key])):
        yield rows.column(0).cast(kind)


def _written(table: Table, rows: Any) -> list[DataFile]:
    schema = table.schema
    plain = rows.select(schema.names).cast(schema)
    return [
        write_data_file(table.uri, part.rows, part.values)
        for part in split_rows(plain, table.partition_columns)
    ]


def _is_for_missing(merge: Merge) -> bool:
    return any(clause.verb.endswith("_missing") for clause in merge.clauses)


def _with(merger: "TableMerger", clause: Clause) -> "TableMerger":
    values = {name.replace("`", "``"): text for name, text in clause.values}
    condition = clause.condition or None
    if clause.verb == "update":
        return merger.when_matched_update(values, condition)
    if clause.verb == "delete":
        return merger.when_matched_delete(condition)
    if clause.verb == "insert":
        return merger.when_not_matched_insert(values, condition)
    if clause.verb == "update_missing":
        return merger.when_not_matched_by_source_update(values, condition)
    return merger.when_not_matched_by_source_delete(condition)
