"""Runs of a table: each round is planned, worked on and committed until the table has its topic.

A round is what is planned at once: the offsets between the table's progress and what lies in
objects, up to a number of bytes. For a table by upsert, work items leave changes in staged files
below the table's root, which no commit names, and a commit is one MERGE of them; VACUUM removes
staged files of a killed run. A round whose changes are more than a MERGE is to have in memory has
several commits, each of whole record batches.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from lakehead.lake.catalog import Catalog, PartitionLog
from lakehead.lake.committed import committed_now
from lakehead.lake.jobs.dead_letters import commit_dead_letters
from lakehead.lake.jobs.local_pool import run_in_threads
from lakehead.lake.jobs.table_due import LogLost, check_ends
from lakehead.lake.jobs.table_item import (
    SharedItem,
    TableItem,
    TableItemPart,
    TableItemResult,
    Unreadable,
    make_shared_files,
)
from lakehead.lake.jobs.table_schema import (
    first_txns,
    follow_values,
    given_schema,
    table_layout,
)
from lakehead.lake.jobs.table_settings import (
    Guard,
    MaterializeResult,
    MaterializeSettings,
    Progress,
)
from lakehead.lake.moved_ranges import plan_moved
from lakehead.lake.planner import ByteRange, OffsetRange, Split
from lakehead.lake.store_reader import ObjectReader
from lakehead.lake.tables.data_file import DataFile, delete_data_files, read_data_file
from lakehead.lake.tables.delta_table import (
    NOTHING,
    CommitConflict,
    Table,
    TableIdentity,
    TableUnavailable,
    app_id,
    create_table,
    first_id,
    open_table,
)
from lakehead.lake.tables.key_search import rows_with_keys
from lakehead.lake.tables.layout import TableLayout
from lakehead.lake.tables.left_out import count_txns
from lakehead.lake.tables.merge_engine import (
    MergeEngine,
    TableProgress,
    open_merge_engine,
    progress_txns,
    settle,
)
from lakehead.lake.tables.owner import OtherTopic
from lakehead.lake.tables.range_digests import digest_note
from lakehead.lake.tables.table_history import Change
from lakehead.lake.tables.table_statistics import run_cost
from lakehead.lake.tables.unique_key import UNIQUE_KEY, unique_key_txn
from lakehead.lake.tables.upsert import Merge, change_schema, merge_of, resolved, unresolved_keys
from lakehead.lake.tables.values.evolution import merged
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import LakeheadError, ObjectNotFound
from lakehead.storage.failpoints import failpoint
from lakehead.storage.jobs.job import Runner


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRound:
    """Work that is planned at once, and the last offset of each partition, by topic id, after it.

    `remaining_bytes` are those of this round and the ones after it. `lost` offsets were removed by
    retention before they reached the table.
    """

    splits: tuple[Split, ...]
    progress: Mapping[tuple[str, int], int]
    remaining_bytes: int
    lost: int


def _plan_round(
    reader: ObjectReader,
    logs: Sequence[PartitionLog],
    table: Table | None,
    ends: Mapping[int, int],
    *,
    split_bytes: int,
    commit_bytes: int,
    workers: int,
) -> TableRound:
    """Plan from the table's progress (none without a table) to `ends`, offsets by partition.

    Raises what reading indexes raises, and DataLoss for an object that is gone.
    """
    requested = []
    lost = 0
    for log in logs:
        last = -1 if table is None else table.last_offset(log.topic_id, log.id.partition)
        start = max(last + 1, log.start_offset)
        if start < ends[log.id.partition]:
            # A table begins where the topic begins; later, a gap is a loss.
            lost += start - (last + 1) if _has_begun(table, log) else 0
            requested.append(OffsetRange(log=log, start=start, end=ends[log.id.partition]))
    splits = plan_moved(reader, requested, split_bytes=split_bytes, workers=workers)
    chosen = _first_bytes(splits, commit_bytes)
    return TableRound(
        splits=chosen,
        progress=_progress(chosen),
        remaining_bytes=sum(split.length for split in splits),
        lost=lost,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCommit:
    """A commit of a round: `parts` of its work items, in order. `splits` are those that end with
    it.
    """

    parts: tuple[TableItemPart, ...]
    splits: tuple[Split, ...]
    lost: int

    @property
    def progress(self) -> Mapping[tuple[str, int], int]:
        """The last offset of each partition, by topic id, that the table holds after it."""
        return {key: end - 1 for part in self.parts for key, end in part.ends.items()}


def _commits_of(
    plan: TableRound, results: Sequence[TableItemResult], merge_bytes: int | None
) -> list[PlannedCommit]:
    """Return the commits of a round: a single one without `merge_bytes`, else each with at most
    that many bytes of rows in memory, or with one larger part.
    """
    commits: list[PlannedCommit] = []
    parts: list[TableItemPart] = []
    splits: list[Split] = []

    def end() -> None:
        lost = 0 if commits else plan.lost
        commits.append(PlannedCommit(parts=tuple(parts), splits=tuple(splits), lost=lost))
        parts.clear()
        splits.clear()

    for split, result in zip(plan.splits, results, strict=True):
        for part in result.parts:
            held = sum(one.rows_bytes for one in parts)
            is_more = merge_bytes is not None and held + part.rows_bytes > merge_bytes
            if parts and part.rows_bytes and is_more:
                end()
            parts.append(part)
        splits.append(split)
    end()
    return commits


def _has_begun(table: Table | None, log: PartitionLog) -> bool:
    apps = (app_id(log.topic_id, log.id.partition), first_id(log.topic_id, log.id.partition))
    return table is not None and any(table.txn_version(app) != NOTHING for app in apps)


def _first_bytes(splits: Sequence[Split], limit: int) -> tuple[Split, ...]:
    """The first splits that make up about `limit` bytes, at least one."""
    chosen: list[Split] = []
    taken = 0
    for split in splits:
        if chosen and taken + split.length > limit:
            break
        chosen.append(split)
        taken += split.length
    return tuple(chosen)


def _progress(splits: Sequence[Split]) -> dict[tuple[str, int], int]:
    """The last offset of each partition that these splits bring into the table.

    Splits are in the order of their plan, so what they hold of a partition has no holes.
    """
    return {
        (range_.topic_id, range_.partition): range_.end_offset - 1
        for split in splits
        for range_ in split.ranges
    }


def _merge_changes(
    table: Table,
    layout: TableLayout,
    files: Sequence[DataFile],
    progress: TableProgress,
    counts: Mapping[str, int],
    *,
    engine: MergeEngine,
    commit_info: Mapping[str, str],
) -> None:
    """Apply the changes in `files` to the table as `table` saw it; move its progress and counts.

    Raises CommitConflict, TableUnavailable, and the errors of reading files. Then the files are
    removed.
    """
    # No name for all changes: while the MERGE runs, only what it takes is in memory.
    merge = planned_merge(
        table,
        _staged(table, layout, files),
        layout.schema,
        layout.spec.keys,
        is_history=layout.is_history,
    )
    engine.merge(table, merge, progress, commit_info, counts)
    failpoint("merge_done")
    if files:
        delete_data_files(table.uri, [file.path for file in files])
    pa.default_memory_pool().release_unused()


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
        held = rows_with_keys(table, pa.table({"_key": wanted}), keys)
        changes = resolved(changes, keys, held)
    lookup = partial(rows_with_keys, table, is_current=is_history)
    return merge_of(changes, schema, keys, is_history=is_history, lookup=lookup)


class RecordUnreadable(LakeheadError):
    """The job stands before a record that is not what the table wants. All before it is committed.

    The message names topic, partition and offset, and what to do.
    """


class GapInTable(LakeheadError):
    """A table that is to have no gaps would get one: retention was faster."""


class TableRun:
    """One table, for as many catalogs as come. Figures add up in `result`. Work items go to
    `runner`, or to threads of this process.
    """

    def __init__(
        self,
        settings: MaterializeSettings,
        reader: ObjectReader,
        guard: Guard,
        on_progress: Progress = lambda _done, _total: None,
        *,
        runner: Runner | None = None,
    ) -> None:
        self.result = MaterializeResult()
        self.has_more = False
        """True if the last catalog has more than the table, up to where it pauses."""
        self._settings = settings
        self._reader = reader
        self._guard = guard
        self._clock = SystemClock()
        self._round_began = self._clock.monotonic()
        self._on_progress = on_progress
        self._runner = runner or partial(run_in_threads, workers=settings.workers)
        self._table: Table | None = None
        self._topic_id = ""
        self._logs: tuple[PartitionLog, ...] = ()
        self._end: dict[int, int] = {}
        self._unreadable: dict[int, Unreadable] = {}
        self._done: dict[tuple[ByteRange, ...], TableItemResult] = {}
        self._commits: deque[PlannedCommit] = deque()
        self._expected: tuple[int, ...] = ()
        self._made_for: TableIdentity | None = None
        self._key_checked: TableIdentity | None = None
        self._lacks_key = False
        self._row_bytes = 0
        self._held: tuple[int, ...] = ()
        self._beside: tuple[TableRun, ...] = ()
        self._requested = given_schema(settings)
        self._stops_at_new_schema = settings.evolution != "dead_letter"

    def catch_up(
        self,
        catalog: Catalog,
        *,
        rounds_max: int | None = None,
        reader: ObjectReader | None = None,
        beside: "Sequence[TableRun]" = (),
    ) -> None:
        """Work until the table is level with the catalog, or every partition with more pauses; or
        for `rounds_max` rounds: then `has_more` is true if there is more. `reader` can read objects
        that the catalog names and the store may have deleted (`lakehead.lake.snapshot`). The same
        reads make files for the runs `beside` of other tables of the topic, as far as these have
        begun and are to read the same next.

        Raises SettingsError, UnknownTopic, RecordUnreadable, SchemaConflict, TableUnavailable, what
        the guard raises, and what reading objects raises.
        """
        if not self.begin(catalog, reader=reader):
            return
        self._beside = tuple(beside)
        commits_max = None if rounds_max is None else self.result.commits + rounds_max
        while self.result.commits != commits_max:
            try:
                if not self._round():
                    break
            except CommitConflict:
                failpoint("materialize_lost_race")
                self._table = None
            except ObjectNotFound:  # of a file that another engine's VACUUM has removed, perhaps
                self._done.clear()
                self._commits.clear()
                raise
        self._report()
        self.has_more = any(
            max(held, log.start_offset) < self._end[log.id.partition]
            for held, log in zip(self.held_offsets(), self._logs, strict=True)
        )
        if self._unreadable:
            raise RecordUnreadable(self._complaint())

    def begin(self, catalog: Catalog, *, reader: ObjectReader | None = None) -> bool:
        """Look at the table and the topic, and create the table if it is not there; return whether
        there may be work. Raises as `catch_up`.
        """
        settings = self._settings
        if reader is not None:
            self._reader = reader
        self._topic_id = catalog.topic(settings.topic).topic_id
        self._logs = committed_now(self._reader, catalog, settings.topic)
        self._end = {log.id.partition: log.end_offset for log in self._logs}
        self._unreadable = {}
        self.result = replace(self.result, end_offsets=tuple(log.end_offset for log in self._logs))
        self._open()
        layout = self._checked_layout(catalog)
        if layout is None:
            return False
        self.result = replace(self.result, schema=layout.value_schema())
        if settings.dry_run:
            remaining = self._plan().remaining_bytes
            self.result = self.result.plus(bytes_read=remaining)
            return False
        if self._table is None:
            self._create(layout)
        return True

    def item_of(self, split: Split, starts: Sequence[int]) -> TableItem | None:
        """Return the work of this table at byte ranges that another run reads, which begins at the
        offsets `starts`; None if this run is not to read the same next.
        """
        if self._table is None or split.ranges in self._done or self._commits:
            return None
        if self.starts() != tuple(starts):
            return None
        layout = self._layout()
        return None if layout is None else self._item(split, layout)

    def take_result(self, split: Split, result: TableItemResult) -> None:
        """Keep the result of work that another run has done for this table."""
        self._done[split.ranges] = result

    def starts(self) -> tuple[int, ...]:
        """Return the first offset to be read of each partition, as of the last look."""
        return tuple(
            max(held, log.start_offset)
            for held, log in zip(self.held_offsets(), self._logs, strict=True)
        )

    def held_offsets(self) -> tuple[int, ...]:
        """Return the offset after the last one that the table holds of each partition, as of the
        last look.
        """
        return self._held

    def _open(self) -> None:
        """Look at the newest version; what was opened in the round before is read on from there."""
        known = self._table
        self._look_at(open_table(self._settings.table) if known is None else known.refreshed())

    def _look_at(self, table: Table | None) -> None:
        """Work on a look at the table, with the files that were made for it. Raises
        TableUnavailable.
        """
        self._table, self._held = None, (0,) * len(self._logs)
        if table is not None:
            self._held = tuple(self._last(table, log) + 1 for log in self._logs)
            self._table = table
        identity = None if table is None else table.identity
        if identity != self._made_for:  # made again, rebuilt, or with other columns
            self._done.clear()
            self._commits.clear()
            self._row_bytes = 0
            self._made_for = identity

    def _round(self) -> bool:
        """Commit once: what is left of the last plan, or the first commit of a new one. False if
        nothing was left to do. Raises CommitConflict.
        """
        self._round_began = self._clock.monotonic()
        # Opened before planning: the commit holds only if nothing moved since.
        self._open()
        table = self._table
        if table is None:
            # It holds nothing, whatever was said before: retention is to wait.
            self._guard.report(self.held_offsets())
            raise TableUnavailable(
                f"table {self._settings.table} was deleted during the run: the next run makes it "
                "again, from the first record that the topic has"
            )
        layout = self._layout()
        assert layout is not None, "a table has a layout"
        if layout.is_upsert and settle(table, [log_key(log) for log in self._logs]):
            return True
        if layout.is_upsert and table.takes_vectors != self._settings.takes_vectors:
            self._guard.check()
            table.set_vectors(
                is_enabled=self._settings.takes_vectors, modified_ms=self._clock.now_ms()
            )
            return True
        if self._lacks_key:
            self._guard.check()
            txns = unique_key_txn(self._settings.mode, self._settings.keys)
            table.commit([], txns, modified_ms=self._clock.now_ms(), commit_info={})
            self._lacks_key = False
            return True
        if self._requested is not None:
            self._follow(table, layout, self._requested)
            self._requested = None
            return True
        if self._held != self._expected:  # another run was here
            self._commits.clear()
        if not self._commits:
            return self._begin_commits(table, layout)
        self._guard.check()
        self._commit(self._commits[0], table, layout)
        return True

    def _begin_commits(self, table: Table, layout: TableLayout) -> bool:
        """Plan and work on the commits that come next; False if there is nothing."""
        plan = self._plan()
        if not plan.progress:
            return False
        if plan.lost and self._settings.has_no_gaps:
            raise GapInTable(
                f"{plan.lost} records of topic {self._settings.topic} were removed before they "
                f"reached {self._settings.table}"
            )
        failpoint("materialize_planned")
        results = self._work(plan, layout)
        if self._look_again(table, layout, results):
            return True
        failpoint("materialize_files_written")
        merge_bytes = self._settings.merge_bytes if layout.is_upsert else None
        self._commits = deque(_commits_of(plan, results, merge_bytes))
        self._expected = self._held
        self._guard.check()
        self._commit(self._commits[0], table, layout)
        return True

    def _look_again(
        self, table: Table, layout: TableLayout, results: Sequence[TableItemResult]
    ) -> bool:
        """Return whether the plan must be repeated: for another schema, or up to a pause."""
        found: Any = None
        for result in results:
            if result.found is not None:
                found = result.found if found is None else merged(found, result.found)
        if found is not None:
            self._guard.check()
            self._stops_at_new_schema = self._follow(table, layout, found)
            return True
        paused = [one for result in results for one in result.unreadable]
        for one in paused:
            self._end[one.partition] = min(self._end[one.partition], one.offset)
            self._unreadable[one.partition] = one
        return bool(paused)

    # ------------------------------------------------------------------------------- the schema

    def _layout(self) -> TableLayout | None:
        is_key_checked = self._made_for is not None and self._made_for == self._key_checked
        layout = table_layout(
            self._settings,
            self._table,
            self._reader,
            self._logs,
            topic_id=self._topic_id,
            is_key_checked=is_key_checked,
        )
        if not is_key_checked and self._table is not None:
            self._lacks_key = self._table.txn_version(UNIQUE_KEY) == NOTHING
        self._key_checked = self._made_for
        return layout

    def _checked_layout(self, catalog: Catalog) -> TableLayout | None:
        topic = catalog.topic(self._settings.topic)
        try:
            layout = self._layout()
            check_ends(catalog.state, topic, self._settings.table, self.held_offsets())
        except (OtherTopic, LogLost):
            # It holds nothing of this topic, whatever was said before: retention is to wait.
            self._look_at(None)
            self._guard.report(self.held_offsets())
            raise
        return layout

    def _follow(self, table: Table, layout: TableLayout, found: Any) -> bool:
        txns = progress_txns({log_key(log): self._last(table, log) for log in self._logs})
        is_held = follow_values(self._settings, table, layout, found, txns)
        self._open()
        return is_held

    def _create(self, layout: TableLayout) -> None:
        self._guard.check()
        table = create_table(
            self._settings.table,
            layout.schema,
            name=self._settings.topic,
            description=f"The records of Kafka topic {self._settings.topic}",
            partition_by=layout.partition_columns,
            txns=first_txns(self._settings, self._topic_id),
        )
        self._look_at(table)
        failpoint("materialize_table_created")

    # --------------------------------------------------------------------------------- the work

    def _plan(self) -> TableRound:
        return _plan_round(
            self._reader,
            self._logs,
            self._table,
            self._end,
            split_bytes=self._settings.split_bytes,
            commit_bytes=self._settings.round_bytes,
            workers=self._settings.workers,
        )

    def _work(self, plan: TableRound, layout: TableLayout) -> list[TableItemResult]:
        items = [self._item(split, layout) for split in plan.splits]
        # Files that a lost race, a pause or another table's run left are used again if they are
        # planned again.
        todo = [item for item in items if item.split.ranges not in self._done]
        before = self.result.bytes_read
        total = before + plan.remaining_bytes
        done = before + sum(split.length for split in plan.splits if split.ranges in self._done)
        self._on_progress(done, total)
        shared = [self._shared(item) for item in todo]
        runs = {id(one): tuple(run for run, _ in beside) for one, beside in shared}
        for one, (result, *others) in self._runner(make_shared_files, [one for one, _ in shared]):
            assert result is not None, "it is of the first table"
            self._done[one.split.ranges] = result
            for run, other in zip(runs[id(one)], others, strict=True):
                if other is not None:
                    run.take_result(one.split, other)
            done += one.split.length
            self._on_progress(done, total)
        results = [self._done[item.split.ranges] for item in items]
        for item, result in zip(items, results, strict=True):
            if result.unreadable or result.found is not None:
                del self._done[item.split.ranges]
        return results

    def _item(self, split: Split, layout: TableLayout) -> TableItem:
        settings = self._settings
        return TableItem(
            store_uri=settings.path,
            split=split,
            layout=layout,
            table_uri=settings.table,
            dead_letters_uri=settings.dead_letters,
            on_error=settings.on_error,
            stops_at_new_schema=self._stops_at_new_schema,
            new_schema_is_fault=settings.evolution == "dead_letter",
            file_bytes=settings.file_bytes,
            part_bytes=settings.part_bytes,
            kept_row_bytes=self._kept_row_bytes(),
        )

    def _kept_row_bytes(self) -> int:
        """Return about how much a MERGE reads for a change that leaves columns as they are."""
        settings = self._settings
        may_keep = settings.mode == "upsert" and settings.value_format == "debezium"
        if may_keep and not self._row_bytes and self._table is not None:
            file = next(self._table.data_files(), None)
            with suppress(OSError, pa.ArrowException):  # a MERGE that needs it names it
                self._row_bytes = 0 if file is None else file.row_bytes()
        return self._row_bytes

    def _shared(self, item: TableItem) -> tuple[SharedItem, list[tuple["TableRun", TableItem]]]:
        """Return the work of this table and of those beside it at one read."""
        starts = self.starts()
        found = [(run, run.item_of(item.split, starts)) for run in self._beside]
        beside = [(run, other) for run, other in found if other is not None]
        return SharedItem(items=(item, *(other for _, other in beside))), beside

    # ------------------------------------------------------------------------------- the commits

    def _commit(self, commit: PlannedCommit, table: Table, layout: TableLayout) -> None:
        parts, progress = commit.parts, commit.progress
        letters = [file for part in parts for file in part.dead_letters]
        written = commit_dead_letters(
            self._settings, letters, progress, table, topic_id=self._topic_id
        )
        self.result = self.result.plus(dead_letters=written)
        files = [file for part in parts for file in part.files]
        seconds = self._clock.monotonic() - self._round_began
        commit_info = _progress_info(self._settings.topic, progress)
        commit_info |= run_cost(commit.splits, [*files, *letters], seconds).commit_info()
        rows = sum(file.record_count for file in files)
        commit_info |= self._change(progress, table, rows).commit_info()
        commit_info |= digest_note(one for part in parts for one in part.digests)
        dropped = sum(part.dropped for part in parts)
        left_out = sum(part.left_out for part in parts)
        counts = count_txns(table, left_out=left_out, dropped=dropped)
        if layout.is_upsert:
            engine = open_merge_engine(self._settings.engine)
            _merge_changes(
                table, layout, files, progress, counts, engine=engine, commit_info=commit_info
            )
        else:
            table.commit(
                files,
                {**progress_txns(progress), **counts},
                modified_ms=self._clock.now_ms(),
                commit_info=commit_info,
            )
        self._done.clear()
        self._commits.popleft()
        failpoint("materialize_committed")
        self.result = self.result.plus(
            records=rows,
            dropped=dropped,
            left_out=left_out,
            lost=commit.lost,
            bytes_read=sum(split.length for split in commit.splits),
            bytes_written=sum(file.size_bytes for file in files),
            files=len(files),
            commits=1,
        )
        self._expected = tuple(
            progress.get(log_key(log), held - 1) + 1
            for log, held in zip(self._logs, self._held, strict=True)
        )
        self._report()

    def _change(self, progress: Mapping[tuple[str, int], int], table: Table, rows: int) -> Change:
        """The change that a commit makes visible."""
        offsets = {}
        for log in self._logs:
            if (last := progress.get(log_key(log))) is not None:
                first = max(self._last(table, log) + 1, log.start_offset)
                offsets[log.id.partition] = (first, last + 1)
        return Change(
            kind="materialize", offsets=offsets, rows=rows, written_by=self._settings.written_by
        )

    def _last(self, table: Table, log: PartitionLog) -> int:
        return table.last_offset(*log_key(log))

    def _report(self) -> None:
        self._open()
        self._guard.report(self.held_offsets())

    def _complaint(self) -> str:
        found = [self._unreadable[partition] for partition in sorted(self._unreadable)]
        more = f" (and {len(found) - 1} more partitions pause)" if len(found) > 1 else ""
        return (
            f"{found[0]}{more}. Records before it are in the table. To continue: `lakehead topics "
            f"alter {self._settings.topic} --set lakehead.table.on.error=dead_letter` stores such "
            "records as dead letters (an unreadable batch as its bytes), =drop leaves them out, as "
            "does --on-error in one run; or lakehead materialize --from begins after them"
        )


def log_key(log: PartitionLog) -> tuple[str, int]:
    """Return what progress is kept by."""
    return log.topic_id, log.id.partition


def _progress_info(topic: str, progress: Mapping[tuple[str, int], int]) -> dict[str, str]:
    """Return the commit info of a round, for readers of the table's history."""
    offsets = ", ".join(f"{partition}: {last}" for (_, partition), last in sorted(progress.items()))
    return {"lakehead.topic": topic, "lakehead.last.offsets": offsets}
