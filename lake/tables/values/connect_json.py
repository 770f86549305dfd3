"""Values of Kafka Connect's JSON converter: schemas, and payloads with their schema or bare.

Types that JSON does not have are numbers and text by a name in the schema (Debezium's dates and
times, Connect's Decimal); bytes are base64. With `schemas.enable` each value is
`{"schema": ..., "payload": ...}`. The schema is by far the longer part and the same in row after
row, so it is read once for all values with the same beginning.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lakehead.lake.tables.ddl import TIMESTAMP
from lakehead.lake.tables.values.framing import Values, places
from lakehead.lake.tables.values.json_program import Forms, Path, Written
from lakehead.storage.kernel_compiler import BYTES, LONG, LONGS, OUT, compiled, inlined

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


def _connect_type(schema: Any, *, inside: bool = False) -> Any:
    """The Arrow type of a Connect schema; None for one that cannot be a column. Values `inside` a
    column stay as JSON has them: numbers, and bytes as base64.
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
        inner = _connect_type(schema.get("items") or {}, inside=True)
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
        (field["field"], _connect_type(field, inside=inside))
        for field in schema.get("fields") or ()
    )
    return [pa.field(name, kind) for name, kind in typed if kind is not None]


def connect_forms(schema: Any) -> Forms:
    """Return the forms of a Connect struct's fields that have no JSON type."""
    forms: dict[Path, Written] = {}
    for field in schema.get("fields") or ():
        kind, name = _connect_type(field), field.get("name")
        if kind is None:
            continue
        if name in DATES or pa.types.is_binary(kind) or name == DECIMAL:
            forms[field["field"],] = Written(type=kind)
        elif name in INSTANTS:
            times, divided = INSTANTS[name]
            forms[field["field"],] = Written(type=kind, numerator=times, denominator=divided)
    return forms


# mypy: disable-error-code="no-untyped-def, no-untyped-call"


_SCHEMA = np.frombuffer(b'"schema"', np.uint8)
_PAYLOAD = np.frombuffer(b'"payload"', np.uint8)
_BLOCK = np.uint64(64)
_IS_BLANK = np.zeros(256, np.uint8)
_IS_BLANK[[0x20, 0x09, 0x0A, 0x0D]] = 1


@inlined
def _begins(data, at, end, word):
    if end - at < word.shape[0]:
        return False
    # An index without a sign needs no look at what lies before the array: so this is one load each
    # for many bytes.
    different = np.uint8(0)
    first = np.uint64(at)
    size = np.uint64(word.shape[0])
    i = np.uint64(0)
    while i + _BLOCK <= size:
        for j in range(_BLOCK):
            different |= np.uint8(data[first + i + j] ^ word[i + j])
        if different:
            return False
        i += _BLOCK
    while i < size:
        different |= np.uint8(data[first + i] ^ word[i])
        i += np.uint64(1)
    return different == 0


@compiled(LONG(BYTES, LONGS, LONGS, OUT))
def _wrapped(data, starts, ends, found):
    count = 0
    for row in range(starts.shape[0]):
        at = starts[row]
        end = ends[row]
        while at < end and _IS_BLANK[data[at]]:
            at += 1
        if at >= end or data[at] != 0x7B:
            continue
        at += 1
        while at < end and _IS_BLANK[data[at]]:
            at += 1
        if _begins(data, at, end, _SCHEMA) or _begins(data, at, end, _PAYLOAD):
            found[row] = 1
            count += 1
    return count


@compiled(LONG(BYTES, LONGS, LONGS, BYTES, LONGS, LONGS))
def _behind(data, starts, ends, head, payload_starts, payload_ends):
    count = 0
    for row in range(starts.shape[0]):
        at = starts[row]
        end = ends[row]
        if not _begins(data, at, end, head):
            continue
        at += head.shape[0]
        while end > at and _IS_BLANK[data[end - 1]]:
            end -= 1
        if end > at and data[end - 1] == 0x7D:
            payload_starts[row] = at
            payload_ends[row] = end - 1
            count += 1
    return count


def wrapped(data: Any, starts: Any, ends: Any) -> Any:
    """Return 1 for each value data[starts[i]:ends[i]] that begins as an object around a payload."""
    found = np.zeros(len(starts), np.uint8)
    _wrapped(data, starts, ends, found)
    return found


def _payloads_behind(data: Any, starts: Any, ends: Any, head: bytes) -> tuple[Any, Any]:
    """Return where what follows `head` begins and ends, up to the closing brace of the value; it
    begins at -1 in values that do not begin with `head` or have no brace at their end.
    """
    payload_starts = np.full(len(starts), -1, np.int64)
    payload_ends = np.zeros(len(starts), np.int64)
    _behind(data, starts, ends, np.frombuffer(head, np.uint8), payload_starts, payload_ends)
    return payload_starts, payload_ends


_HEADS_MAX = 32
_MEMBER = re.compile(r'[ \t\n\r]*[{,][ \t\n\r]*"([^"\\]*)"[ \t\n\r]*:[ \t\n\r]*')


@dataclass(frozen=True, slots=True, kw_only=True)
class Payloads:
    """Payloads that have the same schema beside them (None: none), and the row of each.

    `schema_text` identifies the schema.
    """

    rows: Any  # int64, ascending
    values: Values
    schema: Any
    schema_text: str = ""


def split_payloads(values: Values) -> Iterator[Payloads]:
    """Yield the values that are not null, taken out of the objects around them, by schema."""
    present = np.flatnonzero(values.starts >= 0)
    starts, ends = values.starts[present], values.ends[present]
    is_wrapped = wrapped(values.data, starts, ends) != 0
    bare = [present[~is_wrapped]]
    left = present[is_wrapped]
    singles: dict[str, tuple[list[int], list[bytes]]] = {}
    heads = 0
    while len(left):
        first = int(left[0])
        value = values.data[values.starts[first] : values.ends[first]].tobytes()
        found = _taken_apart(value)
        if found is None:
            bare.append(left[:1])
            left = left[1:]
            continue
        schema_text, payload, head = found
        if head is None or heads == _HEADS_MAX:
            rows, payloads = singles.setdefault(schema_text, ([], []))
            rows.append(first)
            payloads.append(payload)
            left = left[1:]
            continue
        heads += 1
        places_of = _payloads_behind(values.data, values.starts[left], values.ends[left], head)
        behind = places_of[0] >= 0
        yield Payloads(
            rows=left[behind],
            values=Values(data=values.data, starts=places_of[0][behind], ends=places_of[1][behind]),
            schema=json.loads(schema_text),
            schema_text=schema_text,
        )
        left = left[~behind]
    for schema_text, (rows, payloads) in singles.items():
        yield Payloads(
            rows=np.array(rows, np.int64),
            values=places(pa.array(payloads, pa.binary())),
            schema=json.loads(schema_text),
            schema_text=schema_text,
        )
    rest = np.sort(np.concatenate(bare))
    if len(rest):
        taken = Values(data=values.data, starts=values.starts[rest], ends=values.ends[rest])
        yield Payloads(rows=rest, values=taken, schema=None)


def _taken_apart(value: bytes) -> tuple[str, bytes, bytes | None] | None:
    """Schema, payload, and what stands before the payload if that comes last; None for a value
    that is no payload with its schema.
    """
    decoder = json.JSONDecoder()
    spans: dict[str, tuple[int, int]] = {}
    try:
        text = value.decode("utf-8")
        at = 0
        while (member := _MEMBER.match(text, at)) is not None:
            if member[1] in spans or len(spans) == 2:
                return None
            _, at = decoder.raw_decode(text, member.end())
            spans[member[1]] = (member.end(), at)
    except (ValueError, RecursionError):
        return None
    if spans.keys() != {"schema", "payload"} or text[at:].strip(" \t\n\r") != "}":
        return None
    start, end = spans["payload"]
    schema_text = text[slice(*spans["schema"])]
    head = text[:start].encode() if end == at else None
    return schema_text, text[start:end].encode(), head
