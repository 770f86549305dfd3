"""The job `rebuild-table`: a declared table made anew beside the old one, and put in its place.

For what a table cannot become step by step: another layout, other partitions, a type that does not
widen. The new table is brought up in `<table>__rebuild` like any other, in commits of its own, so a
run that is killed goes on where it was; readers have the old table all the while. Then its files
are copied below the old table's root, and one Delta commit there takes all old files out, puts the
new ones in, and sets schema, partition columns and progress. A reader of a Delta table has one
version of it, so it sees the old rows or the new ones, never some of both; who has opened the old
version reads on in it until VACUUM removes its files.

Killed before that commit: nothing has changed for anyone, copies are used again or are garbage for
VACUUM. Killed after it: the table beside is level with the table, and the next run removes it.
"""

from dataclasses import dataclass, replace

import pyarrow.dataset as ds

from lake.catalog import Catalog
from lake.jobs.backfill import first_id
from lake.jobs.table_run import TableRun, log_key
from lake.jobs.table_settings import Guard, MaterializeSettings, Progress, Unguarded
from lake.store_reader import StoreReader
from lake.tables.data_file import DataFile, copy_file
from lake.tables.delta_log import current_files, delete_table
from lake.tables.delta_table import NOTHING, Table, app_id, open_table, replace_table
from lake.tables.layout import DEAD_LETTERS
from lake.tables.merge_engine import claim
from storage.clock import SystemClock
from storage.errors import LakeheadError, SettingsError
from storage.failpoints import failpoint
from storage.metadata.table_declaration import dead_letters_uri


class HistoryOnlyInTable(LakeheadError):
    """The table holds rows of records that retention has removed: they would be lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildResult:
    """Figures of a rebuild: rows and files of the new table, rows that only the old one had; in a
    dry run the bytes to be read.
    """

    records: int = 0
    files: int = 0
    bytes_written: int = 0
    rows_left_out: int = 0
    bytes_to_read: int = 0


def rebuild_table(
    settings: MaterializeSettings,
    reader: StoreReader,
    catalog: Catalog,
    guard: Guard,
    *,
    without_history: bool = False,
    on_progress: Progress = lambda _done, _total: None,
) -> RebuildResult:
    """Make the table of `settings` anew from what objects hold, and put it in place.

    Raises HistoryOnlyInTable unless `without_history`, and what `TableRun.bring_up` raises.
    """
    beside = replace(settings, table=beside_uri(settings.table))
    old = open_table(settings.table)
    lost = 0 if old is None else _rows_without_records(old, catalog, settings.topic)
    if lost and not without_history:
        raise HistoryOnlyInTable(
            f"{lost} rows of {settings.table} are of records that retention has removed, and would "
            "be lost: rebuild with --without-history, or declare another path"
        )
    run = TableRun(beside, reader, Unguarded(), on_progress)
    try:
        run.bring_up(catalog)
    except SettingsError:
        if open_table(beside.table) is None:
            raise
        # What an earlier run began for another declaration is of no use.
        delete_table(beside.table)
        run = TableRun(beside, reader, Unguarded(), on_progress)
        run.bring_up(catalog)
    if settings.dry_run:
        return RebuildResult(bytes_to_read=run.result.bytes_read, rows_left_out=lost)
    failpoint("rebuild_made_beside")
    new = open_table(beside.table)
    if new is None:  # a topic without records, of which no schema is known
        return RebuildResult()
    files = [copy_file(beside.table, settings.table, file) for file in current_files(beside.table)]
    failpoint("rebuild_files_copied")
    guard.check()
    _swap(settings, catalog, new, files)
    failpoint("rebuild_swapped")
    _swap_letters(settings, beside, catalog)
    guard.report(run.held_offsets())
    for uri in (beside.table, beside.dead_letters):
        delete_table(uri)
    return RebuildResult(
        records=sum(file.record_count for file in files),
        files=len(files),
        bytes_written=sum(file.size_bytes for file in files),
        rows_left_out=lost,
    )


def beside_uri(table: str) -> str:
    """Return where the new table is made."""
    place, question, options = table.partition("?")
    return f"{place.rstrip('/')}__rebuild{question}{options}"


def _rows_without_records(table: Table, catalog: Catalog, topic: str) -> int:
    """How many rows of a table are of records below the starts of their partitions."""
    count = 0
    for log in catalog.partitions(topic):
        gone = (ds.field("_partition") == log.id.partition) & (
            ds.field("_offset") < log.start_offset
        )
        count += table.count(gone)
    return count


def _swap(
    settings: MaterializeSettings, catalog: Catalog, new: Table, files: list[DataFile]
) -> None:
    old = open_table(settings.table)
    marks: dict[str, int] = {}
    for log in catalog.partitions(settings.topic):
        if new.last_offset(*log_key(log)) >= 0:
            marks[app_id(*log_key(log))] = new.last_offset(*log_key(log))
        if old is not None and old.marked(first_id(*log_key(log))) != NOTHING:
            # It began later than its topic, and does no more: nothing is left to be added before.
            marks[first_id(*log_key(log))] = log.start_offset
    if old is not None:
        marks |= claim(old, catalog.topic(settings.topic).topic_id)
    replace_table(
        settings.table,
        new.schema,
        files,
        marks,
        name=settings.topic,
        description=f"The records of Kafka topic {settings.topic}",
        partition_by=new.partition_columns,
        modified_ms=SystemClock().now_ms(),
        notes={"lakehead.topic": settings.topic, "lakehead.rebuilt": "in place"},
    )


def _swap_letters(
    settings: MaterializeSettings, beside: MaterializeSettings, catalog: Catalog
) -> None:
    """The dead letters of the new table take the place of the old one's."""
    new, uri = open_table(beside.dead_letters), dead_letters_uri(settings.table)
    if new is None and open_table(uri) is None:
        return
    files = [] if new is None else current_files(beside.dead_letters)
    files = [copy_file(beside.dead_letters, uri, file) for file in files]
    marks = {}
    table = open_table(settings.table)
    assert table is not None, "it has just been put in place"
    for log in catalog.partitions(settings.topic):
        if (last := table.last_offset(*log_key(log))) >= 0:
            marks[app_id(*log_key(log))] = last
    replace_table(
        uri,
        DEAD_LETTERS,
        files,
        marks,
        name=f"{settings.topic}__dlq",
        description="Records that could not be read",
        partition_by=(),
        modified_ms=SystemClock().now_ms(),
        notes={"lakehead.topic": settings.topic, "lakehead.rebuilt": "in place"},
    )
    failpoint("rebuild_letters_swapped")
