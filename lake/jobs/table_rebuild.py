"""The job `rebuild-table`: builds a declared table again and swaps it in.

For changes that a table cannot make step by step: another layout, other partitions, a type that
does not widen. The new table is built in `<table>__rebuild` like any other, in commits of its own,
so a killed run continues; readers have the old table all the while. Then its files are copied below
the old table's root, and one Delta commit there removes all old files, adds the new ones, and sets
schema, partition columns and progress. A reader of a Delta table has one version of it, so it sees
the old rows or the new ones, never some of both; a reader of the old version keeps it until VACUUM
removes its files.

Rows that no record of the topic can make again are not lost without consent: they are counted
before the work begins, by the start offsets of partitions, and again under the lease right before
that commit, by the rows of the new table.

Killed before that commit: nothing has changed for readers; copies are used again, or VACUUM removes
them. Killed after it: the rebuilt table is level with the table, and the next run removes it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

import pyarrow.dataset as ds

from lakehead.lake.catalog import Catalog, PartitionLog
from lakehead.lake.declaration.table_declaration import rebuild_uri
from lakehead.lake.jobs.backfill import begin_at
from lakehead.lake.jobs.dead_letters import (
    DEAD_LETTERS_DESCRIPTION,
    check_dead_letter_table,
    dead_letter_table_name,
)
from lakehead.lake.jobs.table_run import GapInTable, TableRun, log_key
from lakehead.lake.jobs.table_schema import first_txns
from lakehead.lake.jobs.table_settings import Guard, MaterializeSettings, Progress, Unguarded
from lakehead.lake.store_reader import StoreReader
from lakehead.lake.tables.data_file import DataFile, copy_file
from lakehead.lake.tables.delta_table import (
    Table,
    app_id,
    current_files,
    delete_table,
    first_id,
    open_table,
    replace_table,
)
from lakehead.lake.tables.layout import DEAD_LETTERS, check_made_from
from lakehead.lake.tables.left_out import COUNTS, counted
from lakehead.lake.tables.merge_engine import claim_all
from lakehead.lake.tables.owner import is_of_topic, owner_txn
from lakehead.lake.tables.range_digests import digest_note, held_digests
from lakehead.lake.tables.table_history import Change
from lakehead.lake.tables.table_root import check_place
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import LakeheadError, SettingsError
from lakehead.storage.failpoints import failpoint

_PARTITIONS_AT_ONCE = 64


class Span(NamedTuple):
    """Offsets [first, end) of a partition."""

    first: int
    end: int


def _rows_outside(table: Table, spans: Mapping[int, Span]) -> int:
    """Return how many rows of a topic's table are of none of these offsets, by partition."""
    each = [_within(partition, span) for partition, span in spans.items()]
    within = sum(
        table.count(reduce(or_, each[start : start + _PARTITIONS_AT_ONCE]))
        for start in range(0, len(each), _PARTITIONS_AT_ONCE)
    )
    return table.count() - within


def _compacted_away(
    old: Sequence[Table], new: Sequence[Table | None], spans: Mapping[int, Span]
) -> int:
    """Return how many more rows `old` tables have than `new` ones of these offsets, by partition,
    which both have read: of records that compaction has removed since.
    """
    count = 0
    for partition, span in spans.items():
        predicate = _within(partition, span)
        before = sum(table.count(predicate) for table in old)
        after = sum(table.count(predicate) for table in new if table is not None)
        count += max(0, before - after)
    return count


def _within(partition: int, span: Span) -> Any:
    return (
        (ds.field("_partition") == partition)
        & (ds.field("_offset") >= span.first)
        & (ds.field("_offset") < span.end)
    )


class HistoryOnlyInTable(LakeheadError):
    """The table holds rows of records that the topic does not have: they would be lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildResult:
    """Figures of a rebuild: rows and files of the new table, rows and dead letters that only the
    old one had; in a dry run the bytes to be read.
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
    """Build the table of `settings` again from the records in objects, and swap it in.

    Raises HistoryOnlyInTable unless `without_history`; SettingsError for a table that is not this
    topic's, nor that of an earlier topic of its name; what `TableRun.catch_up` raises.
    """
    # Its files replace those of the old table without vectors of their own.
    beside = replace(
        settings, table=rebuild_uri(settings.table), has_no_gaps=True, takes_vectors=False
    )
    logs = catalog.partitions(settings.topic)
    old = _Old(settings, catalog)
    spans = {log.id.partition: Span(log.start_offset, log.end_offset) for log in logs}
    lost = old.lost(spans, without_history=without_history)
    run = _made(beside, reader, catalog, on_progress)
    if settings.dry_run:
        return RebuildResult(bytes_to_read=run.result.bytes_read, rows_left_out=lost)
    failpoint("rebuild_made_beside")
    new, letters = open_table(beside.table), open_table(beside.dead_letters)
    if new is None:  # a topic without records, of which no schema is known
        _require_nothing_to_replace(settings, old)
        return RebuildResult()
    files = [copy_file(beside.table, settings.table, file) for file in current_files(beside.table)]
    failpoint("rebuild_files_copied")
    guard.check()
    old = _Old(settings, catalog)
    spans = {log.id.partition: _span_of(new, log) for log in logs}
    lost = old.lost(
        spans, without_history=without_history, new=(new, letters), dropped=run.result.dropped
    )
    _require_own_place(settings, reader, catalog)
    _swap(settings, catalog, old, new, files)
    failpoint("rebuild_swapped")
    _swap_dead_letters(settings, beside, catalog, old.letters)
    guard.report(run.held_offsets())
    _discard(beside)
    return RebuildResult(
        records=sum(file.record_count for file in files),
        files=len(files),
        bytes_written=sum(file.size_bytes for file in files),
        rows_left_out=lost,
    )


class _Old:
    """The table that is to be replaced, and its dead letters, if they exist.

    Raises SettingsError for a table that was not made from a topic of this name.
    """

    def __init__(self, settings: MaterializeSettings, catalog: Catalog) -> None:
        self._topic_id = topic_id = catalog.topic(settings.topic).topic_id
        self._settings = settings
        self.table = open_table(settings.table)
        self.letters = open_table(settings.dead_letters)
        if self.table is not None:
            check_made_from(
                settings.table,
                self.table.schema,
                owner=self.table.name,
                topic=settings.topic,
            )
        if self.letters is not None:
            check_dead_letter_table(self.letters, settings.topic)
        self._tables = [one for one in (self.table, self.letters) if one is not None]
        self._own = [one for one in self._tables if is_of_topic(one, topic_id)]

    def lost(
        self,
        spans: Mapping[int, Span],
        *,
        without_history: bool,
        new: tuple[Table, Table | None] | None = None,
        dropped: int = 0,
    ) -> int:
        """Return how many rows and dead letters are of records that the topic does not have, which
        has these offsets, by partition; with `new`, rows and letters that were made again, also of
        records that were compacted away since. Raises HistoryOnlyInTable unless `without_history`.
        """
        count = 0
        for table in self._tables:
            is_own = table in self._own
            count += _rows_outside(table, spans) if is_own else table.count()
        keeps_each = self._settings.mode == "append" or self._settings.scd == 2
        if new is not None and keeps_each and self.table in self._own:
            both = {one: self._reached(one, span) for one, span in spans.items()}
            count += max(0, _compacted_away(self._own, new, both) - dropped)
        if count and not without_history:
            raise HistoryOnlyInTable(
                f"{count} rows of {self._settings.table} (or dead letters beside it) are of "
                "records that the topic does not have: retention has removed them, or they are of "
                "an earlier topic of its name. They would be lost: rebuild with "
                "--without-history, or name another place (lakehead.table.path)"
            )
        return count

    def _reached(self, partition: int, span: Span) -> Span:
        """As much of a span as the table has come to."""
        assert self.table is not None, "it has rows"
        return Span(
            span.first, min(span.end, self.table.last_offset(self._topic_id, partition) + 1)
        )


def _made(
    beside: MaterializeSettings, reader: StoreReader, catalog: Catalog, on_progress: Progress
) -> TableRun:
    """The run that has brought up the table beside."""

    def make() -> TableRun:
        run = TableRun(beside, reader, Unguarded(), on_progress)
        if not beside.dry_run:
            if open_table(beside.table) is None:  # some of a run that was killed at its end
                _discard_dead_letters(beside)
            begin_at(beside, reader, catalog, Unguarded(), at=None)
        run.catch_up(catalog)
        return run

    try:
        return make()
    except (SettingsError, GapInTable):
        # A table that an earlier run began for another declaration, for an earlier topic of this
        # name, or with records that are gone now, is of no use.
        if beside.dry_run or open_table(beside.table) is None:
            raise
        _discard(beside)
        return make()


def _discard(beside: MaterializeSettings) -> None:
    """Remove the table beside: the rows first, as letters without them are not taken for all."""
    delete_table(beside.table, name=beside.topic)
    _discard_dead_letters(beside)


def _discard_dead_letters(beside: MaterializeSettings) -> None:
    delete_table(beside.dead_letters, name=dead_letter_table_name(beside.topic))


def _require_own_place(
    settings: MaterializeSettings, reader: StoreReader, catalog: Catalog
) -> None:
    """Raise SettingsError unless the table's root is its own, as the metadata and this machine's
    folders are now: what it was planned by may be hours old.
    """
    now = reader.open_catalog()
    if now.topic(settings.topic).topic_id != catalog.topic(settings.topic).topic_id:
        raise SettingsError(
            f"topic {settings.topic} was deleted and created again during the run: run it again"
        )
    try:
        check_place(now, settings.table, settings.topic)
    except SettingsError as error:
        raise SettingsError(f"topic {settings.topic}: {error}") from None


def _require_nothing_to_replace(settings: MaterializeSettings, old: _Old) -> None:
    if old.table is not None:
        raise SettingsError(
            f"topic {settings.topic} has no records that show the columns of a table: "
            f"{settings.table} is left as it is. Declare lakehead.table.schema, or run it again "
            "when there are records"
        )


def _span_of(new: Table, log: PartitionLog) -> Span:
    """The offsets of a partition that the new table holds."""
    first, last = new.txn_version(first_id(*log_key(log))), new.last_offset(*log_key(log))
    return Span(max(first, 0), last + 1)


def _swap(
    settings: MaterializeSettings, catalog: Catalog, old: _Old, new: Table, files: list[DataFile]
) -> None:
    topic_id = catalog.topic(settings.topic).topic_id
    txns = first_txns(settings, topic_id)
    for log in catalog.partitions(settings.topic):
        for app in (app_id(*log_key(log)), first_id(*log_key(log))):
            if new.txn_version(app) >= 0:
                txns[app] = new.txn_version(app)
    spans = {log.id.partition: _span_of(new, log) for log in catalog.partitions(settings.topic)}
    change = Change(
        kind="rebuild_table",
        offsets={partition: (span.first, span.end) for partition, span in spans.items()},
        rows=sum(file.record_count for file in files),
        written_by=settings.written_by,
    )
    if old.table is not None:
        txns |= claim_all(old.table)
    held = [table for table in (old.table, new) if table is not None]
    txns |= {app: counted(new, app) for app in COUNTS if any(counted(t, app) for t in held)}
    replace_table(
        settings.table,
        new.schema,
        files,
        txns,
        old=old.table,
        name=settings.topic,
        description=f"The records of Kafka topic {settings.topic}",
        partition_by=new.partition_columns,
        modified_ms=SystemClock().now_ms(),
        commit_info={
            "lakehead.topic": settings.topic,
            "lakehead.rebuilt": "in place",
            **change.commit_info(),
            **digest_note(held_digests(new)),
        },
    )


def _swap_dead_letters(
    settings: MaterializeSettings,
    beside: MaterializeSettings,
    catalog: Catalog,
    old: Table | None,
) -> None:
    """The dead letters of the new table take the place of the old one's."""
    new, uri = open_table(beside.dead_letters), settings.dead_letters
    if new is None and old is None:
        return
    files = [] if new is None else current_files(beside.dead_letters)
    files = [copy_file(beside.dead_letters, uri, file) for file in files]
    txns = owner_txn(catalog.topic(settings.topic).topic_id)
    table = open_table(settings.table)
    assert table is not None, "it has just been put in place"
    for log in catalog.partitions(settings.topic):
        if (last := table.last_offset(*log_key(log))) >= 0:
            txns[app_id(*log_key(log))] = last
    replace_table(
        uri,
        DEAD_LETTERS,
        files,
        txns,
        old=old,
        name=dead_letter_table_name(settings.topic),
        description=DEAD_LETTERS_DESCRIPTION,
        partition_by=(),
        modified_ms=SystemClock().now_ms(),
        commit_info={"lakehead.topic": settings.topic, "lakehead.rebuilt": "in place"},
    )
    failpoint("rebuild_letters_swapped")
