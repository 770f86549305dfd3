"""Dead letters of a table by upsert that can be changes now.

A letter alone cannot be applied: a row that was deleted after it has left no trace in the table. So
all that the topic has of the letters' keys, from the oldest letter on, is offered to the table
again, of which the last change of each key decides. What the table has already changes nothing by
being offered twice.

That needs the records to be there. A letter whose record retention has removed stays a letter: of
what came after it some may be gone as well. Where compaction has removed it, a newer record of its
key was there, so it is of no use any more.
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
from lakehead.lake.jobs.table_changes import planned_merge
from lakehead.lake.jobs.table_settings import MaterializeSettings
from lakehead.lake.jobs.thread_pool import run_in_threads
from lakehead.lake.moved_ranges import plan_moved
from lakehead.lake.offsets import offset_for_timestamp
from lakehead.lake.planner import OffsetRange, Split
from lakehead.lake.record_reader import read_records
from lakehead.lake.store_reader import StoreReader, store_reader
from lakehead.lake.tables.delta_table import Table, app_id
from lakehead.lake.tables.gathered import gathered
from lakehead.lake.tables.layout import DECODED, TableLayout
from lakehead.lake.tables.record_places import RecordPlaces
from lakehead.lake.tables.upsert import Merge, change_schema, identity, is_named_by_key, newest
from lakehead.lake.tables.values.changes import OP
from lakehead.lake.tables.values.formats import open_decoder

_HELD_BYTES = 128 << 20
"""Twice a round of letters: less is hardly overtaken."""


def letter_columns(keys: Sequence[str]) -> list[str]:
    """Return the columns of change rows that letters are told by."""
    return list(dict.fromkeys((*identity(keys), "_key", "_partition", "_offset", "_timestamp")))


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterKeys:
    """The rows that letters are about: values of the columns that tell rows apart, and the keys of
    records that name a row by nothing else.
    """

    rows: Any  # pa.Table
    record_keys: Any  # pa.Array

    @classmethod
    def of(cls, changes: Any, keys: Sequence[str]) -> "LetterKeys":
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


def merge_of_letters(
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
        _changes_of_letters(settings, layout, letters, splits),
        layout.schema,
        layout.spec.keys,
        is_history=False,
    )
    # Not all that the table has is offered, so a truncate says nothing of the rest.
    clauses = tuple(c for c in merge.clauses if not c.verb.endswith("_missing"))
    is_asked = RecordPlaces(letters).has(merge.source)
    source = merge.source if is_asked.all() else merge.source.filter(pa.array(is_asked))
    return replace(merge, source=source, clauses=clauses)


def _changes_of_letters(
    settings: MaterializeSettings, layout: TableLayout, letters: Any, splits: Sequence[Split]
) -> Any:
    """What the splits have of the letters' keys; where it is much, without what is overtaken."""
    keys = layout.spec.keys
    work = partial(_changes_in, settings, layout, LetterKeys.of(letters, keys))
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
    """What may have changes of the letters' keys: each partition from its first letter on, and from
    the time of the oldest letter of all.
    """
    oldest_ms = pc.min(letters.column("_timestamp").cast(pa.int64())).as_py() // 1000
    firsts = _first_offsets(letters)
    asked = []
    for log in committed_now(reader, catalog, settings.topic):
        end = table.marked(app_id(log.topic_id, log.id.partition)) + 1
        begins = [at for at in (firsts.get(log.id.partition),) if at is not None]
        if (at := offset_for_timestamp(reader, log, oldest_ms)) is not None:
            begins.append(at)
        start = max(min(begins, default=end), log.start_offset)
        if start < end:
            asked.append(OffsetRange(log=log, start=start, end=end))
    return plan_moved(reader, asked, split_bytes=settings.split_bytes)


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
    settings: MaterializeSettings, layout: TableLayout, wanted: LetterKeys, split: Split
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
