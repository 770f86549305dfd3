"""Debezium's change events: JSON, with the schema in each event or without, or by a registry.

A value is an envelope of `before`, `after`, `op`, `ts_ms` and `source`; the columns are those of
the row inside, with `changes.CHANGE_FIELDS` behind them. A tombstone (a null value, which follows a
delete for the sake of compaction) is not a row. By a registry's ids an envelope is a record of
Avro, or an object with a JSON Schema.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehead.lake.tables.arrow_rows import one_array
from lakehead.lake.tables.ddl import check_names, parse_schema
from lakehead.lake.tables.registry import RegisteredSchema, SchemaRegistry
from lakehead.lake.tables.values.avro import avro_writer
from lakehead.lake.tables.values.by_schema import Format, Place, ValuesBySchema, Writer, one_part
from lakehead.lake.tables.values.changes import (
    CHANGE_FIELDS,
    POSITIONS,
    Changes,
    Events,
    change_rows,
    envelope,
)
from lakehead.lake.tables.values.connect_json import (
    Payloads,
    connect_fields,
    connect_forms,
    split_payloads,
)
from lakehead.lake.tables.values.decoder import Decoded, Fault, UnusableSchema, ValueSpec
from lakehead.lake.tables.values.evolution import merged, name_conflict
from lakehead.lake.tables.values.framing import places
from lakehead.lake.tables.values.groups import (
    DecodedRows,
    FoundSchemas,
    Group,
    decode_rows,
    int64_array,
    placed,
)
from lakehead.lake.tables.values.json_inference import infer_schema
from lakehead.lake.tables.values.json_program import (
    Forms,
    NotingProgram,
    Path,
    Written,
    compile_json,
    fitting_forms,
)
from lakehead.lake.tables.values.json_values import json_writer
from lakehead.storage.errors import SettingsError

T = TypeVar("T")

_PROGRAMS_MAX = 64
_IMAGES = ("before", "after")


class JsonEnvelopes:
    """Envelopes and keys as JSON objects."""

    def __init__(self, spec: ValueSpec) -> None:
        self._declared = parse_schema(spec.schema) if spec.schema else None
        self._by_most = spec.by_most
        self._programs: dict[tuple[str, Any], NotingProgram] = {}

    def row_schema(self, batch: pa.RecordBatch) -> Any:
        """The declared columns, those of the events' own schema, or what the rows look like."""
        if self._declared is not None:
            return self._declared
        found: Any = None
        images: list[bytes | None] = []
        for group in split_payloads(places(batch.column("value"))):
            try:
                columns = _event_schema(group.schema).columns
            except UnusableSchema:
                continue
            if columns is not None:
                found = columns if found is None else merged(found, columns)
                continue
            for i in range(len(group.rows)):
                images += _images(_content(group, i))
        if found is not None:
            return found
        return infer_schema(images, by_most=self._by_most)

    def key_names(self, batch: pa.RecordBatch) -> tuple[str, ...]:
        """The fields of the first key that is an object."""
        for key in batch.column("key"):
            if key.is_valid:
                first = places(pa.array([key.as_py()], pa.binary()))
                for group in split_payloads(first):
                    return tuple(_object(_content(group, 0)))
        return ()

    def events(self, batch: pa.RecordBatch, schema: Any) -> tuple[Events, Decoded]:
        """Parse the envelopes."""
        wanted = envelope(pa.struct(list(schema)))
        result = DecodedRows(wanted)
        found = FoundSchemas(schema)
        for group in split_payloads(places(batch.column("value"))):
            try:
                said = _event_schema(group.schema)
            except UnusableSchema as error:
                result.fault_all(group.rows, str(error), "unusable_schema")
                continue
            columns = said.columns
            if columns is not None and (odd := name_conflict(schema, columns)) is not None:
                result.fault_all(group.rows, str(odd), "misfit")
                continue
            if columns is not None:
                found.add(group.rows, columns)
            self._decode(group, wanted, said.forms, result)
        decoded = result.decoded()
        arrays = {name: one_array(decoded.columns.column(name)) for name in wanted.names}
        events = Events(**arrays)
        return events, replace(decoded, found=found.schema, found_by_row=found.by_row)

    def key_images(self, batch: pa.RecordBatch, schema: Any) -> tuple[Any, Any]:
        """Parse the keys."""
        result = DecodedRows(schema)
        for group in split_payloads(places(batch.column("key"))):
            try:
                forms = _read(connect_forms, group.schema or {})
            except UnusableSchema:
                continue
            self._decode(group, schema, forms, result)
        decoded = result.decoded()
        return one_array(decoded.columns.to_struct_array()), decoded.rows

    def _decode(self, group: Payloads, wanted: Any, forms: Forms, result: DecodedRows) -> None:
        """Add the payloads of a group as columns `wanted`."""
        key = (group.schema_text, wanted)
        program = self._programs.get(key)
        if program is None:
            if len(self._programs) >= _PROGRAMS_MAX:
                self._programs.clear()
            program = NotingProgram(
                compile_json(wanted, fitting_forms(forms, wanted), noted=_IMAGES)
            )
            self._programs[key] = program
        found, faults = decode_rows(program, group.values, np.arange(len(group.rows)), wanted)
        left_out = None if found.left_out is None else group.rows[found.left_out]
        result.add(Group(rows=group.rows[found.rows], columns=found.columns, left_out=left_out))
        for i, reason, error in faults:
            result.fault(int(group.rows[i]), reason, error)


def _content(group: Payloads, i: int) -> bytes:
    values = group.values
    content: bytes = values.data[values.starts[i] : values.ends[i]].tobytes()
    return content


@dataclass(frozen=True, slots=True, kw_only=True)
class _EventSchema:
    """The content of the schema beside an event: the columns of its rows (None: nothing), and the
    forms of those that have no JSON type.
    """

    columns: Any
    forms: Forms


def _event_schema(schema: Any) -> _EventSchema:
    """Read the schema beside events. Raises UnusableSchema."""
    return _read(_read_events, schema)


def _read_events(schema: Any) -> _EventSchema:
    images = {name: _field_schema(schema, name) for name in _IMAGES}
    forms: dict[Path, Written] = {}
    for name, image in images.items():
        forms |= {(name, *path): form for path, form in connect_forms(image or {}).items()}
    row = images["after"] or images["before"]
    if row is None:
        return _EventSchema(columns=None, forms=forms)
    columns = pa.schema(connect_fields(row))
    check_names(columns)
    return _EventSchema(columns=columns, forms=forms)


def _read(read: Callable[[Any], T], schema: Any) -> T:
    """Call a function that reads a schema of any origin. Raises UnusableSchema."""
    try:
        return read(schema)
    except (
        *(AttributeError, LookupError, TypeError, ValueError, RecursionError),
        *(pa.ArrowException, SettingsError),
    ) as error:
        reason = " ".join(str(error).split())[:200]
        raise UnusableSchema(
            f"the schema of the payload is not one of Connect's: {reason}"
        ) from None


def _field_schema(schema: Any, name: str) -> Any:
    if not isinstance(schema, dict):
        return None
    return next((f for f in schema.get("fields") or () if f.get("field") == name), None)


def _object(payload: bytes) -> dict[str, Any]:
    try:
        decoded = json.loads(payload)
    except (ValueError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _images(payload: bytes) -> list[bytes | None]:
    decoded = _object(payload)
    images = (decoded.get(name) for name in _IMAGES)
    return [json.dumps(image).encode() for image in images if isinstance(image, dict)]


_PLACES = frozenset(["ts_ms", *(name for name, _ in POSITIONS)])


class RegisteredEnvelopes:
    """Envelopes and keys whose schemas are in a registry."""

    def __init__(self, registry: SchemaRegistry) -> None:
        by_id = Format(readers={"AVRO": _avro, "JSON": json_writer}, parts=one_part)
        self._values = ValuesBySchema(by_id, registry, None)
        self._keys = ValuesBySchema(by_id, registry, None)

    def row_schema(self, batch: pa.RecordBatch) -> Any:
        """The fields of `after` in the schemas that the sample names."""
        return _row_schema(self._values.schema_of(batch))

    def key_names(self, batch: pa.RecordBatch) -> tuple[str, ...]:
        """The fields of the keys' records."""
        keys = batch.column("key")
        if keys.null_count == len(keys):
            return ()
        try:
            return tuple(self._keys.schema_of(_as_values(batch)).names)
        except SettingsError:
            return ()

    def events(self, batch: pa.RecordBatch, schema: Any) -> tuple[Events, Decoded]:
        """Decode the envelopes."""
        found = FoundSchemas(schema)
        sources = pa.schema([])
        for rows, writer in self._values.writers(batch):
            if isinstance(writer, Writer) and (row := _row_of(writer.columns)) is not None:
                found.add(rows, row)
                sources = merged(sources, _source_of(writer.columns))
        wanted = envelope(pa.struct(list(schema)), list(sources) or None)
        parsed = self._values.decode(batch, wanted)
        columns = [column.combine_chunks() for column in parsed.columns.columns]
        arrays = [
            pa.concat_arrays(c.chunks) if isinstance(c, pa.ChunkedArray) else c for c in columns
        ]
        decoded = Decoded(
            columns=parsed.columns,
            rows=parsed.rows,
            faults=parsed.faults,
            found=found.schema,
            found_by_row=found.by_row,
        )
        names = wanted.names
        return Events(**dict(zip(names, arrays, strict=True))), decoded

    def key_images(self, batch: pa.RecordBatch, schema: Any) -> tuple[Any, Any]:
        """Decode the keys."""
        decoded = self._keys.decode(_as_values(batch), schema)
        kept = pc.is_valid(batch.column("key").take(decoded.rows))
        rows = decoded.columns.filter(kept).to_struct_array().combine_chunks()
        return rows, decoded.rows.filter(kept)


def _avro(registered: RegisteredSchema, _place: Place) -> Writer:
    return avro_writer(registered)


def _as_values(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([batch.column("key")], names=["value"])


def _row_schema(columns: Any) -> Any:
    row = _row_of(columns)
    if row is None:
        raise SettingsError("the values' schema is not an envelope of Debezium: it has no after")
    return row


def _row_of(columns: Any) -> Any:
    """The schema of the rows in envelopes, None for what is no envelope."""
    for name in ("after", "before"):
        if name in columns.names and pa.types.is_struct(columns.field(name).type):
            return pa.schema(list(columns.field(name).type))
    return None


def _source_of(columns: Any) -> Any:
    """The position in the source's log that envelopes name."""
    if "source" not in columns.names or not pa.types.is_struct(columns.field("source").type):
        return pa.schema([])
    source = columns.field("source").type
    return pa.schema([field for field in source if field.name in _PLACES])


_CHANGE_NAMES = frozenset(field.name for field in CHANGE_FIELDS)


class Envelopes(Protocol):
    """Reads envelopes of one encoding."""

    def row_schema(self, batch: pa.RecordBatch) -> Any:
        """The columns of the rows inside."""

    def key_names(self, batch: pa.RecordBatch) -> tuple[str, ...]:
        """The fields of the records' keys."""

    def events(self, batch: pa.RecordBatch, schema: Any) -> tuple[Events, Decoded]:
        """The events of the values that are not null, and what became of each value: its rows are
        those of the batch that each event came from.
        """

    def key_images(self, batch: pa.RecordBatch, schema: Any) -> tuple[Any, Any]:
        """Structs of the rows' columns with what keys say, and the row of the batch of each."""


class DebeziumValues:
    """One change event for each value."""

    def __init__(self, spec: ValueSpec, registry: SchemaRegistry | None) -> None:
        self._keys = spec.keys
        if registry is None:
            self._envelopes: Envelopes = JsonEnvelopes(spec)
        else:
            self._envelopes = RegisteredEnvelopes(registry)

    def schema_of(self, batch: pa.RecordBatch) -> Any:
        """Return the columns of the rows, without those of the changes."""
        schema = self._envelopes.row_schema(batch)
        taken = [field.name for field in schema if field.name in _CHANGE_NAMES]
        if taken:
            raise SettingsError(f"column {taken[0]!r} of the rows has the name of a change's")
        return schema

    def decode(
        self,
        batch: pa.RecordBatch,
        schema: Any,
        *,
        fault_count_max: int | None = None,  # noqa: ARG002 - all are looked for
    ) -> Decoded:
        """Return the changes of `batch`: the columns of `schema` and CHANGE_FIELDS (which `schema`
        may name or not).
        """
        rows = pa.schema([field for field in schema if field.name not in _CHANGE_NAMES])
        present = np.flatnonzero(np.asarray(batch.column("value").is_valid()))
        if len(present) < batch.num_rows:
            batch = batch.take(int64_array(present))
        events, parsed = self._envelopes.events(batch, rows)
        keys = self._keys or self._envelopes.key_names(batch)
        keys = tuple(name for name in keys if name in rows.names)
        at = np.asarray(parsed.rows, np.int64)
        changes = change_rows(events, keys, self._images(batch, rows, events, at))
        parsed = placed(parsed, present)
        origins = present[at]
        faults = [*parsed.faults, *_misfits(changes, origins)]
        return replace(
            parsed,
            columns=changes.columns,
            rows=int64_array(origins[changes.events]),
            faults=tuple(sorted(faults, key=lambda fault: fault.row)),
        )

    def _images(self, batch: pa.RecordBatch, schema: Any, events: Events, at: Any) -> Any:
        """The rows of deletes without the row before them, by their keys."""
        kind = pa.struct(list(schema))
        deleted = pc.fill_null(pc.equal(events.op, "d"), fill_value=False)
        wanted = np.asarray(pc.and_(deleted, events.before.is_null()), np.bool_)
        needed = np.flatnonzero(wanted)
        if not len(needed):
            return pa.nulls(len(at), kind)
        images, found = self._envelopes.key_images(batch.take(int64_array(at[needed])), schema)
        position = np.full(len(at), -1, np.int64)
        position[needed[np.asarray(found, np.int64)]] = np.arange(len(images))
        places = int64_array(position)
        return images.take(pc.if_else(pc.less(places, 0), pa.scalar(None, pa.int64()), places))


def _misfits(changes: Changes, rows: Any) -> list[Fault]:
    return [
        Fault(row=int(rows[event]), reason=reason, error="misfit")
        for event, reason in changes.faults
    ]
