"""Decodes request bodies into kio's entities, with every length checked before anything is
allocated.

kio's own reader reserves room for as many elements as an array's length field says, so that five
bytes from a stranger would end the process. This one is built from the same classes, but takes an
array's length only when the frame has at least a byte for each element, and stops at
`elements_max` elements in all. Tagged fields count as elements, the unknown ones too: a frame of
16 MiB has room for eight million of them. Strings have Kafka's limit in every encoding.
"""

import struct
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, cast
from uuid import UUID

from lakehead.broker.protocol.entity_fields import (
    NUMBERS,
    SCALARS,
    TEXT_SIZE_MAX,
    EntityField,
    entity_fields,
)
from lakehead.broker.protocol.errors import MalformedFrame

ELEMENTS_MAX = 20_000
"""Most array elements in one request, where the caller allows no more: what a request costs in time
and memory is bounded by this, not only by its bytes.
"""

_DURATION_MAX_MS = 86_399_999_913_600_000
"""A day less than Python's longest timedelta."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INT16, _INT32, _INT8 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">b")


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
        return self.numbers(layout)[0]

    def numbers(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Read numbers that follow each other."""
        position = self.position
        self.position = position + layout.size
        if self.position > self.end:
            raise MalformedFrame("a field goes past the end of the frame")
        return layout.unpack_from(self.data, position)

    def uvarint(self) -> int:
        """Read an unsigned variable-length number of at most 32 bits."""
        position = self.position
        if position < self.end and (byte := self.data[position]) < 0x80:  # as most are
            self.position = position + 1
            return byte
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

    def count(self, *, compact: bool) -> int:
        """Read the number of elements of an array; -1 for null."""
        number: int = self.uvarint() - 1 if compact else self.fixed(_INT32)
        if number < -1 or number > self.end - self.position:
            raise MalformedFrame(f"an array of {number} elements does not fit in the frame")
        if number > 0:
            self._count(number)
        return number

    def tags(self) -> int:
        """Read the number of tagged fields, which is 0 nearly always."""
        number = self.uvarint()
        if number:
            self._count(number)
        return number

    def _count(self, number: int) -> None:
        self._elements_left -= number
        if self._elements_left < 0:
            raise MalformedFrame(
                f"more than {self._elements_max} array elements and tagged fields in one request"
            )

    def text(self, *, compact: bool) -> str | None:
        """Read a nullable string."""
        length = self.uvarint() - 1 if compact else self.fixed(_INT16)
        if length == -1:
            return None
        if length > TEXT_SIZE_MAX:
            raise MalformedFrame(f"a string of {length} bytes; at most {TEXT_SIZE_MAX} are taken")
        start = self.position
        self.position = end = start + length
        if length < 0 or end > self.end:
            raise MalformedFrame(f"a string of {length} bytes does not fit in the frame")
        try:
            return str(self.data[start:end], "utf-8")
        except UnicodeDecodeError:
            raise MalformedFrame("a string is not UTF-8") from None

    def skip_tags(self) -> None:
        """Read past the tagged fields."""
        for _ in range(self.tags()):
            self.uvarint()
            self.take(self.uvarint())


Reader = Callable[[Cursor], Any]


def decode(
    cls: type[Any], data: memoryview, position: int = 0, elements_max: int = ELEMENTS_MAX
) -> Any:
    """Return the entity of kio's class `cls` at `position`. Raises MalformedFrame.

    Bytes that are left over are ignored, as Kafka does.
    """
    reader = _entity_reader(cast(Any, cls))
    try:
        return reader(Cursor(data, position, elements_max))
    except (ValueError, OverflowError, RecursionError) as error:
        raise MalformedFrame(str(error)) from error


@cache
def _entity_reader(cls: Any) -> Reader:
    flexible: bool = cls.__flexible__
    fields = entity_fields(cls)
    plain = [field for field in fields if field.tag is None]
    tagged = [field for field in fields if field.tag is not None]
    parts = _parts(plain, flexible)
    defaults = [field.default for field in tagged]
    tags = {
        field.tag: (len(plain) + place, _field_reader(field, flexible))
        for place, field in enumerate(tagged)
    }
    # The classes are frozen, and their __init__ sets each slot by a detour.
    setters = [getattr(cls, field.name).__set__ for field in (*plain, *tagged)]

    def read(cursor: Cursor) -> Any:
        values: list[Any] = []
        for layout, reader in parts:
            if layout is None:
                values.append(reader(cursor))
            else:
                values += cursor.numbers(layout)
        if flexible:
            values += defaults
            if count := cursor.tags():
                _read_tags(cursor, count, tags, values)
        entity = object.__new__(cls)
        for set_slot, value in zip(setters, values, strict=True):
            set_slot(entity, value)
        return entity

    return read


def _parts(
    fields: Sequence[EntityField], flexible: bool
) -> list[tuple[struct.Struct | None, Reader]]:
    """Return how to read these fields: numbers that follow each other by a layout, any other field
    by a reader.
    """
    parts: list[tuple[struct.Struct | None, Reader]] = []
    letters = ""
    for field in fields:
        if field.number:
            letters += field.number
            continue
        if letters:
            parts.append((struct.Struct(">" + letters), _nothing))
            letters = ""
        parts.append((None, _field_reader(field, flexible)))
    if letters:
        parts.append((struct.Struct(">" + letters), _nothing))
    return parts


def _nothing(_: Cursor) -> None:
    """Numbers have no reader."""


def _read_tags(
    cursor: Cursor, count: int, tags: dict[int | None, tuple[int, Reader]], values: list[Any]
) -> None:
    for _ in range(count):
        tag, size = cursor.uvarint(), cursor.uvarint()
        begin, whole = cursor.position, cursor.end
        cursor.take(size)
        if tag in tags:
            place, reader = tags[tag]
            cursor.position, cursor.end = begin, begin + size
            values[place] = reader(cursor)
            cursor.position, cursor.end = begin + size, whole


def _field_reader(field: EntityField, flexible: bool) -> Reader:
    if field.is_array:
        entity = field.entity
        element = (
            _primitive(cast(str, field.kind), flexible, False)
            if entity is None
            else _entity_reader(cast(Any, entity))
        )
        return _array(element, flexible, field.is_nullable)
    if field.entity is None:
        return _primitive(cast(str, field.kind), flexible, field.is_nullable)
    reader = _entity_reader(cast(Any, field.entity))
    return _nullable_entity(reader) if field.is_nullable and field.tag is None else reader


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
    layout = SCALARS[kind] if kind in SCALARS else struct.Struct(">" + NUMBERS[kind])
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
        length = cursor.uvarint() - 1 if flexible else cursor.fixed(_INT32)
        if length == -1:
            if nullable:
                return None
            raise MalformedFrame("bytes are null that must not be")
        return bytes(cursor.take(length))

    return read
