"""The columns that a topic's declaration of a table names, against those that its schema makes:
what can be told without a record, when the declaration is set. Pure.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.avro_default_values import check_defaults
from lakehead.storage.metadata.avro_types import column_types, read_schema
from lakehead.storage.metadata.column_types import (
    ArrayType,
    Column,
    ColumnType,
    DecimalType,
    MapType,
    SimpleType,
    StructType,
)

if TYPE_CHECKING:
    from lakehead.storage.metadata.table_declaration import PartitionPart, TableDeclaration

Columns: TypeAlias = Mapping[str, ColumnType | None]
"""Types by name; None is a type that is not looked at."""

METADATA_TYPES: Columns = {
    "_topic": SimpleType("STRING"),
    "_partition": SimpleType("INT"),
    "_offset": SimpleType("BIGINT"),
    "_timestamp": SimpleType("TIMESTAMP"),
    "_key": SimpleType("BINARY"),
    "_headers": ArrayType(StructType((Column("key", SimpleType("STRING")),))),
}
CHANGE_TYPES: Columns = {
    "_op": SimpleType("STRING"),
    "_seq": SimpleType("INT"),
    "_source_ts": SimpleType("TIMESTAMP"),
    "_source_position": SimpleType("STRING"),
}
"""Columns of the history of Debezium's changes."""
HISTORY_TYPES: Columns = {
    "_valid_from": SimpleType("TIMESTAMP"),
    "_valid_to": SimpleType("TIMESTAMP"),
    "_is_current": SimpleType("BOOLEAN"),
}
"""Columns of a table that keeps every value of a key."""

_PARTITION_TYPES = (
    "STRING",
    "BOOLEAN",
    "TINYINT",
    "SMALLINT",
    "INT",
    "BIGINT",
    "DATE",
    "TIMESTAMP",
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]+")
_TOP = "lakehead.table."


def check_columns(declared: "TableDeclaration", fields: Columns | None) -> None:
    """Check what a declaration says of columns; `fields` are those of its values, None where only
    records tell. Raises SettingsError.
    """
    is_nested = declared.layout == "nested" and declared.value_format != "raw"
    _require(
        not (is_nested and declared.keys),
        f"{_TOP}keys names columns, and values lie in one: set {_TOP}layout=flat, or leave the "
        "keys out",
    )
    if fields is None:
        return
    made: Columns = {
        **METADATA_TYPES,
        **(CHANGE_TYPES if declared.value_format == "debezium" else {}),
        **(HISTORY_TYPES if declared.scd == 2 else {}),
    }
    taken = {*made, *(c for part in declared.partition_by if part.unit for c in part.columns)}
    for name in () if is_nested else fields:
        _require(
            name.lower() not in taken,
            f"{_TOP}schema: {name} has the name of a column that is made: leave it out, or set "
            f"{_TOP}layout=nested",
        )
    values: Columns = {"value": StructType(())} if is_nested else fields
    known = {**values, **made}
    for part in declared.partition_by:
        _check_part(part, known)
    for name in declared.cluster_by:
        _check_known("cluster.by", name, known)
        _require(
            not isinstance(known[name], ArrayType | MapType | StructType),
            f"{_TOP}cluster.by: rows cannot be kept together by {name}, which holds other values",
        )
    for name in declared.keys:
        _check_known("keys", name, fields)
        _require(
            not isinstance(fields[name], ArrayType | MapType | StructType),
            f"{_TOP}keys: {name} holds other values, which is not a key",
        )


def _check_part(part: "PartitionPart", known: Columns) -> None:
    _check_known("partition.by", part.column, known)
    kind = known[part.column]
    if kind is None:
        return
    name = kind.name if isinstance(kind, SimpleType) else ""
    if part.unit:
        _require(
            name == "TIMESTAMP" or (part.unit == "day" and name == "DATE"),
            f"{_TOP}partition.by: {part.unit}({part.column}) needs a timestamp",
        )
    else:
        _require(
            name in _PARTITION_TYPES,
            f"{_TOP}partition.by: a table cannot be partitioned by {part.column}: that takes text, "
            "an integer, a boolean or a time",
        )


def _check_known(config: str, name: str, known: Columns) -> None:
    _require(
        name in known,
        f"{_TOP}{config}: the table has no column {name}: it has {', '.join(known)}",
    )


def check_json(columns: Columns) -> None:
    """Raise SettingsError for a type that JSON values cannot have."""
    for name, kind in columns.items():
        _require(
            kind is None or _is_json(kind),
            f"column {name}: JSON has no BINARY, and an object is a STRUCT, not a MAP",
        )


def _is_json(kind: ColumnType) -> bool:
    if isinstance(kind, ArrayType):
        return _is_json(kind.item)
    if isinstance(kind, StructType):
        return all(_is_json(column.type) for column in kind.columns)
    return isinstance(kind, DecimalType) or (isinstance(kind, SimpleType) and kind.name != "BINARY")


def avro_columns(text: str) -> Columns:
    """Return the columns of an Avro schema: the fields of a record, or the one that other values
    make. Raises SettingsError for a schema that tables cannot read.
    """
    schema = read_schema(text)
    check_defaults(schema)
    return column_types(schema)


def check_protobuf(text: str) -> None:
    """Raise SettingsError for text that has not the message that it names, or no message. Text is a
    Protobuf file, or its descriptor in base64, which is left to the table.
    """
    first, _, rest = text.partition("\n")
    wanted = first.removeprefix("message=").strip() if first.startswith("message=") else ""
    file = rest if wanted else text
    if _BASE64.fullmatch(file):
        return
    names = re.findall(r"\bmessage\s+(\w+)", _COMMENT.sub(" ", file))
    _require(bool(names), "not a Protobuf file: it has no message")
    _require(
        not wanted or wanted.rpartition(".")[2] in names,
        f"there is no message {wanted}: it has {', '.join(names)}",
    )


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise SettingsError(reason)
