"""Schemas in Spark's DDL notation, without Spark, as Arrow's: see
`lakehead.lake.declaration.column_types`.

All columns are nullable: a record may lack any field.
"""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakehead.lake.declaration.column_types import (
    ArrayType,
    ColumnType,
    DecimalType,
    MapType,
    SimpleType,
    check_column_names,
    parse_columns,
)
from lakehead.storage.errors import SettingsError

TIMESTAMP = pa.timestamp("us", tz="UTC")
"""Delta's `timestamp`: microseconds, an instant."""

VARIANT = pa.struct([pa.field(name, pa.binary(), nullable=False) for name in ("metadata", "value")])
"""Delta's `variant`: a dictionary of names and a value, in the encoding of Parquet's Variant. No
other struct of a table has fields that are never null.
"""

_SIMPLE: dict[str, Any] = {
    "STRING": pa.string(),
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
    "TIMESTAMP": TIMESTAMP,
    "BINARY": pa.binary(),
    "VARIANT": VARIANT,
}
_NAMES = {kind: name for name, kind in _SIMPLE.items()}


def parse_schema(text: str) -> Any:
    """Return the Arrow schema for a DDL text, or for the file that `@path` names.

    Raises SettingsError that says what was not understood.
    """
    if text.startswith("@"):
        path = Path(text[1:])
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"cannot read the schema file {path}: {error}") from None
    columns = parse_columns(text)
    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in columns])


def check_names(schema: Any) -> None:
    """Raise SettingsError for names that a table cannot have: odd characters, the same twice."""
    for container in _containers(schema):
        check_column_names(field.name for field in container)


def to_ddl(schema: Any) -> str:
    """Return the DDL text of a schema that `parse_schema` reads back."""
    return ", ".join(f"{_quoted(field.name)} {type_name(field.type)}" for field in schema)


def type_name(kind: Any) -> str:
    """Return the name of an Arrow type in DDL."""
    if kind == VARIANT:
        return "VARIANT"
    if pa.types.is_struct(kind):
        fields = (kind.field(i) for i in range(kind.num_fields))
        inner = ", ".join(f"{_quoted(field.name)}: {type_name(field.type)}" for field in fields)
        return f"STRUCT<{inner}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{type_name(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{type_name(kind.key_type)}, {type_name(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return _NAMES.get(kind) or str(kind).upper()


def is_struct(kind: Any) -> bool:
    """Return whether an Arrow type is a STRUCT: VARIANT is another type, though Arrow has it as a
    struct.
    """
    return kind != VARIANT and bool(pa.types.is_struct(kind))


def arrow_type(kind: ColumnType) -> Any:
    """Return the Arrow type of a column type."""
    if isinstance(kind, SimpleType):
        return _SIMPLE[kind.name]
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, ArrayType):
        return pa.list_(arrow_type(kind.item))
    if isinstance(kind, MapType):
        return pa.map_(arrow_type(kind.key), arrow_type(kind.value))
    return pa.struct([pa.field(column.name, arrow_type(column.type)) for column in kind.columns])


def _quoted(name: str) -> str:
    if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        return name
    return "`" + name.replace("`", "``") + "`"


def _containers(schema: Any) -> list[list[Any]]:
    """Fields of the schema, and those of every struct in it."""
    found = [list(schema)]
    for container in found:
        for field in container:
            kind = field.type
            while pa.types.is_list(kind) or pa.types.is_map(kind):
                kind = kind.value_type if pa.types.is_list(kind) else kind.item_type
            if pa.types.is_struct(kind):
                found.append([kind.field(i) for i in range(kind.num_fields)])
    return found
