"""The job `replay-dead-letters`: records that were kept aside become rows after all.

For when a schema, a registry or a policy has been put right. Letters are read as the table's
declaration is now, in rounds of a bounded size; those that can be rows are committed to the table,
a commit each round, and leave the dead letters in one commit at the end. A run that was killed
before that has left letters whose rows are in the table; the next one finds them there by partition
and offset, adds none, and takes the letters away. All commits are refused if another run moved
their table since it was looked at. Of a table by upsert see `replay_changes`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehead.lake.catalog import Catalog
from lakehead.lake.jobs.dead_letters import check_letters
from lakehead.lake.jobs.replay_changes import letter_columns, merge_of_letters
from lakehead.lake.jobs.table_item import TableFiles
from lakehead.lake.jobs.table_run import log_key
from lakehead.lake.jobs.table_schema import (
    allowed_change,
    follow_values,
    given_schema,
    table_layout,
)
from lakehead.lake.jobs.table_settings import Guard, MaterializeSettings
from lakehead.lake.store_reader import StoreReader
from lakehead.lake.tables.delta_table import Table, TableMoved, app_id, open_table
from lakehead.lake.tables.layout import DEAD_LETTERS, METADATA, VALUE, TableLayout, TableRows
from lakehead.lake.tables.left_out import count_marks
from lakehead.lake.tables.merge_engine import open_merge_engine
from lakehead.lake.tables.owner import check_topic
from lakehead.lake.tables.record_places import PLACE, RecordPlaces, among_places
from lakehead.lake.tables.table_history import Change
from lakehead.lake.tables.upsert import Merge
from lakehead.lake.tables.values.changes import OP
from lakehead.lake.tables.values.decoder import ErrorClass, ValueDecoder
from lakehead.lake.tables.values.formats import open_decoder
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError
from lakehead.storage.failpoints import failpoint

_LETTERS_AT_ONCE = 10_000
_ROUND_BYTES = 64 << 20
"""Of rows, or changes, that a round gathers before it looks for them in the table."""
_GONE = (
    "its record is not in the topic any more, nor perhaps what came after it: lakehead "
    "rebuild-table makes the table from what there is"
)
_BATCH: ErrorClass = "batch"
_NO_VALUE = "it is a whole record batch that no reader can read: its bytes stay with the letters"
_TRUNCATES = "it empties the table: lakehead rebuild-table makes the table from all records"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Letters that were looked at; those that became rows; that were rows already (an earlier run
    was killed), or in a table by upsert were overtaken by newer records; and that are letters
    still, the first of them with the reason.
    """

    letters: int = 0
    replayed: int = 0
    already_rows: int = 0
    left: int = 0
    first_left: str = ""


class _SchemaFollowed(Exception):
    """The table has another schema now."""


def replay_dead_letters(
    settings: MaterializeSettings, reader: StoreReader, catalog: Catalog, guard: Guard
) -> ReplayResult:
    """Bring the dead letters that can be rows into the table, and return figures; a dry run tells
    what it would do.

    Raises SettingsError without a table, and for one with history, SchemaConflict,
    TableUnavailable, what the guard raises and what reading and writing files raises. Whatever it
    raises, run it again.
    """
    if settings.scd == 2:
        raise SettingsError(
            f"{settings.table} keeps every value of a key with the time it held "
            "(lakehead.table.scd=2), which older values would change: make it anew with: lakehead "
            "rebuild-table"
        )
    committed = 0
    while True:
        replay = _Replay(settings, reader, catalog, guard)
        try:
            result = replay.run()
        except (TableMoved, _SchemaFollowed):
            committed += replay.committed
            failpoint("replay_begins_again")
            continue
        # What earlier tries committed are rows already for this one.
        return replace(
            result,
            replayed=result.replayed + committed,
            already_rows=result.already_rows - committed,
        )


class _Replay:
    """One try. What it made and did not commit is in no version of a table. `committed` letters
    became rows that a further try finds in the table.
    """

    def __init__(
        self, settings: MaterializeSettings, reader: StoreReader, catalog: Catalog, guard: Guard
    ) -> None:
        self._settings = settings
        self._reader = reader
        self._guard = guard
        self._catalog = catalog
        logs = catalog.partitions(settings.topic)
        self._keys = [log_key(log) for log in logs]
        self._starts = {log.id.partition: log.start_offset for log in logs}
        topic_id = catalog.topic(settings.topic).topic_id
        self._mark = f"lakehead:replay:{topic_id}"
        self._letters = open_table(settings.dead_letters)
        if self._letters is not None:
            check_letters(self._letters, settings.topic)
            check_topic(self._letters, settings.topic, topic_id)
        table = open_table(settings.table)
        layout = (
            None if table is None else table_layout(settings, table, reader, (), topic_id=topic_id)
        )
        if table is None or layout is None:
            raise SettingsError(
                f"there is no table {settings.table} yet: lakehead materialize makes it"
            )
        self._table: Table = table
        self._layout: TableLayout = layout
        self._values: ValueDecoder = open_decoder(layout.spec)
        self._result = ReplayResult()
        self.committed = 0
        self._gathered: list[Any] = []
        self._gathered_bytes = 0
        self._left_out = 0

    def run(self) -> ReplayResult:
        settings, letters = self._settings, self._letters
        if letters is None:
            return self._result
        self._follow_declaration()
        left = TableFiles(settings.dead_letters, (), file_bytes=settings.file_bytes)
        for batch in self._without_batches(left):
            made = self._read(batch)
            self._left_out += made.left_out
            if self._layout.is_upsert:
                self._look_at_changes(batch, made, left)
            else:
                self._leave(batch, [(fault.row, fault.reason) for fault in made.faults], left)
                self._gather(made.rows, size=made.rows.nbytes)
            if self._gathered_bytes >= _ROUND_BYTES:
                self._end_round()
        self._end_round()
        result = self._result
        if settings.dry_run or result.left == result.letters:
            return result
        self._guard.check()
        self._commit(letters, left.finish(), {}, 0, replaced_by=DEAD_LETTERS)
        failpoint("replay_letters_committed")
        return result

    def _gather(self, made: Any, *, size: int) -> None:
        if made.num_rows:
            self._gathered.append(made)
            self._gathered_bytes += size

    def _end_round(self) -> None:
        """Have what was gathered in the table."""
        if not self._gathered:
            return
        gathered = pa.concat_tables(self._gathered)
        self._gathered, self._gathered_bytes = [], 0
        if self._layout.is_upsert:
            self._commit_changes(gathered)
        else:
            self._commit_rows(gathered)
        pa.default_memory_pool().release_unused()

    def _follow_declaration(self) -> None:
        """Have the table the columns that are declared now, as the next `materialize` would; in a
        dry run, have letters read as if it had them.
        """
        declared = given_schema(self._settings)
        if declared is None or self._layout.spec.value_format == "raw":
            return
        if self._settings.dry_run:
            change = allowed_change(self._settings, self._layout, declared)
            self._layout = self._layout.with_value_schema(change.schema)
        else:
            self._guard.check()
            self._follow(declared)

    def _without_batches(self, left: TableFiles) -> Iterator[Any]:
        """Yield the letters; those that are whole batches stay letters."""
        assert self._letters is not None, "looked at by the caller"
        for letters in _batches(self._letters):
            is_batch = pc.fill_null(pc.equal(letters.column("error_class"), _BATCH), False)
            if not pc.any(is_batch).as_py():
                yield letters
                continue
            stay = np.flatnonzero(is_batch.to_numpy(zero_copy_only=False)).tolist()
            self._leave(letters, [(row, _NO_VALUE) for row in stay], left)
            if len(stay) < letters.num_rows:
                yield letters.filter(pc.invert(is_batch))

    def _read(self, letters: Any) -> TableRows:
        """Return what rows letters are, as the table is declared now."""
        made = self._layout.table_rows(
            _as_records(letters),
            self._values,
            new_schema_is_fault=self._settings.evolution == "dead_letter",
        )
        if made.found is not None and not self._settings.dry_run:
            self._follow(made.found)
        return made

    def _commit_rows(self, made: Any) -> None:
        """Share rows out: new ones, and those that the table has already."""
        is_fresh = ~self._held(made).has(made)
        count = int(is_fresh.sum())
        result = self._result
        self._result = replace(
            result,
            letters=result.letters + made.num_rows,
            replayed=result.replayed + count,
            already_rows=result.already_rows + made.num_rows - count,
        )
        settings = self._settings
        if settings.dry_run or not count:
            return
        self._guard.check()
        rows = TableFiles(
            settings.table, self._layout.partition_columns, file_bytes=settings.file_bytes
        )
        rows.add(made if count == made.num_rows else made.filter(pa.array(is_fresh)))
        self._commit(self._table, rows.finish(), self._counts(), count, replaced_by=None)
        self._table = self._table.refreshed()
        self.committed += count
        failpoint("replay_rows_committed")

    def _leave(self, letters: Any, bad: Sequence[tuple[int, str]], left: TableFiles) -> None:
        """Have these letters, by row and reason, stay letters."""
        result = self._result
        first_left = result.first_left
        if bad and not first_left:
            row, reason = bad[0]
            first_left = (
                f"topic {self._settings.topic}, partition "
                f"{letters.column('_partition')[row].as_py()}, offset "
                f"{letters.column('_offset')[row].as_py()}: {reason}"
            )
        self._result = replace(
            result,
            letters=result.letters + len(bad),
            left=result.left + len(bad),
            first_left=first_left,
        )
        if not self._settings.dry_run:
            left.add(letters.take(pa.array([row for row, _ in bad], pa.int64())))

    # ------------------------------------------------------------------------------- by upsert

    def _look_at_changes(self, letters: Any, made: TableRows, left: TableFiles) -> None:
        """Share letters out: changes, and letters still."""
        rows = {place: row for row, place in enumerate(_each_place(letters))}
        bad = {fault.row: fault.reason for fault in made.faults}
        is_kept = []
        for place, op in zip(_each_place(made.rows), made.rows.column(OP).to_pylist(), strict=True):
            partition, offset = place
            if offset < self._starts[partition]:
                bad[rows[place]] = _GONE
            elif op == "t":
                bad[rows[place]] = _TRUNCATES
            is_kept.append(rows[place] not in bad)
        self._leave(letters, sorted(bad.items()), left)
        columns = made.rows.select(letter_columns(self._layout.spec.keys))
        # Of the changes of these keys that the topic has, values are in memory too.
        self._gather(columns.filter(pa.array(is_kept, pa.bool_())), size=made.rows.nbytes)

    def _commit_changes(self, changes: Any) -> None:
        """Have the table the changes that decide."""
        before = self._result.replayed
        merge = self._merge(changes)
        if self._settings.dry_run or self._result.replayed == before:
            return
        self._guard.check()
        self._commit_merge(merge)
        self._table = self._table.refreshed()
        failpoint("replay_rows_committed")

    def _merge(self, changes: Any) -> Merge:
        """The MERGE of those letters that decide, and figures of all."""
        merge = merge_of_letters(
            self._settings, self._reader, self._catalog, self._table, self._layout, changes
        )
        count, decide = len(RecordPlaces(changes)), len(RecordPlaces(merge.source))
        self._result = replace(
            self._result,
            letters=self._result.letters + count,
            replayed=self._result.replayed + decide,
            already_rows=self._result.already_rows + count - decide,
        )
        return merge

    def _commit_merge(self, merge: Merge) -> None:
        progress = {key: self._table.last_offset(*key) for key in self._keys}
        engine = open_merge_engine(self._settings.engine)
        notes = self._notes(len(RecordPlaces(merge.source)))
        engine.merge(self._table, merge, progress, notes, self._counts())

    def _counts(self) -> Mapping[str, int]:
        """The marks that count what this round has left out."""
        counts = count_marks(self._table, left_out=self._left_out)
        self._left_out = 0
        return counts

    def _follow(self, found: Any) -> None:
        before = self._table.schema
        follow_values(self._settings, self._table, self._layout, found, self._marks(self._table, 0))
        after = open_table(self._settings.table)
        if after is None or after.schema != before:
            raise _SchemaFollowed

    def _held(self, made: Any) -> RecordPlaces:
        """Which of these rows the table has."""
        return RecordPlaces(self._table.rows(PLACE, among_places(made)))

    def _commit(
        self, table: Table, files: Any, counts: Mapping[str, int], rows: int, *, replaced_by: Any
    ) -> None:
        table.commit(
            files,
            {**self._marks(table, 1), **counts},
            modified_ms=SystemClock().now_ms(),
            notes=self._notes(rows),
            replaced_by=replaced_by,
        )

    def _notes(self, rows: int) -> dict[str, str]:
        notes = {"lakehead.topic": self._settings.topic, "lakehead.replayed": "dead letters"}
        change = Change(kind="replay", rows=rows, written_by=self._settings.written_by)
        return notes | change.notes()

    def _marks(self, table: Table, step: int) -> dict[str, int]:
        """Its progress as it is, and a mark of ours: whatever else is committed is in the way."""
        apps = [app_id(*key) for key in self._keys]
        marks = {app: table.marked(app) for app in apps if table.marked(app) >= 0}
        return {**marks, self._mark: table.marked(self._mark) + step} if step else marks


def _each_place(rows: Any) -> Iterator[tuple[int, int]]:
    """Yield the partition and offset that each row is from."""
    columns = (rows.column(name).to_pylist() for name in ("_partition", "_offset"))
    return zip(*columns, strict=True)


def _batches(letters: Table) -> Iterator[Any]:
    for rows in letters.batches(_LETTERS_AT_ONCE):
        yield rows.select(DEAD_LETTERS.names).cast(DEAD_LETTERS).combine_chunks()


def _as_records(letters: Any) -> Any:
    """Letters as the batch of records that they were."""
    columns = {source: letters.column(name) for name, source in METADATA.items()}
    columns["value"] = letters.column(VALUE)
    (batch,) = pa.table(columns).combine_chunks().to_batches()
    return batch
