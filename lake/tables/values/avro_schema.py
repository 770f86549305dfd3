"""Avro schemas as Arrow columns. A node judges them as well, by
`lakehead.storage.metadata.avro_types`.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from lakehead.lake.tables.ddl import arrow_type
from lakehead.lake.tables.values.decoder import UnusableSchema
from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata import avro_default_values, avro_types
from lakehead.storage.metadata.avro_types import AvroSchema


def read_schema(text: str, references: Sequence[str] = ()) -> AvroSchema:
    """Parse a schema that may use the types of `references`, each after those it uses itself.

    Raises UnusableSchema that says why.
    """
    try:
        return avro_types.read_schema(text, references)
    except SettingsError as error:
        raise UnusableSchema(str(error)) from None


def avro_columns(schema: AvroSchema) -> Any:
    """Return the Arrow schema of a schema's values. Raises UnusableSchema."""
    try:
        found = avro_types.column_types(schema)
    except SettingsError as error:
        raise UnusableSchema(str(error)) from None
    return pa.schema([pa.field(name, arrow_type(kind)) for name, kind in found.items()])


def arrow_scalar(node: Any) -> Any:
    """The Arrow type of a resolved type without parts."""
    return arrow_type(avro_types.scalar_type(node))


def default_value(schema: AvroSchema, field: dict[str, Any], kind: Any) -> Any:
    """Return the default of a reader's field as Python holds a value of the Arrow type `kind`.

    Raises UnusableSchema if it is no value of the field's type.
    """
    try:
        value = avro_default_values.default_value(schema, field)
        pa.scalar(value, kind)
    except SettingsError as error:
        raise UnusableSchema(str(error)) from None
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise UnusableSchema(f"the default of field {field['name']}: {reason}") from None
    return value
