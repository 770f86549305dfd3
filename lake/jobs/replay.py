"""The job `replay-dead-letters`: dead-letter records become rows.

For use when a schema, a registry or a policy has been corrected. Dead letters are read by the
table's present declaration, in rounds of a bounded size; those that can be rows are committed to
the table, one commit a round, and one commit at the end removes them from the dead letters. A run
that was killed before that commit has left dead letters whose rows are in the table; the next run
finds these rows by partition and offset, adds none, and removes the dead letters. Every commit is
refused if another run has changed its table since it was read.

A dead letter of offsets that the table does not have yet stays one: a run was killed after it had
committed its dead letters and before its rows. The next run reads the record itself.

For a table by upsert, a dead letter alone cannot be applied: a row that was deleted after it has
left no trace in the table. So every record of the dead letters' keys, from the oldest dead letter
on, is offered to the table again, and the last change of each key decides. A change that the table
has already has no effect when it is offered twice.

That needs the records. A dead letter whose record retention has removed stays a dead letter: later
records of its key may be gone as well. A dead letter whose record compaction has removed is
dropped, because a newer record of its key was there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehead.lake.catalog import Catalog
from lakehead.lake.committed import committed_now
from lakehead.lake.decode.decoder import RecordDecoder
from lakehead.lake.decode.invalid import PassedOver
from lakehead.lake.jobs.dead_letters import check_dead_letter_table
from lakehead.lake.jobs.local_pool import run_in_threads
from lakehead.lake.jobs.table_item import TableFiles
from lakehead.lake.jobs.table_run import log_key, planned_merge
from lakehead.lake.jobs.table_schema import (
    allowed_change,
    follow_values,
    given_schema,
    table_layout,
)
from lakehead.lake.jobs.table_settings import Guard, MaterializeSettings
from lakehead.lake.moved_ranges import plan_moved
from lakehead.lake.offsets import offset_for_timestamp
from lakehead.lake.planner import OffsetRange, Split
from lakehead.lake.record_reader import read_records
from lakehead.lake.store_reader import StoreReader, store_reader
from lakehead.lake.tables.arrow_rows import gathered
from lakehead.lake.tables.delta_table import (
    CommitConflict,
    Table,
    app_id,
    first_id,
    open_table,
)
from lakehead.lake.tables.layout import (
    DEAD_LETTERS,
    DECODED,
    METADATA,
    VALUE,
    TableLayout,
    TableRows,
)
from lakehead.lake.tables.left_out import count_txns
from lakehead.lake.tables.merge_engine import open_merge_engine
from lakehead.lake.tables.owner import check_topic
from lakehead.lake.tables.record_places import PLACE, RecordPlaces, among_places
from lakehead.lake.tables.table_history import Change
from lakehead.lake.tables.upsert import Merge, change_schema, identity, is_named_by_key, newest
from lakehead.lake.tables.values.changes import OP
from lakehead.lake.tables.values.decoder import ErrorClass, ValueDecoder
from lakehead.lake.tables.values.formats import open_decoder
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError
from lakehead.storage.failpoints import failpoint

_HELD_BYTES = 128 << 20
"""Twice a round of letters: less is hardly overtaken."""


def _dead_letter_columns(keys: Sequence[str]) -> list[str]:
    """Return the columns of change rows that identify dead letters."""
    return list(dict.fromkeys((*identity(keys), "_key", "_partition", "_offset", "_timestamp")))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterKeys:
    """The rows of dead letters: values of the identity columns, and the keys of records that name a
    row by their key alone.
    """

    rows: Any  # pa.Table
    record_keys: Any  # pa.Array

    @classmethod
    def of(cls, changes: Any, keys: Sequence[str]) -> "DeadLetterKeys":
        """Return those of change rows."""
        names = list(identity(keys))
        return cls(
            rows=changes.select(names).group_by(names).aggregate([]),
            record_keys=pc.unique(changes.column("_key")),
        )

    def chosen(self, changes: Any, keys: Sequence[str]) -> Any:
        """Return the changes of these rows, and those that may be."""
        names = list(identity(keys))
        places = changes.select(names).append_column(
            "_place", pa.array(np.arange(changes.num_rows), pa.int64())
        )
        found = places.join(self.rows, names, join_type="left semi").column("_place")
        is_chosen = np.zeros(changes.num_rows, np.bool_)
        is_chosen[np.asarray(found)] = True
        nameless = pc.fill_null(is_named_by_key(changes, keys), False)
        if keys and pc.any(nameless).as_py():
            by_key = pc.and_(nameless, pc.is_in(changes.column("_key"), self.record_keys))
            is_chosen |= np.asarray(pc.fill_null(by_key, False))
        is_chosen |= np.asarray(pc.equal(changes.column(OP), "t"))
        return changes.filter(pa.array(is_chosen))


def _merge_of_dead_letters(
    settings: MaterializeSettings,
    reader: StoreReader,
    catalog: Catalog,
    table: Table,
    layout: TableLayout,
    letters: Any,
) -> Merge:
    """Return the MERGE that brings the table to where it would be if these letters (change rows)
    had been changes at once: of them, those that nothing of their key came after.

    Raises what reading objects raises.
    """
    splits = _splits(settings, reader, catalog, table, letters)
    # No name for all changes: what has been overtaken is not in memory any more.
    merge = planned_merge(
        table,
        _changes_of_dead_letters(settings, layout, letters, splits),
        layout.schema,
        layout.spec.keys,
        is_history=False,
    )
    # Not all that the table has is offered, so a truncate says nothing of the rest.
    clauses = tuple(c for c in merge.clauses if not c.verb.endswith("_missing"))
    is_wanted = RecordPlaces(letters).has(merge.source)
    source = merge.source if is_wanted.all() else merge.source.filter(pa.array(is_wanted))
    return replace(merge, source=source, clauses=clauses)


def _changes_of_dead_letters(
    settings: MaterializeSettings, layout: TableLayout, letters: Any, splits: Sequence[Split]
) -> Any:
    """Records of the letters' keys in these splits; of many, without those that a later one
    overtakes.
    """
    keys = layout.spec.keys
    work = partial(_changes_in, settings, layout, DeadLetterKeys.of(letters, keys))
    held = change_schema(layout.schema).empty_table()
    bytes_max = _HELD_BYTES
    for _, changes in run_in_threads(work, splits, workers=settings.workers):
        held = pa.concat_tables([held, changes])
        if held.nbytes > bytes_max:
            held = newest(held, keys)
            bytes_max = max(bytes_max, 2 * held.nbytes)
    pa.default_memory_pool().release_unused()
    return held


def _splits(
    settings: MaterializeSettings,
    reader: StoreReader,
    catalog: Catalog,
    table: Table,
    letters: Any,
) -> tuple[Split, ...]:
    """Splits with possible changes of the letters' keys: each partition from its first letter on,
    and from the time of the oldest letter of all.
    """
    oldest_ms = pc.min(letters.column("_timestamp").cast(pa.int64())).as_py() // 1000
    firsts = _first_offsets(letters)
    requested = []
    for log in committed_now(reader, catalog, settings.topic):
        end = table.txn_version(app_id(log.topic_id, log.id.partition)) + 1
        begins = [at for at in (firsts.get(log.id.partition),) if at is not None]
        if (at := offset_for_timestamp(reader, log, oldest_ms)) is not None:
            begins.append(at)
        start = max(min(begins, default=end), log.start_offset)
        if start < end:
            requested.append(OffsetRange(log=log, start=start, end=end))
    return plan_moved(reader, requested, split_bytes=settings.split_bytes)


def _first_offsets(letters: Any) -> Mapping[int, int]:
    firsts = letters.group_by("_partition").aggregate([("_offset", "min")])
    return dict(
        zip(
            firsts.column("_partition").to_pylist(),
            firsts.column("_offset_min").to_pylist(),
            strict=True,
        )
    )


def _changes_in(
    settings: MaterializeSettings, layout: TableLayout, wanted: DeadLetterKeys, split: Split
) -> Any:
    """The changes of these keys in a split. Records that cannot be changes are none here."""
    values = open_decoder(layout.spec)
    keys = layout.spec.keys

    def changes() -> Iterator[Any]:
        decoder = RecordDecoder(DECODED, invalid=PassedOver())
        for batch in read_records(store_reader(settings.path), split.ranges, decoder):
            made = layout.table_rows(
                batch, values, new_schema_is_fault=settings.evolution == "dead_letter"
            )
            yield made.rows

    chosen = [wanted.chosen(some, keys) for some in gathered(changes())]
    return pa.concat_tables([change_schema(layout.schema).empty_table(), *chosen])


_LETTERS_AT_ONCE = 10_000
_ROUND_BYTES = 64 << 20
"""Of rows, or changes, that a round gathers before it looks for them in the table."""
_GONE = (
    "its record is not in the topic any more, nor perhaps what came after it: lakehead "
    "rebuild-table makes the table from what there is"
)
_AHEAD = (
    "the table does not have its offset yet, since a run was killed: run that again (lakehead "
    "materialize), then this"
)
_BATCH: ErrorClass = "batch"
_NO_VALUE = (
    "it is a whole record batch that no reader can read: its bytes stay in the dead-letter table"
)
_OF_ANOTHER = "it is of another table of the topic now: lakehead rebuild-table makes that one again"
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
    """Add the dead letters that can be rows to the table, and return the result; a dry run returns
    the plan.

    Raises SettingsError without a table, and for one with history, SchemaConflict,
    TableUnavailable, what the guard raises and what reading and writing files raises. After any
    error, run it again.
    """
    if settings.scd == 2:
        raise SettingsError(
            f"{settings.table} keeps every value of a key with the time it held "
            "(lakehead.table.scd=2), which older values would change: rebuild it with: lakehead "
            "rebuild-table"
        )
    committed = 0
    while True:
        replay = _Replay(settings, reader, catalog, guard)
        try:
            result = replay.run()
        except (CommitConflict, _SchemaFollowed):
            committed += replay.committed
            failpoint("replay_begins_again")
            continue
        # For this try, records that earlier tries committed are rows already.
        return replace(
            result,
            replayed=result.replayed + committed,
            already_rows=result.already_rows - committed,
        )


class _Replay:
    """One try. Files that it made and did not commit are in no version of a table. `committed`
    dead-letter records became rows that a further try finds in the table.
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
            check_dead_letter_table(self._letters, settings.topic)
            check_topic(self._letters, settings.topic, topic_id)
        table = open_table(settings.table)
        layout = (
            None if table is None else table_layout(settings, table, reader, (), topic_id=topic_id)
        )
        if table is None or layout is None:
            raise SettingsError(
                f"there is no table {settings.table} yet: lakehead materialize creates it"
            )
        self._table: Table = table
        self._layout: TableLayout = layout
        self._values: ValueDecoder = open_decoder(layout.spec)
        self._spans = {
            partition: (
                max(table.txn_version(first_id(topic_id, partition)), 0),
                table.last_offset(topic_id, partition) + 1,
            )
            for topic_id, partition in self._keys
        }
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
        for batch in self._without_ahead(left):
            made = self._read(batch)
            self._left_out += made.left_out
            self._leave(batch, [(row, _OF_ANOTHER) for row in self._of_others(batch)], left)
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

    def _without_ahead(self, left: TableFiles) -> Iterator[Any]:
        """Yield the letters of offsets that the table has; others stay letters: a row of them would
        be there twice when the run that left them is done again.
        """
        for letters in self._without_batches(left):
            partitions, offsets = (letters.column(name).to_numpy() for name in PLACE)
            is_held = np.zeros(letters.num_rows, np.bool_)
            for partition in np.unique(partitions).tolist():
                first, end = self._spans.get(partition, (0, 0))
                is_held |= (partitions == partition) & (first <= offsets) & (offsets < end)
            if not is_held.all():
                ahead = np.flatnonzero(~is_held).tolist()
                self._leave(letters, [(row, _AHEAD) for row in ahead], left)
                letters = letters.filter(pa.array(is_held))
            if letters.num_rows:
                yield letters

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

    def _of_others(self, letters: Any) -> list[int]:
        """Return the letters that are of another table by the routes of now."""
        if self._layout.route is None:
            return []
        own, faults = self._layout.route.own(_as_records(letters))
        known = np.union1d(own, [fault.row for fault in faults])
        rest: list[int] = np.setdiff1d(np.arange(letters.num_rows), known).tolist()
        return rest

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
        columns = made.rows.select(_dead_letter_columns(self._layout.spec.keys))
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
        """The MERGE of those letters that decide, and the counts of all."""
        merge = _merge_of_dead_letters(
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
        commit_info = self._commit_info(len(RecordPlaces(merge.source)))
        engine.merge(self._table, merge, progress, commit_info, self._counts())

    def _counts(self) -> Mapping[str, int]:
        """The txns that count what this round has left out."""
        counts = count_txns(self._table, left_out=self._left_out)
        self._left_out = 0
        return counts

    def _follow(self, found: Any) -> None:
        before = self._table.schema
        follow_values(self._settings, self._table, self._layout, found, self._txns(self._table, 0))
        after = open_table(self._settings.table)
        if after is None or after.schema != before:
            raise _SchemaFollowed

    def _held(self, made: Any) -> RecordPlaces:
        """The rows among these that the table has."""
        return RecordPlaces(self._table.rows(PLACE, among_places(made)))

    def _commit(
        self, table: Table, files: Any, counts: Mapping[str, int], rows: int, *, replaced_by: Any
    ) -> None:
        table.commit(
            files,
            {**self._txns(table, 1), **counts},
            modified_ms=SystemClock().now_ms(),
            commit_info=self._commit_info(rows),
            replaced_by=replaced_by,
        )

    def _commit_info(self, rows: int) -> dict[str, str]:
        commit_info = {"lakehead.topic": self._settings.topic, "lakehead.replayed": "dead letters"}
        change = Change(kind="replay", rows=rows, written_by=self._settings.written_by)
        return commit_info | change.commit_info()

    def _txns(self, table: Table, step: int) -> dict[str, int]:
        """Its progress as it is, and a mark of ours: whatever else is committed is in the way."""
        apps = [app_id(*key) for key in self._keys]
        txns = {app: table.txn_version(app) for app in apps if table.txn_version(app) >= 0}
        return {**txns, self._mark: table.txn_version(self._mark) + step} if step else txns


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
