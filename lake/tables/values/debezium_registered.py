"""Debezium's envelopes by a registry's ids: records of Avro, or objects with a JSON Schema."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.tables.registry import RegisteredSchema, SchemaRegistry
from lake.tables.values.avro_values import avro_writer
from lake.tables.values.by_schema import Format, Place, ValuesBySchema, Writer, one_part
from lake.tables.values.changes import POSITIONS, Events, envelope
from lake.tables.values.decoder import Decoded
from lake.tables.values.evolution import evolve
from lake.tables.values.framing import places, schema_ids
from lake.tables.values.json_values import json_writer
from storage.errors import SettingsError

_PLACES = frozenset(["ts_ms", *(name for name, _ in POSITIONS)])


class RegisteredEnvelopes:
    """Envelopes and keys whose schemas are in a registry."""

    def __init__(self, registry: SchemaRegistry) -> None:
        by_id = Format(readers={"AVRO": _avro, "JSON": json_writer}, parts=one_part)
        self._values = ValuesBySchema(by_id, registry, None)
        self._keys = ValuesBySchema(by_id, registry, None)
        self._sources: dict[bytes, Any] = {}

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
        found: Any = None
        source: Any = None
        ids = schema_ids(places(batch.column("value")))
        if np.any(ids >= 0):
            try:
                held = self._values.schema_of(batch)
                found = _row_schema(held)
                source = [field for field in held.field("source").type if field.name in _PLACES]
            except (SettingsError, KeyError):
                found = None
        wanted = envelope(pa.struct(list(schema)), source)
        parsed = self._values.decode(batch, wanted)
        columns = [column.combine_chunks() for column in parsed.columns.columns]
        arrays = [
            pa.concat_arrays(c.chunks) if isinstance(c, pa.ChunkedArray) else c for c in columns
        ]
        needed = found is not None and evolve(schema, found).is_needed
        decoded = Decoded(
            columns=parsed.columns,
            rows=parsed.rows,
            faults=parsed.faults,
            found=found if needed else None,
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
    for name in ("after", "before"):
        if name in columns.names and pa.types.is_struct(columns.field(name).type):
            return pa.schema(list(columns.field(name).type))
    raise SettingsError("the values' schema is no envelope of Debezium: it has no after")
