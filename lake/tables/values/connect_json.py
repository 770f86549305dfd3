"""Kafka Connect's schemas, as its JSON converter writes them beside payloads.

Types that JSON does not have are numbers and text by a name in the schema (Debezium's dates and
times, Connect's Decimal); bytes are base64.
"""

from typing import Any

import pyarrow as pa

from lakehead.lake.tables.ddl import TIMESTAMP
from lakehead.lake.tables.values.json_program import Forms, Path, Written

_SIMPLE = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
DATES = ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date")
INSTANTS = {  # to microseconds: times, divided by
    "io.debezium.time.Timestamp": (1000, 1),
    "io.debezium.time.MicroTimestamp": (1, 1),
    "io.debezium.time.NanoTimestamp": (1, 1000),
    "org.apache.kafka.connect.data.Timestamp": (1000, 1),
}
ZONED = "io.debezium.time.ZonedTimestamp"
DECIMAL = "org.apache.kafka.connect.data.Decimal"


def connect_type(schema: Any, *, inside: bool = False) -> Any:
    """The Arrow type of a Connect schema; None for one that cannot be a column. What is `inside` a
    column stays as JSON has it: numbers, and bytes as base64.
    """
    name, kind = schema.get("name"), schema.get("type")
    if inside and kind == "bytes":
        return pa.string()
    if inside and kind in _SIMPLE:
        return _SIMPLE[kind]
    if name in DATES:
        return pa.date32()
    if name in INSTANTS or name == ZONED:
        return TIMESTAMP
    if name == DECIMAL:
        return decimal_type(schema.get("parameters"))
    if kind == "struct":
        fields = connect_fields(schema, inside=True)
        return pa.struct(fields) if fields else None
    if kind == "array":
        inner = connect_type(schema.get("items") or {}, inside=True)
        return None if inner is None else pa.list_(inner)
    return _SIMPLE.get(kind)


def decimal_type(parameters: Any) -> Any:
    """The Arrow type of Connect's Decimal with these parameters."""
    parameters = parameters or {}
    precision = int(parameters.get("connect.decimal.precision", 38))
    return pa.decimal128(min(precision, 38), int(parameters.get("scale", 0)))


def connect_fields(schema: Any, *, inside: bool = False) -> list[Any]:
    """The columns of a Connect struct."""
    typed = (
        (field["field"], connect_type(field, inside=inside)) for field in schema.get("fields") or ()
    )
    return [pa.field(name, kind) for name, kind in typed if kind is not None]


def connect_forms(schema: Any) -> Forms:
    """How the fields of a Connect struct are written that JSON has no type for."""
    forms: dict[Path, Written] = {}
    for field in schema.get("fields") or ():
        kind, name = connect_type(field), field.get("name")
        if kind is None:
            continue
        if name in DATES or pa.types.is_binary(kind) or name == DECIMAL:
            forms[field["field"],] = Written(type=kind)
        elif name in INSTANTS:
            times, divided = INSTANTS[name]
            forms[field["field"],] = Written(type=kind, numerator=times, denominator=divided)
    return forms
