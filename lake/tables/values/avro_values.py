"""Avro values: datums framed as Confluent's serializer does, or bare ones of a declared schema.

With a registry each value names its writer's schema by id; a declared schema is then the reader's,
and its columns, defaults and aliases hold for all. Without one a declared schema is the writer's of
every value, and no value is framed.
"""

from lakehead.lake.tables.registry import RegisteredSchema, SchemaRegistry
from lakehead.lake.tables.values.avro_program import AvroProgram, compile_avro
from lakehead.lake.tables.values.avro_schema import avro_columns, read_schema
from lakehead.lake.tables.values.by_schema import (
    Format,
    Place,
    ValuesBySchema,
    Writer,
    declared_writer,
    one_part,
)
from lakehead.lake.tables.values.decoder import ValueSpec
from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.avro_types import AvroSchema


def avro_values(spec: ValueSpec, registry: SchemaRegistry | None) -> ValuesBySchema:
    """Return the decoder of one Avro datum for each value. Raises SettingsError."""
    if not spec.schema and registry is None:
        raise SettingsError("Avro values need a schema registry's URL or a schema")
    declared: Writer | None = None
    reader: AvroSchema | None = None
    if spec.schema:
        declared = declared_writer(lambda: _writer(read_schema(spec.schema), None))
        reader = read_schema(spec.schema)

    def read(registered: RegisteredSchema, _place: Place) -> Writer:
        return avro_writer(registered, reader)

    return ValuesBySchema(Format(readers={"AVRO": read}, parts=one_part), registry, declared)


def avro_writer(registered: RegisteredSchema, reader: AvroSchema | None = None) -> Writer:
    """Return the writer of a registered schema. Raises UnusableSchema."""
    texts = [reference.text for reference in registered.references]
    return _writer(read_schema(registered.text, texts), reader)


def _writer(schema: AvroSchema, reader: AvroSchema | None) -> Writer:
    def compiled(columns: object) -> AvroProgram:
        return compile_avro(schema, columns, reader)

    return Writer(columns=avro_columns(schema), compiled=compiled)
