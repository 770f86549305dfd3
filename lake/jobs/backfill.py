"""The job `backfill`: sets the first records of a table, and later adds earlier ones.

A table begins at the first record that there is, or, if that is set before its first commit, at the
first record from some time on, or at given offsets. It records its beginning (`txn` actions
`lakehead:first:<topic id>:<partition>`, the first offset that it holds), so that the records before
can be added later: from the newest to the oldest, in commits that lower this txn version, while new
records are added at the other end. So the offsets of a partition in the table never have a hole, a
killed run resumes, and of two runs one commits and the other plans again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lakehead.lake.catalog import Catalog, PartitionLog
from lakehead.lake.committed import committed_now
from lakehead.lake.jobs.dead_letters import commit_dead_letters
from lakehead.lake.jobs.local_pool import run_in_threads
from lakehead.lake.jobs.table_item import TableItem, TableItemResult, make_table_files
from lakehead.lake.jobs.table_run import RecordUnreadable, log_key
from lakehead.lake.jobs.table_schema import SchemaConflict, first_txns, table_layout
from lakehead.lake.jobs.table_settings import Guard, MaterializeResult, MaterializeSettings
from lakehead.lake.moved_ranges import plan_moved
from lakehead.lake.offsets import offset_for_timestamp
from lakehead.lake.planner import OffsetRange, Split
from lakehead.lake.store_reader import StoreReader
from lakehead.lake.tables.delta_table import (
    NOTHING,
    CommitConflict,
    Table,
    app_id,
    create_table,
    first_id,
    open_table,
)
from lakehead.lake.tables.layout import TableLayout
from lakehead.lake.tables.left_out import count_txns
from lakehead.lake.tables.owner import check_topic
from lakehead.lake.tables.range_digests import digest_note
from lakehead.lake.tables.table_history import Change
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError
from lakehead.storage.failpoints import failpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillPlan:
    """The work of an earlier beginning: offsets to add, and bytes of the objects that hold them.
    `starts` is the new beginning in each partition. With `is_new` the table is empty and gets no
    rows by this, only its beginning.
    """

    starts: Mapping[int, int]
    offsets: int = 0
    size_bytes: int = 0
    is_new: bool = False


Beginning = int | Mapping[int, int] | None
"""The beginning of a table: the first record from a time on (milliseconds); offsets by partition,
others at their first record; or that for all (None).
"""


def begin_at(
    settings: MaterializeSettings,
    reader: StoreReader,
    catalog: Catalog,
    guard: Guard,
    *,
    at: Beginning,
) -> MaterializeResult:
    """Have a table begin there: make it so if it has nothing yet, else add what lies before its
    beginning. Returns its result.

    Raises SettingsError for a table that cannot, RecordUnreadable, SchemaConflict,
    TableUnavailable, what the guard raises and what reading objects raises.
    """
    logs = committed_now(reader, catalog, settings.topic)
    wanted = _wanted(settings, reader, logs, at)
    topic_id = catalog.topic(settings.topic).topic_id
    result = MaterializeResult()
    while True:
        table, layout = _open(settings, reader, logs, guard, topic_id)
        if table is None or layout is None:
            return result
        try:
            if not any(_txns(table, log) for log in logs):
                _begin(settings, table, logs, wanted, guard)
                return result
            if settings.mode == "upsert":
                _require_nothing_before(settings, table, logs, wanted)
                return result
            more = _Backfill(settings, reader, table, layout, guard).round(logs, wanted)
        except CommitConflict:
            failpoint("backfill_lost_race")
            continue
        if more is None:
            return result
        result = result.plus(
            **{
                name: getattr(more, name)
                for name in ("records", "dead_letters", "dropped", "left_out")
            },
            **{name: getattr(more, name) for name in ("bytes_read", "bytes_written")},
            **{name: getattr(more, name) for name in ("files", "commits")},
        )


def plan_begin(
    settings: MaterializeSettings, reader: StoreReader, catalog: Catalog, *, at: Beginning
) -> BackfillPlan:
    """Return what `begin_at` would do; nothing is written. Raises SettingsError, TableUnavailable,
    and what reading objects raises.
    """
    logs = committed_now(reader, catalog, settings.topic)
    wanted = _wanted(settings, reader, logs, at)
    table = open_table(settings.table)
    if table is not None:
        check_topic(table, settings.topic, catalog.topic(settings.topic).topic_id)
    if table is None or not any(_txns(table, log) for log in logs):
        return BackfillPlan(starts=wanted, is_new=True)
    if settings.mode == "upsert":
        _require_nothing_before(settings, table, logs, wanted)
    requested = _missing(table, logs, wanted)
    splits = plan_moved(reader, requested, split_bytes=settings.split_bytes)
    return BackfillPlan(
        starts=wanted,
        offsets=sum(one.end - one.start for one in requested),
        size_bytes=sum(split.length for split in splits),
    )


def _wanted(
    settings: MaterializeSettings, reader: StoreReader, logs: Sequence[PartitionLog], at: Beginning
) -> dict[int, int]:
    if isinstance(at, Mapping) and (unknown := at.keys() - {log.id.partition for log in logs}):
        raise SettingsError(f"topic {settings.topic} has no partition {min(unknown)}")
    return {log.id.partition: _first_wanted(reader, log, at) for log in logs}


def _missing(
    table: Table, logs: Sequence[PartitionLog], wanted: Mapping[int, int]
) -> list[OffsetRange]:
    """The offsets between the wanted beginning of a table and its present one."""
    requested = []
    for log in logs:
        first = table.txn_version(first_id(*log_key(log)))
        start = max(wanted[log.id.partition], log.start_offset)
        if start < first:
            requested.append(OffsetRange(log=log, start=start, end=min(first, log.end_offset)))
    return requested


def _first_wanted(reader: StoreReader, log: PartitionLog, at: Beginning) -> int:
    if at is None:
        return log.start_offset
    if isinstance(at, Mapping):
        return min(max(at.get(log.id.partition, 0), log.start_offset), log.end_offset)
    found = offset_for_timestamp(reader, log, at)
    return log.end_offset if found is None else min(found, log.end_offset)


def _open(
    settings: MaterializeSettings,
    reader: StoreReader,
    logs: Sequence[PartitionLog],
    guard: Guard,
    topic_id: str,
) -> tuple[Table | None, TableLayout | None]:
    table = open_table(settings.table)
    layout = table_layout(settings, table, reader, logs, topic_id=topic_id)
    if table is None and layout is not None:
        guard.check()
        table = create_table(
            settings.table,
            layout.schema,
            name=settings.topic,
            description=f"The records of Kafka topic {settings.topic}",
            partition_by=layout.partition_columns,
            txns=first_txns(settings, topic_id),
        )
        failpoint("backfill_table_created")
    return table, layout


def _txns(table: Table, log: PartitionLog) -> bool:
    apps = (app_id(*log_key(log)), first_id(*log_key(log)))
    return any(table.txn_version(app) != NOTHING for app in apps)


def _begin(
    settings: MaterializeSettings,
    table: Table,
    logs: Sequence[PartitionLog],
    wanted: Mapping[int, int],
    guard: Guard,
) -> None:
    """Say in an empty table that what lies before is not wanted yet."""
    txns = {}
    for log in logs:
        first = wanted[log.id.partition]
        txns[first_id(*log_key(log))] = first
        if first:
            txns[app_id(*log_key(log))] = first - 1
    guard.check()
    table.commit(
        (),
        txns,
        modified_ms=SystemClock().now_ms(),
        commit_info={"lakehead.topic": settings.topic, "lakehead.begins": str(dict(wanted))},
    )
    failpoint("backfill_begun")


def _require_nothing_before(
    settings: MaterializeSettings,
    table: Table,
    logs: Sequence[PartitionLog],
    wanted: Mapping[int, int],
) -> None:
    """Raise SettingsError if a table by upsert is to have older records: it does not know any more
    which of their keys were deleted since.
    """
    for log in logs:
        first = table.txn_version(first_id(*log_key(log)))
        if max(wanted[log.id.partition], log.start_offset) < first:
            raise SettingsError(
                f"{settings.table} begins at offset {first} of partition {log.id.partition}, and a "
                "table by upsert takes no older records: rebuild it from all "
                "records with: lakehead rebuild-table"
            )


class _Backfill:
    """One commit of records that lie before a table's beginning."""

    def __init__(
        self,
        settings: MaterializeSettings,
        reader: StoreReader,
        table: Table,
        layout: TableLayout,
        guard: Guard,
    ) -> None:
        self._settings = settings
        self._reader = reader
        self._table = table
        self._layout = layout
        self._guard = guard

    def round(
        self, logs: Sequence[PartitionLog], wanted: Mapping[int, int]
    ) -> MaterializeResult | None:
        """Add the newest of what is missing; None if nothing is. Raises CommitConflict."""
        requested = _missing(self._table, logs, wanted)
        splits = plan_moved(self._reader, requested, split_bytes=self._settings.split_bytes)
        chosen = _last_bytes(splits, self._settings.commit_bytes)
        if not chosen:
            return None
        results = self._work(chosen)
        failpoint("backfill_files_written")
        self._guard.check()
        return self._commit(chosen, results)

    def _work(self, splits: Sequence[Split]) -> list[TableItemResult]:
        settings = self._settings
        items = [
            TableItem(
                store_uri=settings.path,
                split=split,
                layout=self._layout,
                table_uri=settings.table,
                dead_letters_uri=settings.dead_letters,
                on_error=settings.on_error,
                stops_at_new_schema=settings.evolution != "dead_letter",
                new_schema_is_fault=settings.evolution == "dead_letter",
                file_bytes=settings.file_bytes,
            )
            for split in splits
        ]
        results = []
        for _, result in run_in_threads(make_table_files, items, workers=settings.workers):
            if result.found is not None:
                raise SchemaConflict(
                    f"topic {settings.topic}: older values have fields that {settings.table} does "
                    "not: rebuild the table with: lakehead rebuild-table"
                )
            if result.unreadable:
                raise RecordUnreadable(
                    f"{result.unreadable[0]}. What is newer is in the table. To go on: set "
                    "lakehead.table.on.error to dead_letter or drop"
                )
            results.append(result)
        return results

    def _change(self, splits: Sequence[Split], rows: int) -> Change:
        """The change that a commit makes visible: offsets up to the former beginning of
        the table.
        """
        offsets: dict[int, tuple[int, int]] = {}
        for split in splits:
            for range_ in split.ranges:
                partition = range_.partition
                end = self._table.txn_version(first_id(range_.topic_id, partition))
                first = min(range_.first_offset, offsets.get(partition, (end, end))[0])
                offsets[partition] = (first, end)
        written_by = self._settings.written_by
        return Change(kind="backfill", offsets=offsets, rows=rows, written_by=written_by)

    def _commit(
        self, splits: Sequence[Split], results: Sequence[TableItemResult]
    ) -> MaterializeResult:
        txns: dict[str, int] = {}
        for split in splits:
            for range_ in split.ranges:
                app = first_id(range_.topic_id, range_.partition)
                txns[app] = min(range_.first_offset, txns.get(app, range_.first_offset))
        topic = self._settings.topic
        parts = [part for result in results for part in result.parts]
        letters = [file for part in parts for file in part.dead_letters]
        written = commit_dead_letters(
            self._settings,
            letters,
            {},
            self._table,
            topic_id=splits[0].ranges[0].topic_id,
            may_be_there=True,
        )
        files = [file for part in parts for file in part.files]
        rows = sum(file.record_count for file in files)
        dropped = sum(part.dropped for part in parts)
        left_out = sum(part.left_out for part in parts)
        self._table.commit(
            files,
            {**txns, **count_txns(self._table, left_out=left_out, dropped=dropped)},
            modified_ms=SystemClock().now_ms(),
            commit_info={
                "lakehead.topic": topic,
                "lakehead.backfilled.from": str(txns),
                **self._change(splits, rows).commit_info(),
                **digest_note(one for part in parts for one in part.digests),
            },
        )
        failpoint("backfill_committed")
        return MaterializeResult(
            records=rows,
            dead_letters=written,
            dropped=dropped,
            left_out=left_out,
            bytes_read=sum(split.length for split in splits),
            bytes_written=sum(file.size_bytes for file in files),
            files=len(files),
            commits=1,
        )


def _last_bytes(splits: Sequence[Split], limit: int) -> tuple[Split, ...]:
    """The last splits that make up about `limit` bytes, at least one. Splits are in the order of
    partitions and offsets, so what they hold of a partition are its newest.
    """
    chosen: list[Split] = []
    taken = 0
    for split in reversed(splits):
        if chosen and taken + split.length > limit:
            break
        chosen.append(split)
        taken += split.length
    return tuple(reversed(chosen))
