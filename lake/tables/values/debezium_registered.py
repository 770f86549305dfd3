"""Debezium's envelopes by a registry's ids: records of Avro, or objects with a JSON Schema."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehead.lake.tables.registry import RegisteredSchema, SchemaRegistry
from lakehead.lake.tables.values.avro import avro_writer
from lakehead.lake.tables.values.by_schema import Format, Place, ValuesBySchema, Writer, one_part
from lakehead.lake.tables.values.changes import POSITIONS, Events, envelope
from lakehead.lake.tables.values.decoder import Decoded
from lakehead.lake.tables.values.evolution import merged
from lakehead.lake.tables.values.groups import FoundSchemas
from lakehead.lake.tables.values.json_values import json_writer
from lakehead.storage.errors import SettingsError

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
        raise SettingsError("the values' schema is no envelope of Debezium: it has no after")
    return row


def _row_of(columns: Any) -> Any:
    """The schema of the rows in envelopes, None for what is no envelope."""
    for name in ("after", "before"):
        if name in columns.names and pa.types.is_struct(columns.field(name).type):
            return pa.schema(list(columns.field(name).type))
    return None


def _source_of(columns: Any) -> Any:
    """What envelopes say of their place in the source's log."""
    if "source" not in columns.names or not pa.types.is_struct(columns.field("source").type):
        return pa.schema([])
    source = columns.field("source").type
    return pa.schema([field for field in source if field.name in _PLACES])
