"""Debezium's envelopes in JSON, with the schema in each event or without."""

import json
from typing import Any

import numpy as np
import pyarrow as pa

from lake.tables.ddl import check_names, parse_schema
from lake.tables.json_columns import json_columns
from lake.tables.json_inference import infer_schema
from lake.tables.values.changes import Events, envelope
from lake.tables.values.connect_json import (
    Payloads,
    connect_fields,
    converted,
    split_payloads,
    written_as,
)
from lake.tables.values.decoder import Decoded, Fault, ValueSpec
from lake.tables.values.evolution import evolve, merged
from lake.tables.values.groups import int64_array


class JsonEnvelopes:
    """Envelopes and keys as JSON objects."""

    def __init__(self, spec: ValueSpec) -> None:
        self._declared = parse_schema(spec.schema) if spec.schema else None

    def row_schema(self, batch: pa.RecordBatch) -> Any:
        """The declared columns, those of the events' own schema, or what the rows look like."""
        if self._declared is not None:
            return self._declared
        found: Any = None
        images: list[bytes | None] = []
        for group in split_payloads(batch.column("value").to_pylist()):
            columns = _row_schema(group)
            if columns is not None:
                found = columns if found is None else merged(found, columns)
                continue
            for payload in group.payloads:
                images += _images(payload)
        if found is not None:
            check_names(found)
            return found
        return infer_schema(images)

    def key_names(self, batch: pa.RecordBatch) -> tuple[str, ...]:
        """The fields of the first key that is an object."""
        for key in batch.column("key"):
            if key.is_valid:
                for group in split_payloads([key.as_py()]):
                    decoded = _object(group.payloads[0])
                    return tuple(decoded)
        return ()

    def events(self, batch: pa.RecordBatch, schema: Any) -> tuple[Events, Decoded]:
        """Parse the envelopes."""
        row = pa.struct(list(schema))
        wanted = envelope(row)
        tables, places, found = [wanted.empty_table()], [np.zeros(0, np.int64)], None
        faults: list[Fault] = []
        for group in split_payloads(batch.column("value").to_pylist()):
            columns = _row_schema(group)
            if columns is not None and evolve(schema, columns).is_needed:
                found = columns if found is None else merged(found, columns)
            table, rows = _parsed(group, wanted, ("before", "after"), row, faults)
            tables.append(table)
            places.append(rows)
        rows = np.concatenate(places)
        order = int64_array(np.argsort(rows, kind="stable"))
        table = pa.concat_tables(tables).take(order).combine_chunks()
        arrays = {name: _one_array(table.column(name)) for name in wanted.names}
        decoded = Decoded(
            columns=table,
            rows=int64_array(np.sort(rows)),
            faults=tuple(sorted(faults, key=lambda fault: fault.row)),
            found=found,
        )
        return Events(**arrays), decoded

    def key_images(self, batch: pa.RecordBatch, schema: Any) -> tuple[Any, Any]:
        """Parse the keys."""
        row = pa.struct(list(schema))
        wanted = pa.schema([("key", row)])
        tables, places = [wanted.empty_table()], [np.zeros(0, np.int64)]
        for group in split_payloads(batch.column("key").to_pylist()):
            wrapped = [b'{"key":' + payload + b"}" for payload in group.payloads]
            keys = Payloads(rows=group.rows, payloads=wrapped, schema=_as_field(group.schema))
            table, rows = _parsed(keys, wanted, ("key",), row, [])
            tables.append(table)
            places.append(rows)
        return _one_array(pa.concat_tables(tables).column("key")), np.concatenate(places)


def _as_field(schema: Any) -> Any:
    return None if schema is None else {"fields": [{**schema, "field": "key"}]}


def _row_schema(group: Payloads) -> Any:
    """The columns of the rows, by the schema beside their events; None without one."""
    after = _field_schema(group.schema, "after") or _field_schema(group.schema, "before")
    return None if after is None else pa.schema(connect_fields(after))


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
    images = (decoded.get(name) for name in ("before", "after"))
    return [json.dumps(image).encode() for image in images if isinstance(image, dict)]


def _parsed(
    group: Payloads, wanted: Any, images: tuple[str, ...], row: Any, faults: list[Fault]
) -> tuple[Any, Any]:
    """The payloads of a group as columns `wanted`, with `images` as structs of type `row`."""
    schemas = {
        name: _field_schema(_field_schema(group.schema, images[-1]), name) for name in _names(row)
    }
    read = pa.struct([(field.name, written_as(field.type, schemas[field.name])) for field in row])
    fields = [field.with_type(read) if field.name in images else field for field in wanted]
    parsed = json_columns(pa.array(group.payloads, pa.binary()), pa.schema(fields))
    at = np.array(group.rows, np.int64)
    for i, reason in parsed.faults:
        error = "misfit" if i in parsed.misfits else "malformed"
        faults.append(Fault(row=int(at[i]), reason=reason, error=error))  # type: ignore[arg-type]
    rows = at[np.asarray(parsed.rows, np.int64)]
    if read == row:
        return parsed.columns, rows
    table = parsed.columns
    try:
        return _with_images(table, wanted, images, row, schemas), rows
    except (ValueError, pa.ArrowException):
        if table.num_rows == 1:
            faults.append(
                Fault(row=int(rows[0]), reason="a value beyond its column", error="misfit")
            )
            return wanted.empty_table(), rows[:0]
    # One of them does not fit: each on its own.
    kept = np.asarray(parsed.rows, np.int64)
    parts = [
        _parsed(
            Payloads(rows=[int(at[i])], payloads=[group.payloads[i]], schema=group.schema),
            wanted,
            images,
            row,
            faults,
        )
        for i in kept.tolist()
    ]
    return pa.concat_tables([t for t, _ in parts]), np.concatenate([r for _, r in parts])


def _with_images(
    table: Any, wanted: Any, images: tuple[str, ...], row: Any, schemas: dict[str, Any]
) -> Any:
    columns = []
    for field in wanted:
        column = _one_array(table.column(field.name))
        if field.name in images:
            parts = [
                converted(part, target.type, schemas[target.name])
                for part, target in zip(column.flatten(), row, strict=True)
            ]
            column = pa.StructArray.from_arrays(parts, fields=list(row), mask=column.is_null())
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=wanted)


def _names(row: Any) -> list[str]:
    return [field.name for field in row]


def _one_array(column: Any) -> Any:
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        chunks = combined.chunks
        return pa.concat_arrays(chunks) if chunks else pa.array([], combined.type)
    return combined
