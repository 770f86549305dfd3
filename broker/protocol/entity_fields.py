"""The fields of kio's entities, as decoding and encoding see them."""

import dataclasses
import struct
import types
import typing
from functools import cache
from typing import Any, NamedTuple

TEXT_SIZE_MAX = 0x7FFF
"""Longest string, in bytes (Kafka's protocol guide, and its generated readers)."""
NUMBERS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float64": "d",
}
"""Primitives whose values are Python's numbers, by the letter of `struct`."""
SCALARS = {
    "error_code": struct.Struct(">h"),
    "timedelta_i32": struct.Struct(">i"),
    "timedelta_i64": struct.Struct(">q"),
    "datetime_i64": struct.Struct(">q"),
}
"""Primitives of a fixed size whose values are others."""


class EntityField(NamedTuple):
    """A field: `kind` is kio's name of a primitive, None for an entity of class `entity`. Of an
    array they are those of its elements, and `is_nullable` is of the array. `tag` is None for a
    field that is always there; others have a default.
    """

    name: str
    kind: str | None
    entity: type[Any] | None
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: Any

    @property
    def number(self) -> str:
        """The letter of `struct` of a number that is always there; empty for any other field."""
        is_plain = self.tag is None and not self.is_array and not self.is_nullable
        return NUMBERS.get(self.kind or "", "") if is_plain else ""


@cache
def entity_fields(cls: type[Any]) -> tuple[EntityField, ...]:
    """Return the fields of a class of kio, in their order."""
    hints = typing.get_type_hints(cls)
    return tuple(_field(field, hints[field.name]) for field in dataclasses.fields(cls))


def _field(field: dataclasses.Field[Any], hint: Any) -> EntityField:
    is_nullable = False
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        rest = [arm for arm in typing.get_args(hint) if arm is not types.NoneType]
        assert len(rest) == 1
        is_nullable, hint = True, rest[0]
    is_array = typing.get_origin(hint) is tuple
    element = typing.get_args(hint)[0] if is_array else hint
    kind = field.metadata.get("kafka_type")
    return EntityField(
        name=field.name,
        kind=kind,
        entity=element if kind is None else None,
        is_array=is_array,
        is_nullable=is_nullable,
        tag=field.metadata.get("tag"),
        default=field.default,
    )
