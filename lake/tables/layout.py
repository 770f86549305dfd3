"""The columns of a topic's table, and the rows that a batch of records becomes.

A table has the fields of the value (flat) or one column `value` (nested, and raw values), beside
them the origin of each record: `_topic`, `_partition`, `_offset`, `_timestamp`, `_key`, `_headers`;
and the partition columns that are made of another one, `_date` and `_hour`. A table by upsert that
keeps history has `HISTORY_FIELDS` too.

Records whose fields fit no row are set aside, each judged by its own fields. A batch is decoded
twice at most, however many of its records are set aside: the others are decoded without them, so
that none of their fields are hidden. A record with a field that has the name of a column that the
table makes itself is such a record.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehead.lake.declaration.table_declaration import PartitionPart, ValueLayout
from lakehead.lake.decode.columns import arrow_schema
from lakehead.lake.decode.invalid import InvalidBatch
from lakehead.lake.tables.ddl import check_names, is_struct
from lakehead.lake.tables.partitions import (
    FOLDER_BYTES_MAX,
    check_parts,
    generated_columns,
    generated_fields,
    partition_nulls,
    rows_of_long_values,
)
from lakehead.lake.tables.route import Route
from lakehead.lake.tables.upsert import HISTORY_FIELDS, as_changes, check_keys
from lakehead.lake.tables.values.calendar_range import FIRST_US, LAST_US, faulty_times, without
from lakehead.lake.tables.values.decoder import NO_SCHEMA, Decoded, Fault, ValueDecoder, ValueSpec
from lakehead.lake.tables.values.evolution import evolve
from lakehead.lake.tables.values.groups import int64_array, placed
from lakehead.lake.tables.values.raw import RAW_SCHEMA
from lakehead.storage.errors import SettingsError


def names_of_made(found: Any, made: set[str]) -> list[str]:
    """Return the fields of a schema (None: no schema) that have one of the names `made`, in any
    case of letters.
    """
    return [] if found is None else [name for name in found.names if name.lower() in made]


def without_made(schema: Any, made: set[str]) -> Any:
    """Return the schema without the fields that have one of the names `made`."""
    return pa.schema([field for field in schema if field.name.lower() not in made])


Decode = Callable[[Any], Decoded]
"""Decodes a batch."""


def _reasons_by_row(decoded: Decoded, reason_of: Callable[[Any], str]) -> Mapping[int, str]:
    """Return why records of a batch cannot be rows, by row; `reason_of` says it of a schema that a
    value has (empty: it can be one).
    """
    reasons: dict[int, str] = {}
    known: dict[int, str] = {}  # by schema: values of one have the same object
    for row, found in decoded.found_by_row().items():
        if (reason := known.get(id(found))) is None:
            reason = known[id(found)] = reason_of(found)
        if reason:
            reasons[row] = reason
    return reasons


def _set_aside(batch: Any, reasons: Mapping[int, str], decode: Decode) -> Decoded:
    """Return what a batch is decoded to with some of its records as faults."""
    left = np.delete(np.arange(batch.num_rows), list(reasons))
    others = placed(decode(batch.take(int64_array(left))), left)
    faults = [Fault(row=row, reason=reason, error="misfit") for row, reason in reasons.items()]
    return replace(
        others, faults=tuple(sorted((*faults, *others.faults), key=lambda fault: fault.row))
    )


def _words_on_new_schema(schema: Any, found: Any) -> str:
    """Say what a value of the schema `found` has beside `schema`."""
    change = evolve(schema, found)
    if change.added:
        return f"fields that the table does not have: {', '.join(change.added)}"
    if change.widened:
        return f"columns that would be wider: {', '.join(map(str, change.widened))}"
    return "; ".join(map(str, change.conflicts))


DECODED = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
"""The columns of a topic read that a table is made from."""

METADATA = {
    "_topic": "topic",
    "_partition": "partition",
    "_offset": "offset",
    "_timestamp": "timestamp",
    "_key": "key",
    "_headers": "headers",
}
"""Columns of every table, by the column of a topic read that they hold."""

VALUE = "value"
"""The column of a nested or raw value."""


def _metadata_fields() -> list[Any]:
    decoded = arrow_schema(DECODED)
    return [decoded.field(source).with_name(name) for name, source in METADATA.items()]


DEAD_LETTERS = pa.schema(
    [
        *_metadata_fields(),
        pa.field(VALUE, pa.binary()),
        pa.field("error", pa.string()),
        pa.field("error_class", pa.string()),
        pa.field("schema_id", pa.int32()),
    ]
)
"""A record that could not become a row: its bytes, where it lies, and why. Of a batch that cannot
be read (error class `batch`) the value is the whole batch, and the offset its first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """Rows of a batch, the records that cannot be rows, and what values have that the table does
    not (see `Decoded.found`). `left_out` records are rows without some of their fields.
    """

    rows: Any  # pa.Table
    faults: tuple[Fault, ...] = ()
    found: Any = None  # pa.Schema | None
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayout:
    """The form of values, and the table's columns. With `is_upsert`, rows of a batch are changes
    (`upsert.change_schema`). With a `route`, the other records of a batch have no rows.
    """

    spec: ValueSpec
    schema: Any  # pa.Schema of the whole table
    parts: tuple[PartitionPart, ...] = ()
    is_nested: bool = False
    is_upsert: bool = False
    is_history: bool = False
    route: Route | None = None

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The table's partition columns, in order."""
        return tuple(name for part in self.parts for name in part.columns)

    def value_schema(self) -> Any:
        """The fields that come from the value."""
        made = self._made()
        fields = [field for field in self.schema if field.name not in made]
        return pa.schema(list(fields[0].type) if self.is_nested else fields)

    def with_value_schema(self, value_schema: Any) -> "TableLayout":
        """Return the layout for values that have other fields."""
        schema = _table_schema(
            value_schema, self.parts, is_nested=self.is_nested, is_history=self.is_history
        )
        return replace(self, schema=schema)

    def can_follow(self, found: Any) -> bool:
        """Return whether values of the schema `found` have something that the table can get."""
        after = self.with_value_schema(evolve(self.value_schema(), found).schema)
        return bool(changed_fields(self.schema, after.schema))

    def table_rows(
        self,
        batch: Any,
        decoder: ValueDecoder,
        *,
        fault_count_max: int | None = None,
        new_schema_is_fault: bool = False,
    ) -> TableRows:
        """Return the rows for a batch with the columns `DECODED`.

        With `fault_count_max`, a batch with any fault has no rows. With `new_schema_is_fault`,
        records that have what the table does not are faults, and nothing is `found`.
        """
        if self.route is not None:
            return self._routed_rows(
                self.route,
                batch,
                decoder,
                fault_count_max=fault_count_max,
                new_schema_is_fault=new_schema_is_fault,
            )
        decode = partial(decoder.decode, schema=self.value_schema())
        decoded = decode(batch, fault_count_max=fault_count_max)
        if decoded.found is not None:
            reason_of = partial(self._reason, new_schema_is_fault=new_schema_is_fault)
            if reasons := _reasons_by_row(decoded, reason_of):
                decoded = _set_aside(batch, reasons, decode)
        decoded = without(decoded, faulty_times(batch))
        decoded = without(decoded, self._faulty_parts(decoded))
        faults, found = decoded.faults, None if new_schema_is_fault else decoded.found
        if faults and fault_count_max is not None:
            return TableRows(rows=self.schema.empty_table(), faults=faults, found=found)
        left_out = _count_left_out(decoded)
        is_whole = not faults and len(decoded.rows) == batch.num_rows
        kept = batch if is_whole and _is_every_row(decoded.rows) else batch.take(decoded.rows)
        values = decoded.columns
        columns = dict(zip(values.column_names, values.columns, strict=True))
        if self.is_nested:
            columns = {VALUE: _nested(values.select(self.value_schema().names))}
        columns |= {name: kept.column(source) for name, source in METADATA.items()}
        columns |= generated_columns(columns, self.parts)
        columns |= partition_nulls(columns, self.partition_columns)
        if self.is_upsert:
            changes = as_changes(columns, kept, decoded.rows, self.schema, self.spec.keys)
            faults = tuple(sorted((*faults, *changes.faults), key=lambda fault: fault.row))
            return TableRows(rows=changes.rows, faults=faults, found=found, left_out=left_out)
        rows = pa.Table.from_arrays(
            [columns[name] for name in self.schema.names], schema=self.schema
        )
        return TableRows(rows=rows, faults=faults, found=found, left_out=left_out)

    def _routed_rows(
        self, route: Route, batch: Any, decoder: ValueDecoder, **options: Any
    ) -> TableRows:
        """The same for the records of a batch that are of this table."""
        own, faults = route.own(batch)
        mine = batch if len(own) == batch.num_rows else batch.take(int64_array(own))
        made = replace(self, route=None).table_rows(mine, decoder, **options)
        if faults and options["fault_count_max"] is not None:
            made = replace(made, rows=self.schema.empty_table())
        moved = (replace(fault, row=int(own[fault.row])) for fault in made.faults)
        return replace(made, faults=tuple(sorted((*faults, *moved), key=lambda fault: fault.row)))

    def _reason(self, found: Any, *, new_schema_is_fault: bool) -> str:
        """Return the reason why a record with values of the schema `found` cannot be a row; empty:
        it can.
        """
        if not self.is_nested and (names := names_of_made(found, self._made())):
            return f"field {names[0]}: the name of a metadata column"
        return _words_on_new_schema(self.value_schema(), found) if new_schema_is_fault else ""

    def _made(self) -> set[str]:
        return made_names(self.parts, is_history=self.is_history)

    def _faulty_parts(self, decoded: Decoded) -> list[Fault]:
        """The faults of records whose partition has no name that a folder can have."""
        if self.is_nested or (found := rows_of_long_values(decoded.columns, self.parts)) is None:
            return []
        name, beyond = found
        reason = (
            f"field {name}: a value that the table is partitioned by, and that with its escapes is "
            f"longer than a folder's name may be ({FOLDER_BYTES_MAX} bytes)"
        )
        rows = dict.fromkeys(decoded.rows.to_numpy()[beyond].tolist())
        return [Fault(row=row, reason=reason, error="misfit") for row in rows]


def _count_left_out(decoded: Decoded) -> int:
    if decoded.left_out is None or not len(decoded.left_out):
        return 0
    return int(np.isin(decoded.left_out, decoded.rows.to_numpy()).sum())


def _is_every_row(rows: Any) -> bool:
    """Return whether as many rows as the batch has are each of them once."""
    return bool(np.array_equal(rows.to_numpy(), np.arange(len(rows))))


def _nested(columns: Any) -> Any:
    chunked = columns.combine_chunks()
    arrays = [
        column.chunk(0) if column.num_chunks else pa.array([], column.type)
        for column in chunked.columns
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(columns.schema))


def changed_fields(before: Any, after: Any) -> list[Any]:
    """Return the fields of `after` that are new or have more inside."""
    held = set(before.names)
    return [f for f in after if f.name not in held or before.field(f.name).type != f.type]


def made_names(parts: Sequence[PartitionPart], *, is_history: bool) -> set[str]:
    """Return the names of the columns that a table has in addition to those of the value."""
    fields = [*generated_fields(parts), *(HISTORY_FIELDS if is_history else ())]
    return {*METADATA, *(field.name for field in fields)}


def _table_schema(
    value_schema: Any, parts: Sequence[PartitionPart], *, is_nested: bool, is_history: bool
) -> Any:
    fields = list(value_schema)
    if is_nested:
        fields = [pa.field(VALUE, pa.struct(fields))]
    history = HISTORY_FIELDS if is_history else ()
    return pa.schema([*fields, *_metadata_fields(), *generated_fields(parts), *history])


def new_layout(
    spec: ValueSpec,
    value_schema: Any,
    *,
    parts: Sequence[PartitionPart] = (),
    value_layout: ValueLayout = "flat",
    is_upsert: bool = False,
    is_history: bool = False,
    route: Route | None = None,
) -> TableLayout:
    """Return the layout of a new table for values of this schema.

    Raises SettingsError for a field that has the name of a column that is made, and for partition
    columns that cannot be.
    """
    is_nested = value_layout == "nested" and spec.value_format != "raw"
    taken = names_of_made(value_schema, made_names(parts, is_history=is_history))
    if taken and not is_nested:
        raise SettingsError(
            f"field {taken[0]!r} has the name of a metadata column: give a schema without it"
        )
    schema = _table_schema(value_schema, parts, is_nested=is_nested, is_history=is_history)
    check_names(schema)
    check_parts(schema, parts)
    if is_upsert:
        check_keys(value_schema, spec.keys, is_nested=is_nested)
    return TableLayout(
        spec=spec,
        schema=schema,
        parts=tuple(parts),
        is_nested=is_nested,
        is_upsert=is_upsert,
        is_history=is_history,
        route=route,
    )


def existing_layout(
    uri: str,
    schema: Any,
    partition_columns: Sequence[str],
    wanted: TableLayout,
    *,
    owner: str | None,
    topic: str,
) -> TableLayout:
    """Return the layout of a table that is there already; `owner` is the name it was created with.

    `wanted` is the requested layout, of whose schema only the presence counts. Raises SettingsError
    if the table was not made from this topic by this job, or in another layout.
    """
    check_made_from(uri, schema, owner=owner, topic=topic)
    if tuple(partition_columns) != wanted.partition_columns:
        raise SettingsError(
            f"{uri} is partitioned by {', '.join(partition_columns) or 'nothing'}, not by "
            f"{', '.join(wanted.partition_columns) or 'nothing'}: declare it so, or rebuild it "
            "with: lakehead rebuild-table"
        )
    has_history = all(field in schema for field in HISTORY_FIELDS)
    if has_history != wanted.is_history:
        raise SettingsError(
            f"{uri} keeps {'every value' if has_history else 'the newest value'} of a key, which "
            "lakehead.table.scd does not declare: change that, or rebuild it with: lakehead "
            "rebuild-table"
        )
    layout = replace(wanted, schema=schema, is_nested=False)
    values = layout.value_schema()
    # No other value becomes bytes alone in this column, so they say that it was left as it is.
    if values == RAW_SCHEMA:
        return replace(layout, spec=ValueSpec(value_format="raw"))
    is_nested = values.names == [VALUE] and is_struct(values.field(0).type)
    if is_nested != wanted.is_nested or wanted.spec.value_format == "raw":
        held = "in one column" if is_nested else "as columns"
        raise SettingsError(
            f"{uri} holds the fields of values {held}, which the declaration differs from: "
            "change that, or rebuild it with: lakehead rebuild-table"
        )
    return replace(layout, is_nested=is_nested)


def check_made_from(uri: str, schema: Any, *, owner: str | None, topic: str) -> None:
    """Raise SettingsError unless a table that is there already was made from a topic of this name;
    `owner` is the name it was created with.
    """
    expected = {field.name: field.type for field in _metadata_fields()}
    found = {field.name: field.type for field in schema if field.name in expected}
    if found != expected:
        wrong = ", ".join(name for name in expected if found.get(name) != expected[name])
        raise SettingsError(
            f"{uri} is a table, but not one that was made from a topic: it lacks columns, or has "
            f"others of the name ({wrong}); restore an older version of it, move it away, or "
            "name another place (lakehead.table.path)"
        )
    if owner != topic:
        raise SettingsError(f"{uri} is the table of topic {owner!r}, not of {topic!r}")


def dead_letters(batch: Any, faults: Sequence[Fault]) -> Any:
    """Return the dead-letter rows for the faulty records of a batch."""
    chosen = batch.take(pa.array([fault.row for fault in faults], pa.int64()))
    columns = [
        _held_times(chosen.column(source)) if source == "timestamp" else chosen.column(source)
        for source in METADATA.values()
    ]
    columns += [
        chosen.column("value"),
        pa.array([fault.reason for fault in faults], pa.string()),
        pa.array([fault.error for fault in faults], pa.string()),
        pa.array([fault.schema_id for fault in faults], pa.int32()),
    ]
    return pa.Table.from_arrays(columns, schema=DEAD_LETTERS)


def _held_times(times: Any) -> Any:
    """Times that a TIMESTAMP of a table holds, NULL for others."""
    low, high = (pa.scalar(us, pa.int64()).cast(times.type) for us in (FIRST_US, LAST_US))
    is_held = pc.and_(pc.greater_equal(times, low), pc.less_equal(times, high))
    return pc.if_else(is_held, times, pa.scalar(None, times.type))


def batch_dead_letter(found: InvalidBatch) -> Any:
    """Return the dead-letter row of a batch that cannot be read: its bytes as the value, its first
    offset as the place, and its offsets with the reason.
    """
    held: dict[str, Any] = dict.fromkeys(DEAD_LETTERS.names)
    held |= {
        "_topic": found.topic,
        "_partition": found.partition,
        "_offset": found.first_offset,
        VALUE: bytes(found.data),
        "error": f"record batch of offsets {found.first_offset} to {found.last_offset}, "
        f"{found.record_count} records: {found.reason}",
        "error_class": "batch",
        "schema_id": NO_SCHEMA,
    }
    columns = [pa.array([held[field.name]], field.type) for field in DEAD_LETTERS]
    return pa.Table.from_arrays(columns, schema=DEAD_LETTERS)
