"""The largest requests that an API's schema allows: one for each of its arrays, filled.

An array below another is filled within one element of that. Names and numbers of the elements are
all different, those above them are of what exists: a topic, a group.
"""

import dataclasses
import struct
import types
import typing
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from broker.protocol.api import schema
from broker.protocol.frame import encode_request

Path = tuple[str, ...]
_VALUES: dict[str, Any] = {
    "bool": False,
    "bytes": b"",
    "records": None,
    "float64": 0.0,
    "timedelta_i32": timedelta(milliseconds=1000),
    "timedelta_i64": timedelta(milliseconds=1000),
    "datetime_i64": datetime(2026, 1, 1, tzinfo=UTC),
}


def worst_requests(
    key: int, version: int, name: str, topic_id: UUID, count: int, size_max: int
) -> Iterator[tuple[str, bytes]]:
    """Yield what is filled, and the request, without its length: `count` elements at most, and
    `size_max` bytes. `name` is that of a topic and of a group, `topic_id` the topic's.
    """
    cls: Any = schema(key, version).request_class
    for path in [(), *_arrays(cls)]:
        number = count
        while True:
            request = _filled(cls, path, number, _Names(name, topic_id))
            try:
                frame = encode_request(key, version, 7, request)[4:]
            except (ValueError, TypeError, struct.error):  # a null that the version does not have
                break
            if len(frame) <= size_max:
                yield ".".join(path) or "all", frame
                break
            number //= 2


@dataclasses.dataclass(frozen=True, slots=True)
class _Names:
    name: str
    topic_id: UUID


def _arrays(cls: Any, above: Path = ()) -> Iterator[Path]:
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        hint = _bare(hints[field.name])
        if typing.get_origin(hint) is tuple:
            path = (*above, field.name)
            yield path
            inner = typing.get_args(hint)[0]
            if field.metadata.get("kafka_type") is None:
                yield from _arrays(inner, path)


def _filled(cls: Any, path: Path, count: int, names: _Names, number: int | None = None) -> Any:
    """Return an entity whose array at `path` has `count` elements; this is element `number`."""
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        hint, kind = _bare(hints[field.name]), field.metadata.get("kafka_type")
        if typing.get_origin(hint) is not tuple:
            if kind is not None:
                values[field.name] = _value(kind, field.name, names, number)
            elif _is_nullable(hints[field.name]):
                values[field.name] = None
            else:
                values[field.name] = _filled(hint, (), 0, names)
            continue
        if not path or path[0] != field.name:
            values[field.name] = ()
            if not path and number is None and _is_nullable(hints[field.name]):
                values[field.name] = None
            continue
        inner = typing.get_args(hint)[0]
        places: list[int | None] = list(range(count)) if len(path) == 1 else [None]
        values[field.name] = tuple(
            _filled(inner, path[1:], count, names, place)
            if kind is None
            else _value(kind, field.name, names, place)
            for place in places
        )
    return cls(**values)


def _value(kind: str, field: str, names: _Names, number: int | None) -> Any:
    if kind == "string":
        return names.name if number is None else f"{names.name}-{number}"
    if kind == "uuid":
        return names.topic_id if number is None else UUID(int=number + 1)
    if kind in _VALUES:
        return _VALUES[kind]
    if kind == "error_code":
        from kio.schema.errors import ErrorCode

        return ErrorCode.none
    if number is None:
        return 0
    if kind in {"int32", "int64"} and ("partition" in field or "index" in field):
        return number
    return number % 2 if kind in {"int8", "int16"} else min(number, 1)


def _bare(hint: Any) -> Any:
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        return next(arm for arm in typing.get_args(hint) if arm is not types.NoneType)
    return hint


def _is_nullable(hint: Any) -> bool:
    return types.NoneType in typing.get_args(hint)
