"""The last commits of a table and its dead letters, as people look at them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehead.lake.catalog import Catalog
from lakehead.lake.declaration.table_declaration import dead_letters_uri
from lakehead.lake.jobs.dead_letters import check_dead_letter_table
from lakehead.lake.jobs.table_due import topic_of
from lakehead.lake.tables.delta_table import open_table
from lakehead.lake.tables.layout import DEAD_LETTERS
from lakehead.lake.tables.owner import check_topic
from lakehead.lake.tables.table_history import change_of, entries_since
from lakehead.lake.tables.table_statistics import RunCost, cost_of

_LETTERS_AT_ONCE = 10_000
_NEWEST_FIRST = [
    ("_timestamp", "descending"),
    ("_partition", "ascending"),
    ("_offset", "descending"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRunRow:
    """A commit of a table. `job` is the job that brought records, else Delta's name of the
    operation (OPTIMIZE, VACUUM END); `offsets` are [first, end) by partition. Time in milliseconds.
    """

    version: int
    at_ms: int
    job: str
    rows: int
    offsets: Mapping[int, tuple[int, int]]
    written_by: str
    cost: RunCost


def last_runs(uri: str, count: int) -> list[TableRunRow]:
    """Return the newest commits of the table at `uri`, at most `count`, the newest first; none
    without a table. Raises TableUnavailable, SettingsError.
    """
    table = open_table(uri)
    if table is None:
        return []
    rows = []
    for entry in entries_since(table, max(table.version - count, -1)):
        change = change_of(entry)
        rows.append(
            TableRunRow(
                version=entry["version"],
                at_ms=int(entry.get("timestamp", -1)),
                job=str(entry.get("operation", "")) if change is None else change.kind,
                rows=0 if change is None else change.rows,
                offsets={} if change is None else change.offsets,
                written_by="" if change is None else change.written_by,
                cost=cost_of([entry]),
            )
        )
    return sorted(rows, key=lambda one: -one.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """The dead letters of a table: how many of each error class, and some with their columns."""

    counts: Mapping[str, int]
    letters: list[dict[str, Any]]


def read_dead_letters(
    catalog: Catalog, table: str, uri: str, *, count: int, error_class: str = ""
) -> DeadLetters:
    """Return the dead letters of the table with the key `table` and the root `uri`: the newest by
    the time of their records, at most `count`, of one error class or of all.

    Raises OtherTopic, SettingsError for a table that does not hold this topic's dead letters,
    TableUnavailable.
    """
    letters = open_table(dead_letters_uri(uri))
    if letters is None:
        return DeadLetters(counts={}, letters=[])
    topic = catalog.topic(topic_of(table))
    check_dead_letter_table(letters, topic.name)
    check_topic(letters, topic.name, topic.topic_id)
    counts: Counter[str] = Counter()
    newest = DEAD_LETTERS.empty_table()
    for batch in letters.batches(_LETTERS_AT_ONCE):
        classes = batch.column("error_class")
        counted = pc.value_counts(classes.combine_chunks())
        counts.update({one["values"] or "": one["counts"] for one in counted.to_pylist()})
        some = batch.filter(pc.equal(classes, error_class)) if error_class else batch
        some = some.select(DEAD_LETTERS.names).cast(DEAD_LETTERS)
        # Files are in no order.
        newest = pa.concat_tables([newest, some]).sort_by(_NEWEST_FIRST).slice(0, count)
    return DeadLetters(counts=dict(counts), letters=newest.to_pylist(maps_as_pydicts="lossy"))
