"""The schema of a table: its first one, and the changes by which it follows the values.

A new column is a change of the table's metadata, committed before rows that have it. A wider number
needs all data files rewritten, in memory for a row group of each in turn, in one commit that
replaces the old files. Both are refused by compare-and-set if another run has changed the table.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from lakehead.lake.catalog import PartitionLog
from lakehead.lake.jobs.table_item import FILE_BYTES, TableFiles
from lakehead.lake.jobs.table_settings import MaterializeSettings
from lakehead.lake.store_reader import ObjectReader
from lakehead.lake.tables.data_file import DataFile, as_written
from lakehead.lake.tables.ddl import parse_schema
from lakehead.lake.tables.delta_table import Table
from lakehead.lake.tables.layout import (
    TableLayout,
    changed_fields,
    existing_layout,
    made_names,
    names_of_made,
    new_layout,
    without_made,
)
from lakehead.lake.tables.owner import check_topic, owner_txn
from lakehead.lake.tables.unique_key import check_unique_key, unique_key_txn
from lakehead.lake.tables.value_sample import sample_records
from lakehead.lake.tables.values.changes import CHANGE_FIELDS
from lakehead.lake.tables.values.evolution import Evolution, evolve
from lakehead.lake.tables.values.formats import open_decoder
from lakehead.lake.tables.values.groups import int64_array
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import LakeheadError, SettingsError

_ROWS_AT_ONCE = 10_000


def rewrite(
    table: Table, layout: TableLayout, txns: Mapping[str, int], *, file_bytes: int = FILE_BYTES
) -> None:
    """Rewrite all files of a table in a wider schema, and replace the old ones by a commit with
    unchanged `txns`: so it is refused if rows were added during the rewrite.

    Each file becomes one, or several of about `file_bytes`. Raises CommitConflict,
    TableUnavailable, and the errors of reading and writing files.
    """
    files = [
        file
        for batches in table.files(_ROWS_AT_ONCE)
        for file in _rewritten(table, layout, batches, file_bytes)
    ]
    table.commit(
        files,
        txns,
        modified_ms=SystemClock().now_ms(),
        commit_info={"lakehead.rewritten": "wider columns"},
        replaced_by=layout.schema,
    )


def _rewritten(
    table: Table, layout: TableLayout, batches: Iterator[Any], file_bytes: int
) -> tuple[DataFile, ...]:
    """Write the rows of one file of the table, which are all of one partition."""
    files = TableFiles(
        table.uri, layout.partition_columns, file_bytes=file_bytes, of_one_partition=True
    )
    for rows in batches:
        files.add(as_written(rows, layout.schema))
    return files.finish()


class SchemaConflict(LakeheadError):
    """Values have a schema that the table's may not, or cannot, follow. Says what to do."""


def table_layout(
    settings: MaterializeSettings,
    table: Table | None,
    reader: ObjectReader,
    logs: Sequence[PartitionLog],
    *,
    topic_id: str,
    is_key_checked: bool = False,
) -> TableLayout | None:
    """Return the table's layout, or that of the table to create; None while nothing is known. Its
    unique key is looked for in the log, far back, unless the caller knows it (`is_key_checked`).

    Raises SettingsError (OtherTopic for a table of an earlier topic of the name), and what reading
    objects raises.
    """
    if table is None:
        return _first_layout(settings, reader, logs)
    wanted = TableLayout(
        spec=settings.spec,
        schema=table.schema,
        parts=settings.partition_by,
        is_nested=settings.layout == "nested" and settings.value_format != "raw",
        is_upsert=settings.mode == "upsert",
        is_history=settings.scd == 2,
        route=settings.route,
    )
    layout = existing_layout(
        settings.table,
        table.schema,
        table.partition_columns,
        wanted,
        owner=table.name,
        topic=settings.topic,
    )
    check_topic(table, settings.topic, topic_id)
    if not is_key_checked:
        check_unique_key(table, settings.mode, settings.keys)
    if settings.schema is not None and layout.spec.value_format == "raw":
        raise SettingsError(
            f"{settings.table} holds values as bytes, so a schema that differs cannot be given: "
            "leave it out, or name another table"
        )
    return layout


def first_txns(settings: MaterializeSettings, topic_id: str) -> dict[str, int]:
    """Return what the commit that makes a topic's table sets: its topic, and its unique key."""
    return {**owner_txn(topic_id), **unique_key_txn(settings.mode, settings.keys)}


def _first_layout(
    settings: MaterializeSettings, reader: ObjectReader, logs: Sequence[PartitionLog]
) -> TableLayout | None:
    # A record never decides over its neighbours where records may be set aside.
    decoder = open_decoder(replace(settings.spec, by_most=settings.on_error != "pause"))
    if settings.value_format == "raw" or settings.schema is not None:
        return _new_layout(settings, decoder.schema_of(_EMPTY))
    sample = sample_records(reader, logs, settings.sample_records)
    if sample is None:
        return None
    if settings.route is not None:
        own, _ = settings.route.own(sample)
        if not len(own) and settings.layout == "flat":  # columns come with the first of them
            return _new_layout(settings, pa.schema([]))
        if not len(own):
            return None
        sample = sample.take(int64_array(own))
    values = decoder.schema_of(sample)
    made = made_names(settings.partition_by, is_history=settings.scd == 2)
    if settings.layout == "flat" and names_of_made(values, made):
        decoded = decoder.decode(sample, without_made(values, made))
        has_made = [row for row, of in decoded.found_by_row().items() if names_of_made(of, made)]
        others = np.delete(np.arange(sample.num_rows), has_made)
        with suppress(SettingsError):  # the others say nothing: all is as the sample has it
            values = decoder.schema_of(sample.take(int64_array(others)))
    return _new_layout(settings, values)


def _new_layout(settings: MaterializeSettings, values: Any) -> TableLayout:
    is_upsert = settings.mode == "upsert"
    if settings.value_format == "debezium" and not is_upsert:  # the history of changes
        values = pa.schema([*values, *CHANGE_FIELDS])
    return new_layout(
        settings.spec,
        values,
        parts=settings.partition_by,
        value_layout=settings.layout,
        is_upsert=is_upsert,
        is_history=settings.scd == 2,
        route=settings.route,
    )


_EMPTY = pa.RecordBatch.from_pydict(
    {"key": pa.array([], pa.binary()), "value": pa.array([], pa.binary())}
)


def given_schema(settings: MaterializeSettings) -> Any:
    """Return the schema that JSON values are said to have, if any. Raises SettingsError."""
    if settings.value_format != "json" or settings.schema is None:
        return None
    return parse_schema(settings.schema)


def follow_values(
    settings: MaterializeSettings,
    table: Table,
    layout: TableLayout,
    found: Any,
    txns: Mapping[str, int],
) -> bool:
    """Bring the table's schema to hold values of the schema `found`. False: it stays as it is, and
    what does not fit is for `on_error`. `txns` are those that every commit of rows moves.

    Raises SchemaConflict where policy says to stop, CommitConflict, TableUnavailable.
    """
    change = allowed_change(settings, layout, found)
    if not change.is_needed:
        return True
    if not (change.added or change.widened):
        return False
    after = layout.with_value_schema(change.schema)
    more = changed_fields(layout.schema, after.schema)
    if not more:  # a commit that changes nothing would be made again and again
        return False
    if change.widened:
        rewrite(table, after, txns, file_bytes=settings.file_bytes)
    else:
        table.add_columns(more)
    return not change.conflicts


def allowed_change(settings: MaterializeSettings, layout: TableLayout, found: Any) -> Evolution:
    """Return what becomes of a table's schema for values of the schema `found`. Raises
    SchemaConflict where policy says to stop.
    """
    change = evolve(layout.value_schema(), found)
    if not change.is_needed:
        return change
    if settings.evolution == "pause":
        raise SchemaConflict(
            f"topic {settings.topic}: values have another schema than {settings.table}: "
            f"{_words(change)}. To go on: set lakehead.table.evolution=evolve"
        )
    if change.conflicts and settings.on_error == "pause":
        raise SchemaConflict(
            f"topic {settings.topic}: values have a schema that {settings.table} cannot follow: "
            f"{'; '.join(map(str, change.conflicts))}. To go on: set lakehead.table.on.error to "
            "dead_letter or drop, or rebuild the table with: lakehead rebuild-table"
        )
    return change


def _words(change: Evolution) -> str:
    words = [f"{name} is new" for name in change.added]
    words += [f"{widening} wider" for widening in change.widened]
    return "; ".join([*words, *map(str, change.conflicts)])
