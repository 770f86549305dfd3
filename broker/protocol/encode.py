"""Encodes kio's entities as message bodies, and the primitives of responses that are written by
hand.

kio's own writer makes several calls for each field. This one is built from the same classes, and
packs numbers that follow each other at once. A value that its field cannot have raises
struct.error, TypeError or AttributeError.
"""

import struct
from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, cast

from lakehead.broker.protocol.entity_fields import (
    NUMBERS,
    SCALARS,
    EntityField,
    entity_fields,
)
from lakehead.broker.protocol.messages import milliseconds
from lakehead.storage.format.varint import encode_uvarint

_INT16, _INT32, _INT64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_NO_UUID = bytes(16)
Writer = Callable[[bytearray, Any], None]
"""Appends a value to a body, or fields of an entity."""


def encode(entity: Any) -> bytearray:
    """Return the body of a kio entity."""
    out = bytearray()
    _entity_writer(cast(Any, type(entity)))(out, entity)
    return out


def compact_text(text: str | None) -> bytes:
    """Return a nullable string in the compact encoding."""
    if text is None:
        return b"\x00"
    data = text.encode()
    return encode_uvarint(len(data) + 1) + data


def plain_text(text: str | None) -> bytes:
    """Return a nullable string in the old encoding."""
    if text is None:
        return b"\xff\xff"
    data = text.encode()
    return _INT16.pack(len(data)) + data


@cache
def _entity_writer(cls: Any) -> Writer:
    fields = entity_fields(cls)
    flexible: bool = cls.__flexible__
    parts = _parts([field for field in fields if field.tag is None], flexible)
    tagged = sorted(
        (field.tag, attrgetter(field.name), field.default, _field_writer(field, flexible))
        for field in fields
        if field.tag is not None
    )

    def write(out: bytearray, entity: Any) -> None:
        for part in parts:
            part(out, entity)
        if tagged:
            _write_tags(out, entity, tagged)
        elif flexible:
            out.append(0)

    return write


def _parts(fields: Sequence[EntityField], flexible: bool) -> list[Writer]:
    """Return what writes these fields of an entity: numbers that follow each other at once."""
    parts: list[Writer] = []
    position = 0
    while position < len(fields):
        end = position
        while end < len(fields) and fields[end].number:
            end += 1
        if end > position:
            parts.append(_numbers(fields[position:end]))
            position = end
        else:
            parts.append(_part(fields[position], flexible))
            position += 1
    return parts


def _numbers(fields: Sequence[EntityField]) -> Writer:
    pack = struct.Struct(">" + "".join(field.number for field in fields)).pack
    get = attrgetter(*(field.name for field in fields))

    def write_one(out: bytearray, entity: Any) -> None:
        out += pack(get(entity))

    def write(out: bytearray, entity: Any) -> None:
        out += pack(*get(entity))

    return write_one if len(fields) == 1 else write


def _part(field: EntityField, flexible: bool) -> Writer:
    get, write_value = attrgetter(field.name), _field_writer(field, flexible)
    return lambda out, entity: write_value(out, get(entity))


def _write_tags(
    out: bytearray, entity: Any, tagged: Sequence[tuple[int, Any, Any, Writer]]
) -> None:
    """Write the tagged fields that have another value than their default (KIP-482)."""
    count, body = 0, bytearray()
    for tag, get, default, write_value in tagged:
        value = get(entity)
        if value != default:
            data = bytearray()
            write_value(data, value)
            body += encode_uvarint(tag) + encode_uvarint(len(data)) + data
            count += 1
    out += encode_uvarint(count)
    out += body


def _field_writer(field: EntityField, flexible: bool) -> Writer:
    if field.is_array:
        entity = field.entity
        element = (
            _primitive(cast(str, field.kind), flexible, False)
            if entity is None
            else _entity_writer(cast(Any, entity))
        )
        return _array(element, flexible)
    is_nullable = field.is_nullable and field.tag is None
    if field.entity is None:
        return _primitive(cast(str, field.kind), flexible, is_nullable)
    write = _entity_writer(cast(Any, field.entity))
    return _nullable_entity(write) if is_nullable else write


def _nullable_entity(write: Writer) -> Writer:
    def write_nullable(out: bytearray, entity: Any) -> None:
        out.append(0xFF if entity is None else 1)
        if entity is not None:
            write(out, entity)

    return write_nullable


def _array(element: Writer, flexible: bool) -> Writer:
    def write(out: bytearray, values: Sequence[Any] | None) -> None:
        count = -1 if values is None else len(values)
        out += encode_uvarint(count + 1) if flexible else _INT32.pack(count)
        for value in values or ():
            element(out, value)

    return write


def _primitive(kind: str, flexible: bool, nullable: bool) -> Writer:
    if kind == "string":
        return _text(flexible, nullable)
    if kind in {"bytes", "records"}:
        return _bytes(flexible, nullable)
    if kind == "uuid":
        return _uuid
    if kind.startswith("timedelta"):
        return _duration(SCALARS[kind])
    if kind == "datetime_i64":
        return _instant
    pack = SCALARS[kind].pack if kind in SCALARS else struct.Struct(">" + NUMBERS[kind]).pack

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return write


def _duration(layout: struct.Struct) -> Writer:
    none = bytes(layout.size)

    def write(out: bytearray, value: Any) -> None:
        out += layout.pack(milliseconds(value)) if value else none

    return write


def _instant(out: bytearray, value: Any) -> None:
    out += _INT64.pack(-1 if value is None else round(value.timestamp() * 1000))


def _uuid(out: bytearray, value: Any) -> None:
    out += _NO_UUID if value is None else value.bytes


def _text(flexible: bool, nullable: bool) -> Writer:
    encode_text = compact_text if flexible else plain_text

    def write(out: bytearray, value: str | None) -> None:
        if value is None and not nullable:
            raise TypeError("a string is None that must not be")
        out += encode_text(value)

    return write


def _bytes(flexible: bool, nullable: bool) -> Writer:
    def write(out: bytearray, value: Any) -> None:
        if value is None and not nullable:
            raise TypeError("bytes are None that must not be")
        size = -1 if value is None else len(value)
        out += encode_uvarint(size + 1) if flexible else _INT32.pack(size)
        out += value or b""

    return write
