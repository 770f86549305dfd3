"""The job `replay-dead-letters`: records that were kept aside become rows after all.

For when a schema, a registry or a policy has been put right. Letters are read as the table's
declaration is now; those that can be rows are committed to the table, then leave the dead letters.
A run that was killed between the two commits has left letters whose rows are in the table; the next
one finds them there by partition and offset, adds none, and takes the letters away. Both commits
are refused if another run moved either table since it was opened.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from lake.catalog import Catalog
from lake.jobs.table_item import TableFiles, strict_rows
from lake.jobs.table_run import log_key
from lake.jobs.table_schema import follow_values, table_layout
from lake.jobs.table_settings import Guard, MaterializeSettings
from lake.store_reader import StoreReader
from lake.tables.delta_table import Table, TableMoved, app_id, open_table
from lake.tables.layout import DEAD_LETTERS, METADATA, VALUE, TableLayout, TableRows
from lake.tables.values.decoder import ValueDecoder
from lake.tables.values.formats import open_decoder
from storage.clock import SystemClock
from storage.errors import SettingsError
from storage.failpoints import failpoint

_LETTERS_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Letters that were looked at; those that became rows; that were rows already (an earlier run
    was killed); and that are letters still, the first of them with the reason.
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

    Raises SettingsError without a table, SchemaConflict, TableUnavailable, what the guard raises
    and what reading and writing files raises. Whatever it raises, run it again.
    """
    while True:
        try:
            return _Replay(settings, reader, catalog, guard).run()
        except (TableMoved, _SchemaFollowed):
            failpoint("replay_begins_again")


class _Replay:
    """One try. What it made and did not commit is in no version of a table."""

    def __init__(
        self, settings: MaterializeSettings, reader: StoreReader, catalog: Catalog, guard: Guard
    ) -> None:
        self._settings = settings
        self._guard = guard
        self._keys = [log_key(log) for log in catalog.partitions(settings.topic)]
        self._mark = f"lakehead:replay:{catalog.topic(settings.topic).topic_id}"
        self._letters = open_table(settings.dead_letters)
        table = open_table(settings.table)
        layout = None if table is None else table_layout(settings, table, reader, ())
        if table is None or layout is None:
            raise SettingsError(
                f"there is no table {settings.table} yet: lakehead materialize makes it"
            )
        self._table: Table = table
        self._layout: TableLayout = layout
        self._values: ValueDecoder = open_decoder(layout.spec)
        self._result = ReplayResult()

    def run(self) -> ReplayResult:
        settings, letters = self._settings, self._letters
        if letters is None:
            return self._result
        rows = TableFiles(
            settings.table, self._layout.partition_columns, file_bytes=settings.file_bytes
        )
        left = TableFiles(settings.dead_letters, (), file_bytes=settings.file_bytes)
        for batch in _batches(letters):
            for some, made in self._read(batch):
                self._look(some, made, rows, left)
        result = self._result
        if settings.dry_run or result.left == result.letters:
            return result
        self._guard.check()
        if result.replayed:
            self._commit(self._table, rows.finish(), replaced_by=None)
            failpoint("replay_rows_committed")
        self._guard.check()
        self._commit(letters, left.finish(), replaced_by=DEAD_LETTERS)
        failpoint("replay_letters_committed")
        return result

    def _read(self, letters: Any) -> Iterator[tuple[Any, TableRows]]:
        """Yield letters and what rows they are, as the table is declared now."""
        batch = _as_records(letters)
        if self._settings.evolution == "dead_letter":
            for start, made in strict_rows(self._layout, self._values, batch):
                yield letters.slice(start), made
            return
        made = self._layout.table_rows(batch, self._values)
        if made.found is not None and not self._settings.dry_run:
            self._follow(made.found)
        yield letters, made

    def _look(self, letters: Any, made: TableRows, rows: TableFiles, left: TableFiles) -> None:
        """Share letters out: new rows, rows that are there already, letters still."""
        held = self._held(letters)
        places = zip(
            made.rows.column("_partition").to_pylist(),
            made.rows.column("_offset").to_pylist(),
            strict=True,
        )
        fresh = [row for row, place in enumerate(places) if place not in held]
        bad = [fault.row for fault in made.faults]
        result = self._result
        first_left = result.first_left
        if bad and not first_left:
            fault = made.faults[0]
            first_left = (
                f"topic {self._settings.topic}, partition "
                f"{letters.column('_partition')[fault.row].as_py()}, offset "
                f"{letters.column('_offset')[fault.row].as_py()}: {fault.reason}"
            )
        self._result = replace(
            result,
            letters=result.letters + made.rows.num_rows + len(bad),
            replayed=result.replayed + len(fresh),
            already_rows=result.already_rows + made.rows.num_rows - len(fresh),
            left=result.left + len(bad),
            first_left=first_left,
        )
        if not self._settings.dry_run:
            rows.add(made.rows.take(pa.array(fresh, pa.int64())))
            left.add(letters.take(pa.array(bad, pa.int64())))

    def _follow(self, found: Any) -> None:
        before = self._table.schema
        follow_values(self._settings, self._table, self._layout, found, self._marks(self._table, 0))
        after = open_table(self._settings.table)
        if after is None or after.schema != before:
            raise _SchemaFollowed

    def _held(self, letters: Any) -> set[tuple[int, int]]:
        """Which of these letters are rows of the table."""
        offsets = letters.column("_offset").combine_chunks()
        held = self._table.rows(("_partition", "_offset"), ds.field("_offset").isin(offsets))
        return set(
            zip(
                held.column("_partition").to_pylist(),
                held.column("_offset").to_pylist(),
                strict=True,
            )
        )

    def _commit(self, table: Table, files: Any, *, replaced_by: Any) -> None:
        table.commit(
            files,
            self._marks(table, 1),
            modified_ms=SystemClock().now_ms(),
            notes={"lakehead.topic": self._settings.topic, "lakehead.replayed": "dead letters"},
            replaced_by=replaced_by,
        )

    def _marks(self, table: Table, step: int) -> dict[str, int]:
        """Its progress as it is, and a mark of ours: whatever else is committed is in the way."""
        apps = [app_id(*key) for key in self._keys]
        marks = {app: table.marked(app) for app in apps if table.marked(app) >= 0}
        return {**marks, self._mark: table.marked(self._mark) + step} if step else marks


def _batches(letters: Table) -> Iterator[Any]:
    for rows in letters.file_rows():
        whole = rows.select(DEAD_LETTERS.names).cast(DEAD_LETTERS).combine_chunks()
        for start in range(0, whole.num_rows, _LETTERS_AT_ONCE):
            yield whole.slice(start, _LETTERS_AT_ONCE)


def _as_records(letters: Any) -> Any:
    """Letters as the batch of records that they were."""
    columns = {source: letters.column(name) for name, source in METADATA.items()}
    columns["value"] = letters.column(VALUE)
    (batch,) = pa.table(columns).combine_chunks().to_batches()
    return batch
