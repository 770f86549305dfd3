"""Decodes request bodies into kio's entities, with every length checked before anything is
allocated.

kio's own reader reserves room for as many elements as an array's length field says, so that five
bytes from a stranger would end the process. This one is built from the same classes, but takes an
array's length only when the frame has at least a byte for each element, and stops at
`elements_max` elements in all. Strings have Kafka's limit in every encoding.
"""

import dataclasses
import struct
import types
import typing
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, cast
from uuid import UUID

from lakehead.broker.protocol.errors import MalformedFrame

ELEMENTS_MAX = 20_000
"""Most array elements in one request, where the caller allows no more: what a request costs in time
and memory is bounded by this, not only by its bytes.
"""
TEXT_SIZE_MAX = 0x7FFF
"""Longest string, in bytes (Kafka's protocol guide, and its generated readers)."""

_DURATION_MAX_MS = 86_399_999_913_600_000
"""A day less than Python's longest timedelta."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIXED = {
    "bool": struct.Struct(">?"),
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
    "uint8": struct.Struct(">B"),
    "uint16": struct.Struct(">H"),
    "uint32": struct.Struct(">I"),
    "uint64": struct.Struct(">Q"),
    "float64": struct.Struct(">d"),
    "error_code": struct.Struct(">h"),
    "timedelta_i32": struct.Struct(">i"),
    "timedelta_i64": struct.Struct(">q"),
    "datetime_i64": struct.Struct(">q"),
}
_INT16, _INT32, _INT8 = _FIXED["int16"], _FIXED["int32"], _FIXED["int8"]


class Cursor:
    """A place in a frame. Every read raises MalformedFrame rather than going past the end."""

    __slots__ = ("_elements_left", "_elements_max", "data", "end", "position")

    def __init__(
        self, data: memoryview, position: int = 0, elements_max: int = ELEMENTS_MAX
    ) -> None:
        self.data = data
        self.position = position
        self.end = len(data)
        self._elements_left = self._elements_max = elements_max

    def fixed(self, layout: struct.Struct) -> Any:
        """Read one fixed-size number."""
        position = self.position
        self.position = position + layout.size
        if self.position > self.end:
            raise MalformedFrame("a field goes past the end of the frame")
        return layout.unpack_from(self.data, position)[0]

    def uvarint(self) -> int:
        """Read an unsigned variable-length number of at most 32 bits."""
        value = shift = 0
        while True:
            if self.position >= self.end or shift > 28:
                raise MalformedFrame("a variable-length number is cut short or too long")
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def take(self, size: int) -> memoryview:
        """Read `size` bytes, as a view."""
        start = self.position
        if size < 0 or start + size > self.end:
            raise MalformedFrame(f"{size} bytes do not fit in the frame")
        self.position = start + size
        return self.data[start : start + size]

    def length(self, *, compact: bool, short: bool) -> int:
        """Read the length of a string or of bytes; -1 for null."""
        if compact:
            return self.uvarint() - 1
        length: int = self.fixed(_INT16 if short else _INT32)
        return length

    def count(self, *, compact: bool) -> int:
        """Read the number of elements of an array; -1 for null."""
        number: int = self.uvarint() - 1 if compact else self.fixed(_INT32)
        if number < -1 or number > self.end - self.position:
            raise MalformedFrame(f"an array of {number} elements does not fit in the frame")
        if number > 0:
            self._elements_left -= number
            if self._elements_left < 0:
                raise MalformedFrame(
                    f"more than {self._elements_max} array elements in one request"
                )
        return number

    def text(self, *, compact: bool) -> str | None:
        """Read a nullable string."""
        length = self.length(compact=compact, short=True)
        if length == -1:
            return None
        if length > TEXT_SIZE_MAX:
            raise MalformedFrame(f"a string of {length} bytes; at most {TEXT_SIZE_MAX} are taken")
        try:
            return str(self.take(length), "utf-8")
        except UnicodeDecodeError:
            raise MalformedFrame("a string is not UTF-8") from None

    def skip_tags(self) -> None:
        """Read past the tagged fields."""
        for _ in range(self.uvarint()):
            self.uvarint()
            self.take(self.uvarint())


Reader = Callable[[Cursor], Any]


def decode(
    cls: type[Any], data: memoryview, position: int = 0, elements_max: int = ELEMENTS_MAX
) -> Any:
    """Return the entity of kio's class `cls` at `position`. Raises MalformedFrame.

    Bytes that are left over are ignored, as Kafka does.
    """
    reader: Reader = _entity_reader(cast(Any, cls))
    try:
        return reader(Cursor(data, position, elements_max))
    except (ValueError, OverflowError, RecursionError) as error:
        raise MalformedFrame(str(error)) from error


@cache
def _entity_reader(cls: Any) -> Reader:
    flexible: bool = cls.__flexible__
    hints = typing.get_type_hints(cls)
    plain: list[tuple[str, Reader]] = []
    tagged: dict[int, tuple[str, Reader]] = {}
    for field in dataclasses.fields(cls):
        tag = field.metadata.get("tag")
        reader = _field_reader(field, hints[field.name], flexible=flexible, tagged=tag is not None)
        if tag is None:
            plain.append((field.name, reader))
        else:
            tagged[tag] = (field.name, reader)

    def read(cursor: Cursor) -> Any:
        values = {name: reader(cursor) for name, reader in plain}
        if flexible:
            _read_tags(cursor, tagged, values)
        return cls(**values)

    return read


def _read_tags(
    cursor: Cursor, tagged: dict[int, tuple[str, Reader]], values: dict[str, Any]
) -> None:
    for _ in range(cursor.uvarint()):
        tag = cursor.uvarint()
        body = Cursor(cursor.take(cursor.uvarint()))
        if tag in tagged:
            name, reader = tagged[tag]
            values[name] = reader(body)


def _field_reader(
    field: dataclasses.Field[Any], hint: Any, *, flexible: bool, tagged: bool
) -> Reader:
    nullable, hint = _without_none(hint)
    kind = field.metadata.get("kafka_type")
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        element = _entity_reader(inner) if kind is None else _primitive(kind, flexible, False)
        return _array(element, flexible, nullable)
    if kind is not None:
        return _primitive(kind, flexible, nullable)
    entity = _entity_reader(hint)
    return _nullable_entity(entity) if nullable and not tagged else entity


def _without_none(hint: Any) -> tuple[bool, Any]:
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        rest = [arm for arm in typing.get_args(hint) if arm is not types.NoneType]
        assert len(rest) == 1
        return True, rest[0]
    return False, hint


def _nullable_entity(entity: Reader) -> Reader:
    return lambda cursor: None if cursor.fixed(_INT8) < 0 else entity(cursor)


def _array(element: Reader, flexible: bool, nullable: bool) -> Reader:
    def read(cursor: Cursor) -> tuple[Any, ...] | None:
        count = cursor.count(compact=flexible)
        if count == -1:
            if nullable:
                return None
            raise MalformedFrame("an array is null that must not be")
        return tuple([element(cursor) for _ in range(count)])

    return read


def _primitive(kind: str, flexible: bool, nullable: bool) -> Reader:
    if kind == "string":
        return _text(flexible, nullable)
    if kind in {"bytes", "records"}:
        return _bytes(flexible, nullable)
    if kind == "uuid":
        return _uuid
    layout = _FIXED[kind]
    if kind.startswith("timedelta"):  # longer ones are as good as the longest
        return lambda cursor: timedelta(
            milliseconds=max(-_DURATION_MAX_MS, min(cursor.fixed(layout), _DURATION_MAX_MS))
        )
    if kind == "datetime_i64":
        return lambda cursor: _instant(cursor.fixed(layout), nullable)
    if kind == "error_code":
        from kio.schema.errors import ErrorCode

        return lambda cursor: ErrorCode(cursor.fixed(layout))
    return lambda cursor: cursor.fixed(layout)


def _instant(value: int, nullable: bool) -> datetime | None:
    if value == -1 and nullable:
        return None
    return _EPOCH + timedelta(milliseconds=value)


def _uuid(cursor: Cursor) -> UUID | None:
    value = bytes(cursor.take(16))
    return UUID(bytes=value) if any(value) else None


def _text(flexible: bool, nullable: bool) -> Reader:
    def read(cursor: Cursor) -> str | None:
        value = cursor.text(compact=flexible)
        if value is None and not nullable:
            raise MalformedFrame("a string is null that must not be")
        return value

    return read


def _bytes(flexible: bool, nullable: bool) -> Reader:
    def read(cursor: Cursor) -> bytes | None:
        length = cursor.length(compact=flexible, short=False)
        if length == -1:
            if nullable:
                return None
            raise MalformedFrame("bytes are null that must not be")
        return bytes(cursor.take(length))

    return read
