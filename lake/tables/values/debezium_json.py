"""Debezium's envelopes in JSON, with the schema in each event or without."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from lakehead.lake.tables.ddl import check_names, parse_schema
from lakehead.lake.tables.json_inference import infer_schema
from lakehead.lake.tables.values.changes import Events, envelope
from lakehead.lake.tables.values.connect_json import connect_fields, connect_forms
from lakehead.lake.tables.values.decoder import Decoded, UnusableSchema, ValueSpec
from lakehead.lake.tables.values.evolution import merged, name_conflict
from lakehead.lake.tables.values.framing import places
from lakehead.lake.tables.values.groups import DecodedRows, FoundSchemas, Group, decode_rows
from lakehead.lake.tables.values.json_program import (
    Forms,
    NotingProgram,
    Path,
    Written,
    compile_json,
    fitting_forms,
)
from lakehead.lake.tables.values.payloads import Payloads, split_payloads
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
        arrays = {name: _one_array(decoded.columns.column(name)) for name in wanted.names}
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
        return _one_array(decoded.columns.to_struct_array()), decoded.rows

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
    """What the schema beside an event says: the columns of its rows (None: nothing), and how those
    are written that JSON has no type for.
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
    """Do what reads a schema that anybody may have written. Raises UnusableSchema."""
    try:
        return read(schema)
    except (
        *(AttributeError, LookupError, TypeError, ValueError, RecursionError),
        *(pa.ArrowException, SettingsError),
    ) as error:
        reason = " ".join(str(error).split())[:200]
        raise UnusableSchema(
            f"the schema beside the payload is none of Connect's: {reason}"
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


def _one_array(column: Any) -> Any:
    if isinstance(column, pa.ChunkedArray):
        chunks = column.chunks
        return pa.concat_arrays(chunks) if chunks else pa.array([], column.type)
    return column
