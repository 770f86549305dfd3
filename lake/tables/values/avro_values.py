"""Avro values: datums framed as Confluent's serializer does, or bare ones of a declared schema.

With a registry each value names its writer's schema by id; a declared schema is then the reader's,
and its columns, defaults and aliases hold for all. Without one a declared schema is the writer's of
every value, and no value is framed.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from lake.tables.registry import SchemaRegistry
from lake.tables.values.avro_program import AvroProgram, compile_avro
from lake.tables.values.avro_schema import AvroSchema, avro_columns, read_schema
from lake.tables.values.decoder import (
    NO_SCHEMA,
    Decoded,
    MisfitSchema,
    UnusableSchema,
    ValueSpec,
)
from lake.tables.values.evolution import merged
from lake.tables.values.framing import FRAME_BYTES, Values, places, schema_ids
from lake.tables.values.groups import DecodedRows, by_value, decode_rows
from storage.errors import SettingsError


class AvroValues:
    """One Avro datum for each value."""

    def __init__(self, spec: ValueSpec, registry: SchemaRegistry | None) -> None:
        self._registry = registry
        self._declared: AvroSchema | None = None
        if spec.schema:
            try:
                self._declared = read_schema(spec.schema)
                avro_columns(self._declared)
            except UnusableSchema as error:
                raise SettingsError(f"the declared schema: {error}") from None
        elif registry is None:
            raise SettingsError("Avro values need a schema registry's URL or a schema")
        self._writers: dict[int, AvroSchema | UnusableSchema | None] = {}
        self._programs: dict[int, AvroProgram | MisfitSchema] = {}
        self._columns: Any = None  # what the programs are compiled to

    def schema_of(self, batch: pa.RecordBatch) -> Any:
        """Return the columns of the declared schema, or of those that the sample names."""
        if self._declared is not None:
            return avro_columns(self._declared)
        ids = schema_ids(places(batch.column("value")))
        found: Any = None
        for schema_id in np.unique(ids[ids >= 0]).tolist():
            writer = self._writer(schema_id)
            if isinstance(writer, AvroSchema):
                columns = avro_columns(writer)
                found = columns if found is None else merged(found, columns)
        if found is None:
            raise SettingsError(
                "none of the sampled values names an Avro schema that the registry has: declare one"
            )
        return found

    def decode(
        self,
        batch: pa.RecordBatch,
        schema: Any,
        *,
        fault_count_max: int | None = None,  # noqa: ARG002 - a fault costs nothing
    ) -> Decoded:
        """Decode each value by its writer's schema."""
        if self._columns != schema:
            self._programs, self._columns = {}, schema
        values = places(batch.column("value"))
        result = DecodedRows(schema)
        present = np.flatnonzero(values.starts >= 0)
        if len(present) < len(values):
            result.nulls(values.nulls)
        if self._registry is None:
            assert self._declared is not None, "checked when it was made"
            self._decode(values, present, NO_SCHEMA, self._declared, result)
            return result.decoded()
        ids = schema_ids(values)
        unframed = Values(data=values.data, starts=values.starts + FRAME_BYTES, ends=values.ends)
        for schema_id, rows in by_value(ids, present):
            if schema_id == NO_SCHEMA:
                for row in rows.tolist():
                    result.fault(row, "the value has no schema id in front", "unframed")
                continue
            writer = self._writer(schema_id)
            if isinstance(writer, AvroSchema):
                self._decode(unframed, rows, schema_id, writer, result)
                continue
            for row in rows.tolist():
                if writer is None:
                    reason = f"the registry has no schema {schema_id}"
                    result.fault(row, reason, "unknown_schema", schema_id)
                else:
                    result.fault(row, str(writer), "unusable_schema", schema_id)
        return result.decoded()

    def _decode(
        self, values: Values, rows: Any, schema_id: int, writer: AvroSchema, result: DecodedRows
    ) -> None:
        if self._declared is None:
            result.find(avro_columns(writer))
        program = self._programs.get(schema_id)
        if program is None:
            try:
                program = compile_avro(writer, self._columns, self._declared)
            except MisfitSchema as error:
                program = error
            self._programs[schema_id] = program
        if isinstance(program, MisfitSchema):
            for row in rows.tolist():
                result.fault(row, str(program), "misfit", schema_id)
            return
        group, faults = decode_rows(program, values, rows, self._columns)
        result.add(group)
        for row, reason in faults:
            result.fault(row, reason, "malformed", schema_id)

    def _writer(self, schema_id: int) -> AvroSchema | UnusableSchema | None:
        """The schema of an id; None if there is none. Raises RegistryUnavailable."""
        if schema_id in self._writers:
            return self._writers[schema_id]
        assert self._registry is not None, "ids come with a registry"
        registered = self._registry.schema(schema_id)
        writer: AvroSchema | UnusableSchema | None = None
        if registered is not None:
            try:
                if registered.kind != "AVRO":
                    raise UnusableSchema(f"schema {schema_id} is {registered.kind}, not AVRO")
                texts = [reference.text for reference in registered.references]
                writer = read_schema(registered.text, texts)
                avro_columns(writer)
            except UnusableSchema as error:
                writer = error
            self._writers[schema_id] = writer
        return writer
