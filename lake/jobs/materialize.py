"""The job `materialize`: a topic becomes a Delta table that holds each record once.

Plan: the table itself says how far each partition got, the metadata log how far its records lie in
objects; what is between is cut into work items of byte ranges. Work: each item is decoded and
written as Parquet files that nobody sees yet (`table_item`). Result: one commit adds the files and
moves the progress of their partitions, by compare-and-set on the version that was planned from.

So a run may be killed anywhere, and any number may run at once: what was not committed is planned
again by the next run, and of two that did the same work one commits and the other looks again.
Files that no commit names are removed by VACUUM.

A record whose value cannot be read is handled as `on_error` says. `pause`: its partition ends
before it, the rest is committed, and the run fails naming it. `dead_letter`: it goes to the table
`<table>__dead_letters`, which is committed first; a run that was killed between the two commits
has left letters there, and the next run adds only those that are missing. `drop`: it is counted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lake.catalog import Catalog
from lake.committed import committed
from lake.jobs.local_pool import run_items
from lake.jobs.table_item import (
    OnError,
    TableItem,
    TableItemResult,
    Unreadable,
    make_table_files,
)
from lake.jobs.table_round import TableRound, plan_round
from lake.planner import SPLIT_BYTES, ByteRange
from lake.store_reader import StoreReader, store_reader
from lake.tables.data_file import DataFile, read_data_file, write_data_file
from lake.tables.ddl import parse_schema
from lake.tables.delta_table import Table, TableMoved, create_table, open_table
from lake.tables.json_inference import SAMPLE_RECORDS, infer_schema
from lake.tables.layout import (
    DEAD_LETTERS,
    TableLayout,
    ValueFormat,
    check_same_schema,
    existing_layout,
    new_layout,
)
from lake.tables.value_sample import sample_values
from storage.clock import SystemClock
from storage.errors import LakeheadError
from storage.failpoints import failpoint

COMMIT_BYTES = 4 << 30
"""Bytes of stored records per commit: what a killed run may have to do again."""

Progress = Callable[[int, int], None]
"""Told (bytes of stored records that are done, bytes that the run will do)."""


class RecordUnreadable(LakeheadError):
    """The job stands before a record that is not what the table wants. All before it is committed.

    The message names topic, partition and offset, and what to do.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializeSettings:
    """What to materialize, and how.

    `path` is the cluster's object-store URI, `table` the table's. `schema` is DDL, or `@file` with
    DDL: left out, the table's own wins, and for a new table it is inferred from the first
    `sample_records`. `processes` work at once on this machine.
    """

    path: str
    topic: str
    table: str
    value_format: ValueFormat = "json"
    schema: str | None = None
    sample_records: int = SAMPLE_RECORDS
    on_error: OnError = "pause"
    processes: int = 2
    split_bytes: int = SPLIT_BYTES
    commit_bytes: int = COMMIT_BYTES
    dry_run: bool = False

    @property
    def dead_letters(self) -> str:
        """URI of the table of records that could not be read."""
        place, question, options = self.table.partition("?")
        return f"{place.rstrip('/')}__dead_letters{question}{options}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializeResult:
    """What a run did; in a dry run, what it would do (then only bytes and offsets are known).

    `lost` are offsets that retention removed before they reached the table.
    """

    records: int = 0
    dead_letters: int = 0
    dropped: int = 0
    lost: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    files: int = 0
    commits: int = 0
    end_offsets: tuple[int, ...] = ()
    schema: Any = None


def materialize(
    settings: MaterializeSettings, *, on_progress: Progress = lambda _done, _total: None
) -> MaterializeResult:
    """Bring a topic's table up to what lies in objects now, and return figures.

    Raises SettingsError, UnknownTopic, RecordUnreadable, TableUnavailable, WorkerDied and what
    reading objects raises. Whatever it raises, run it again.
    """
    reader = store_reader(settings.path)
    catalog = reader.open_catalog()
    return _Run(settings, reader, catalog, on_progress).run()


class _Run:
    """One run of the job: rounds of plan, work and commit until nothing is left."""

    def __init__(
        self,
        settings: MaterializeSettings,
        reader: StoreReader,
        catalog: Catalog,
        on_progress: Progress,
    ) -> None:
        self._settings = settings
        self._reader = reader
        self._logs = committed(reader, catalog.partitions(settings.topic))
        self._on_progress = on_progress
        self._end = {log.id.partition: log.end_offset for log in self._logs}
        self._unreadable: dict[int, Unreadable] = {}
        self._done: dict[tuple[ByteRange, ...], TableItemResult] = {}
        self._result = MaterializeResult(end_offsets=tuple(log.end_offset for log in self._logs))

    def run(self) -> MaterializeResult:
        """Work until the table is level with the catalog, or every partition with more pauses."""
        layout = self._layout(open_table(self._settings.table))
        if layout is None:
            return self._result
        self._result = replace(self._result, schema=layout.value_schema())
        if self._settings.dry_run:
            table = open_table(self._settings.table)
            return replace(self._result, bytes_read=self._plan(table).remaining_bytes)
        if open_table(self._settings.table) is None:
            self._create(layout)
        while True:
            try:
                if not self._round():
                    break
            except TableMoved:
                failpoint("materialize_lost_race")
        if self._unreadable:
            raise RecordUnreadable(self._complaint())
        return self._result

    def _round(self) -> bool:
        """Plan, work and commit once; False if nothing was left to do. Raises TableMoved."""
        # Opened before planning: the commit holds only if nothing moved since.
        table = open_table(self._settings.table)
        if table is None:
            raise TableMoved(f"table {self._settings.table} is gone")
        letters = open_table(self._settings.dead_letters)
        layout = self._layout(table)
        assert layout is not None, "a table has a layout"
        plan = self._plan(table)
        if not plan.progress:
            return False
        failpoint("materialize_planned")
        results = self._work(plan, layout)
        paused = [found for result in results for found in result.unreadable]
        if paused:
            for found in paused:
                self._end[found.partition] = min(self._end[found.partition], found.offset)
                self._unreadable[found.partition] = found
            return True
        failpoint("materialize_files_written")
        self._commit_letters(plan, letters, table, results)
        self._commit(plan, table, results)
        return True

    # ------------------------------------------------------------------------------- the schema

    def _layout(self, table: Table | None) -> TableLayout | None:
        """The table's layout, or that of the table to create; None while nothing is known."""
        settings = self._settings
        given = None if settings.schema is None else parse_schema(settings.schema)
        if table is not None:
            layout = existing_layout(settings.table, table.schema, table.name, settings.topic)
            if given is not None:
                check_same_schema(settings.table, layout, given)
            return layout
        if settings.value_format == "raw":
            return new_layout("raw", None)
        if given is None:
            sample = sample_values(self._reader, self._logs, settings.sample_records)
            if not sample:
                return None
            given = infer_schema(sample)
        return new_layout("json", given)

    def _create(self, layout: TableLayout) -> None:
        create_table(
            self._settings.table,
            layout.schema,
            name=self._settings.topic,
            description=f"The records of Kafka topic {self._settings.topic}",
        )
        failpoint("materialize_table_created")

    def _plan(self, table: Table | None) -> TableRound:
        return plan_round(
            self._reader,
            self._logs,
            table,
            self._end,
            split_bytes=self._settings.split_bytes,
            commit_bytes=self._settings.commit_bytes,
        )

    # --------------------------------------------------------------------------------- the work

    def _work(self, plan: TableRound, layout: TableLayout) -> list[TableItemResult]:
        settings = self._settings
        items = [
            TableItem(
                store_uri=settings.path,
                split=split,
                layout=layout,
                table_uri=settings.table,
                dead_letters_uri=settings.dead_letters,
                on_error=settings.on_error,
            )
            for split in plan.splits
        ]
        # What a lost race or a pause left over is used again if it is planned again.
        todo = [item for item in items if item.split.ranges not in self._done]
        before = self._result.bytes_read
        total = before + plan.remaining_bytes
        done = before + sum(split.length for split in plan.splits if split.ranges in self._done)
        self._on_progress(done, total)
        for item, result in run_items(make_table_files, todo, processes=settings.processes):
            self._done[item.split.ranges] = result
            done += item.split.length
            self._on_progress(done, total)
        results = [self._done[item.split.ranges] for item in items]
        for item, result in zip(items, results, strict=True):
            if result.unreadable:
                del self._done[item.split.ranges]
        return results

    # ------------------------------------------------------------------------------- the commits

    def _commit(self, plan: TableRound, table: Table, results: Sequence[TableItemResult]) -> None:
        files = [file for result in results for file in result.files]
        table.commit(
            files,
            plan.progress,
            modified_ms=SystemClock().now_ms(),
            notes=_notes(self._settings.topic, plan.progress),
        )
        self._done.clear()
        failpoint("materialize_committed")
        held = self._result
        self._result = replace(
            held,
            records=held.records + sum(file.record_count for file in files),
            dropped=held.dropped + sum(result.dropped for result in results),
            lost=held.lost + plan.lost,
            bytes_read=held.bytes_read + sum(split.length for split in plan.splits),
            bytes_written=held.bytes_written + sum(file.size_bytes for file in files),
            files=held.files + len(files),
            commits=held.commits + 1,
        )

    def _commit_letters(
        self,
        plan: TableRound,
        letters: Table | None,
        table: Table,
        results: Sequence[TableItemResult],
    ) -> None:
        """Put the round's dead letters into their table, unless an earlier try has done so."""
        files = [file for result in results for file in result.dead_letters]
        if not files:
            return
        uri = self._settings.dead_letters
        if letters is None:
            name = f"{self._settings.topic}__dead_letters"
            letters = create_table(
                uri, DEAD_LETTERS, name=name, description="Records that could not be read"
            )
        ahead = [
            key for key in plan.progress if letters.last_offset(*key) > table.last_offset(*key)
        ]
        if ahead:
            files = _missing_letters(uri, letters, files)
            if not files:
                return
        progress = {
            key: max(last, letters.last_offset(*key)) for key, last in plan.progress.items()
        }
        letters.commit(
            files,
            progress,
            modified_ms=SystemClock().now_ms(),
            notes=_notes(self._settings.topic, progress),
        )
        failpoint("materialize_dead_letters_committed")
        written = sum(file.record_count for file in files)
        self._result = replace(self._result, dead_letters=self._result.dead_letters + written)

    def _complaint(self) -> str:
        found = [self._unreadable[partition] for partition in sorted(self._unreadable)]
        more = f" (and {len(found) - 1} more partitions pause)" if len(found) > 1 else ""
        return (
            f"{found[0]}{more}. What lies before is in the table. To go on: --on-error dead_letter "
            "keeps such records aside, --on-error drop leaves them out"
        )


def _notes(topic: str, progress: Mapping[tuple[str, int], int]) -> dict[str, str]:
    """What a person who looks at the table's history is told."""
    offsets = ", ".join(f"{partition}: {last}" for (_, partition), last in sorted(progress.items()))
    return {"lakehead.topic": topic, "lakehead.last.offsets": offsets}


def _missing_letters(uri: str, letters: Table, files: Sequence[DataFile]) -> list[DataFile]:
    """The dead letters of `files` that the table does not hold yet, in one new file or none."""
    written = pa.concat_tables([read_data_file(uri, file.path) for file in files])
    place = ("_partition", "_offset")
    lowest = pc.min(written.column("_offset"))
    held = letters.rows(place, ds.field("_offset") >= lowest).to_pydict()
    known = set(zip(held["_partition"], held["_offset"], strict=True))
    found = zip(*(written.column(name).to_pylist() for name in place), strict=True)
    missing = [row for row, at in enumerate(found) if at not in known]
    if not missing:
        return []
    rows = written.take(pa.array(missing, pa.int64())).cast(DEAD_LETTERS)
    return [write_data_file(uri, rows)]
