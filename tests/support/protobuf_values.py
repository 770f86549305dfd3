"""Random Protobuf schemas and messages, and what Google's runtime makes of bytes, as columns."""

import datetime as dt
import random
from decimal import Decimal
from typing import Any

from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import strategies as st

from lakehead.lake.tables.values.protobuf_schema import (
    TIMESTAMP_MESSAGE,
    WRAPPERS,
    is_map,
    is_opaque,
)

SCALARS = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
    *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
)
KEYS = tuple(kind for kind in SCALARS if kind not in ("double", "float", "bytes"))
KNOWN = (TIMESTAMP_MESSAGE, *sorted(WRAPPERS))
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
_INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
_UINT32 = st.integers(0, (1 << 32) - 1)
_UINT64 = st.integers(0, (1 << 64) - 1)
VALUES: dict[int, st.SearchStrategy[Any]] = {
    1: st.floats(allow_nan=False),
    2: st.floats(width=32, allow_nan=False),
    3: _INT64,
    4: _UINT64,
    5: _INT32,
    6: _UINT64,
    7: _UINT32,
    8: st.booleans(),
    9: st.text(max_size=4),
    12: st.binary(max_size=4),
    13: _UINT32,
    15: _INT32,
    16: _INT64,
    17: _INT32,
    18: _INT64,
}


def proto(seed: int) -> str:
    """The text of a file whose last message is `Value`; the same for the same seed, since each text
    costs a run of protoc.
    """
    rng = random.Random(seed)
    syntax = rng.choice(["proto3", "proto2"])
    lines = [f'syntax = "{syntax}";']
    lines += [f'import "google/protobuf/{name}.proto";' for name in ("timestamp", "wrappers")]
    lines.append("enum Color { NONE = 0; RED = 1; BLUE = 5; DARK = -3; }")
    messages: list[str] = []
    for name in ["A", "B", "Value"]:
        lines.append(f"message {name} {{")
        numbers = rng.sample([*range(1, 40), *range(1000, 1100), *range(400_000, 400_100)], 7)
        lines += [_field(rng, number, syntax, messages) for number in numbers]
        lines.append("}")
        messages.append(name)
    return "\n".join(lines)


def _field(rng: random.Random, number: int, syntax: str, messages: list[str]) -> str:
    kind = rng.choice([*SCALARS, "Color", *KNOWN[:4], *messages, *messages])
    kind = f".{kind}" if "." in kind else kind
    name = f"f{number}"
    if syntax == "proto2" and rng.randrange(4) == 0:
        label = rng.choice(["optional", "repeated"])
        inner = f"optional {kind} a = 1; repeated int32 b = 2;"
        return f"  {label} group F{number} = {number} {{ {inner} }}"
    match rng.randrange(6):
        case 0:
            return f"  repeated {kind} {name} = {number}{_packed(rng, kind)};"
        case 1:
            return f"  map<{rng.choice(KEYS)}, {kind}> {name} = {number};"
        case 2:
            other = rng.choice([*SCALARS, "Color", *messages])
            pair = f"{kind} {name} = {number}; {other} {name}x = {number + 500_001};"
            if syntax == "proto2":
                pair += f" group F{number}y = {number + 1_000_001} {{ optional int64 z = 7; }}"
            return f"  oneof {name}_of {{ {pair} }}"
        case 3 if syntax == "proto3":
            return f"  {kind} {name} = {number};"
    return f"  optional {kind} {name} = {number};"


def _packed(rng: random.Random, kind: str) -> str:
    if kind in SCALARS and kind not in ("string", "bytes"):
        return rng.choice(["", " [packed = true]", " [packed = false]"])
    return ""


def filled(message: Any, data: st.DataObject) -> Any:
    """A message with drawn values in some of its fields."""
    for field in message.DESCRIPTOR.fields:
        if data.draw(st.booleans()):
            _fill(message, field, data)
    return message


def _fill(message: Any, field: Any, data: st.DataObject) -> None:
    if is_map(field):
        key_field, value_field = field.message_type.fields
        for _ in range(data.draw(st.integers(1, 2))):
            key = data.draw(VALUES[key_field.type])
            if value_field.message_type is not None:
                _fill_message(getattr(message, field.name)[key], data)
            else:
                getattr(message, field.name)[key] = _drawn(value_field, data)
    elif field.is_repeated:
        for _ in range(data.draw(st.integers(0, 3))):
            if field.message_type is not None:
                _fill_message(getattr(message, field.name).add(), data)
            else:
                getattr(message, field.name).append(_drawn(field, data))
    elif field.message_type is not None:
        getattr(message, field.name).SetInParent()
        _fill_message(getattr(message, field.name), data)
    else:
        setattr(message, field.name, _drawn(field, data))


def _fill_message(message: Any, data: st.DataObject) -> None:
    if message.DESCRIPTOR.full_name == TIMESTAMP_MESSAGE:
        message.seconds = data.draw(st.integers(-60_000_000_000, 250_000_000_000))
        message.nanos = data.draw(st.integers(0, 999_999_999))
    else:
        filled(message, data)


def _drawn(field: Any, data: st.DataObject) -> Any:
    if field.enum_type is not None:
        known = [value.number for value in field.enum_type.values]
        return data.draw(st.sampled_from(known if field.enum_type.is_closed else [*known, 77, -8]))
    return data.draw(VALUES[field.type])


def message_class(descriptor: Any) -> Any:
    return GetMessageClass(descriptor)


def is_odd(message: Any) -> bool:
    """Return true if a map's entry was put aside because something in it is unknown: Google's C
    runtime does so, its others and this decoder keep the entry and leave out what is unknown.
    """
    maps = {field.number for field in message.DESCRIPTOR.fields if is_map(field)}
    if any(field.field_number in maps for field in UnknownFieldSet(message)):
        return True
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if is_map(field):
            inner = list(value.values()) if field.message_type.fields[1].message_type else []
        else:
            inner = list(value) if field.is_repeated else [value]
        if any(map(is_odd, inner)):
            return True
    return False


def shown(message: Any) -> dict[str, Any]:
    """A message as a row."""
    return {field.name: _field_value(message, field) for field in message.DESCRIPTOR.fields}


def _field_value(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if is_map(field):
        key_field, value_field = field.message_type.fields
        return {_one(key, key_field): _one(value[key], value_field) for key in value}
    if field.is_repeated:
        return [_one(each, field) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _one(value, field)


def _one(value: Any, field: Any) -> Any:
    inner = field.message_type
    if inner is None:
        if field.enum_type is not None:
            names = {each.number: each.name for each in field.enum_type.values}
            return names.get(value, str(value))
        return Decimal(value) if field.type in (4, 6) else value
    if inner.full_name == TIMESTAMP_MESSAGE:
        assert 0 <= value.nanos <= 999_999_999, "the decoder refuses others"
        micros = value.seconds * 1_000_000 + value.nanos // 1000
        return _EPOCH + dt.timedelta(microseconds=micros)
    if inner.full_name in WRAPPERS:
        return _one(value.value, inner.fields[0])
    assert not is_opaque(inner, ()), "no such message is drawn"
    return shown(value)
