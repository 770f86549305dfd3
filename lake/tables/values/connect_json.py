"""What Kafka Connect's JSON converter writes: payloads with their schema beside them, or bare.

With `schemas.enable` each value is `{"schema": ..., "payload": ...}`. The schema is by far the
longer part and the same in row after row, so it is read once for all values that begin alike.
Types that JSON does not have are numbers and text by a name in the schema (Debezium's dates and
times, Connect's Decimal); bytes are base64.
"""

import base64
import binascii
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lake.tables.ddl import TIMESTAMP

_HEAD = b'{"schema":'
_NEXT = ',"payload":'
_HEADS_MAX = 32

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
_DATES = ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date")
_INSTANTS = {  # to microseconds: times, divided by
    "io.debezium.time.Timestamp": (1000, 1),
    "io.debezium.time.MicroTimestamp": (1, 1),
    "io.debezium.time.NanoTimestamp": (1, 1000),
    "org.apache.kafka.connect.data.Timestamp": (1000, 1),
}
_ZONED = "io.debezium.time.ZonedTimestamp"
_DECIMAL = "org.apache.kafka.connect.data.Decimal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Payloads:
    """Values that have the same schema beside them (None: none), by their place."""

    rows: list[int]
    payloads: list[bytes]
    schema: Any


def split_payloads(values: Sequence[bytes | None]) -> Iterator[Payloads]:
    """Yield the values that are not null, taken out of their envelopes, by schema."""
    heads: list[tuple[bytes, Payloads]] = []
    bare = Payloads(rows=[], payloads=[], schema=None)
    for row, value in enumerate(values):
        if value is None:
            continue
        for head, group in heads:
            if value.startswith(head) and value.endswith(b"}"):
                group.rows.append(row)
                group.payloads.append(value[len(head) : -1])
                break
        else:
            found = _head(value) if len(heads) < _HEADS_MAX else None
            if found is not None:
                schema = found[1]
                group = Payloads(rows=[row], payloads=[value[len(found[0]) : -1]], schema=schema)
                heads.append((found[0], group))
                continue
            schema, payload = _taken_apart(value)
            if schema is None:
                bare.rows.append(row)
                bare.payloads.append(payload)
            else:
                yield Payloads(rows=[row], payloads=[payload], schema=schema)
    yield from (group for _, group in heads)
    if bare.rows:
        yield bare


def _head(value: bytes) -> tuple[bytes, Any] | None:
    """The beginning of a value up to its payload, and the schema in it."""
    if not value.startswith(_HEAD) or not value.endswith(b"}"):
        return None
    try:
        text = value.decode("utf-8")
        schema, end = json.JSONDecoder().raw_decode(text, len(_HEAD))
    except (ValueError, RecursionError):
        return None
    if not text.startswith(_NEXT, end):
        return None
    return text[: end + len(_NEXT)].encode(), schema


def _taken_apart(value: bytes) -> tuple[Any, bytes]:
    """Schema and payload of a value whose parts stand otherwise; a value that has none."""
    if b'"payload"' not in value:
        return None, value
    try:
        decoded = json.loads(value)
    except (ValueError, RecursionError):
        return None, value
    if not isinstance(decoded, dict) or decoded.keys() != {"schema", "payload"}:
        return None, value
    return decoded["schema"], json.dumps(decoded["payload"]).encode()


def connect_type(schema: Any, *, inside: bool = False) -> Any:
    """The Arrow type of a Connect schema; None for one that cannot be a column. What is `inside` a
    column stays as JSON has it: numbers, and bytes as base64.
    """
    name, kind = schema.get("name"), schema.get("type")
    if inside and kind == "bytes":
        return pa.string()
    if inside and kind in _SIMPLE:
        return _SIMPLE[kind]
    if name in _DATES:
        return pa.date32()
    if name in _INSTANTS or name == _ZONED:
        return TIMESTAMP
    if name == _DECIMAL:
        parameters = schema.get("parameters") or {}
        precision = int(parameters.get("connect.decimal.precision", 38))
        return pa.decimal128(min(precision, 38), int(parameters.get("scale", 0)))
    if kind == "struct":
        fields = connect_fields(schema, inside=True)
        return pa.struct(fields) if fields else None
    if kind == "array":
        inner = connect_type(schema.get("items") or {}, inside=True)
        return None if inner is None else pa.list_(inner)
    return _SIMPLE.get(kind)


def connect_fields(schema: Any, *, inside: bool = False) -> list[Any]:
    """The columns of a Connect struct."""
    typed = (
        (field["field"], connect_type(field, inside=inside)) for field in schema.get("fields") or ()
    )
    return [pa.field(name, kind) for name, kind in typed if kind is not None]


def written_as(target: Any, schema: Any) -> Any:
    """The type to read a column of type `target` as; `schema` is its Connect schema or None."""
    name = None if schema is None else schema.get("name")
    if pa.types.is_binary(target) or (pa.types.is_decimal(target) and name == _DECIMAL):
        return pa.string()
    is_number = (pa.types.is_date(target) and name in _DATES) or (
        pa.types.is_timestamp(target) and name in _INSTANTS
    )
    return pa.int64() if is_number else target


def converted(array: Any, target: Any, schema: Any) -> Any:
    """A column that was read as `written_as` says, as its target.

    Raises ValueError, naming the reason, if a value of it cannot be.
    """
    if array.type == target:
        return array
    if pa.types.is_date(target):
        return array.cast(pa.int32()).cast(target)
    if pa.types.is_timestamp(target):
        times, divided = _INSTANTS[schema["name"]]
        micros = pc.multiply_checked(array, times) if times > 1 else array
        return (pc.divide(micros, divided) if divided > 1 else micros).cast(target)
    content = [None if text is None else _bytes(text) for text in array.to_pylist()]
    if pa.types.is_binary(target):
        return pa.array(content, target)
    scale = int((schema.get("parameters") or {}).get("scale", 0))
    numbers = [
        None if c is None else Decimal(int.from_bytes(c, "big", signed=True)).scaleb(-scale)
        for c in content
    ]
    return pa.array(numbers, target)


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("text that is not base64, for bytes") from None
