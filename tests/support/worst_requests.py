"""The largest requests that an API's schema allows: for each of its arrays, filled, and for each of
its fields of bytes.

An array below another is filled within one element of that, and those above are of what exists: a
topic, a group. The elements have names and numbers that are all different, or are all of what
exists ("same"), or have the longest names that there are ("long"). A field of bytes ("bytes") has
all that a request may hold, in one element and in a thousand.
"""

import dataclasses
import struct
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any
from uuid import UUID

from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.entity_fields import TEXT_SIZE_MAX
from lakehead.broker.protocol.frame import encode_request
from lakehead.broker.protocol.node_proof import NO_PROOF, NodeProof

Path = tuple[str, ...]
BYTES_ELEMENTS = (1, 1000)
_BYTES_RESERVE = 1024
"""Of a request that is full of bytes, for all else."""
_VALUES: dict[str, Any] = {
    "bool": False,
    "float64": 0.0,
    "timedelta_i32": timedelta(milliseconds=1000),
    "timedelta_i64": timedelta(milliseconds=1000),
    "datetime_i64": datetime(2026, 1, 1, tzinfo=UTC),
}


class Filling(Enum):
    """What the elements are like."""

    DIFFERENT = ""
    SAME = " (same)"
    LONG = " (long)"
    BYTES = " (bytes)"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most array elements of a request, and bytes."""

    count: int
    size: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What exists: a topic and a group of this name, the topic's id; `fixed` has the values of
    fields that decide how far a request comes, by their names.
    """

    name: str
    topic_id: UUID
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    filling: Filling = Filling.DIFFERENT
    blob: bytes = b""


def worst_requests(
    key: int,
    version: int,
    names: Names,
    limits: Limits,
    fillings: Sequence[Filling] = (Filling.DIFFERENT,),
    proof: NodeProof = NO_PROOF,
) -> Iterator[tuple[str, bytes]]:
    """Yield what is filled, and the request, without its length."""
    cls: Any = schema(key, version).request_class
    for path in [(), *_arrays(cls)]:
        for filling in fillings:
            if not path and filling in {Filling.SAME, Filling.LONG}:
                continue
            label = (".".join(path) or "all") + filling.value
            for number in _numbers(cls, path, filling, limits):
                blob = bytes((limits.size - _BYTES_RESERVE) // number - _BYTES_RESERVE // 8)
                like = dataclasses.replace(
                    names, filling=filling, blob=blob if filling is Filling.BYTES else b""
                )
                frame = _largest(key, version, path, number, like, limits, proof)
                if frame is not None:
                    yield label, frame


def _numbers(cls: Any, path: Path, filling: Filling, limits: Limits) -> Sequence[int]:
    """How many elements are tried at first."""
    if filling is Filling.LONG:
        return (min(limits.count, limits.size // TEXT_SIZE_MAX),)
    if filling is not Filling.BYTES:
        return (limits.count,)
    if not _has_bytes(cls, path):
        return ()
    return tuple(min(one, limits.count) for one in BYTES_ELEMENTS) if path else (1,)


def _largest(
    key: int,
    version: int,
    path: Path,
    count: int,
    names: Names,
    limits: Limits,
    proof: NodeProof,
) -> bytes | None:
    """Return the request with as many elements as its size allows; None: there is no such one."""
    cls: Any = schema(key, version).request_class
    while count:
        request = _filled(cls, path, count, names)
        try:
            frame = encode_request(key, version, 7, request, proof)[4:]
        except (ValueError, TypeError, struct.error):  # a null that the version does not have
            return None
        if len(frame) <= limits.size:
            return frame
        count = min(count - 1, count * limits.size // len(frame))
    return None


def _has_bytes(cls: Any, path: Path) -> bool:
    """Return true if the elements of the array at `path`, or the request itself, have a field of
    bytes.
    """
    hints = typing.get_type_hints(cls)
    if path:
        inner = typing.get_args(_bare(hints[path[0]]))[0]
        return dataclasses.is_dataclass(inner) and _has_bytes(inner, path[1:])
    kinds = {field.metadata.get("kafka_type") for field in dataclasses.fields(cls)}
    return bool(kinds & {"bytes", "records"})


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


def _filled(cls: Any, path: Path, count: int, names: Names, number: int | None = None) -> Any:
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
        places: list[int | None] = [None]
        if len(path) == 1:
            is_same = names.filling is Filling.SAME
            places = [None] * count if is_same else list(range(count))
        values[field.name] = tuple(
            _filled(inner, path[1:], count, names, place)
            if kind is None
            else _value(kind, field.name, names, place)
            for place in places
        )
    return cls(**values)


def _value(kind: str, field: str, names: Names, number: int | None) -> Any:
    if field in names.fixed:
        return names.fixed[field]
    if kind in {"bytes", "records"}:
        return names.blob or (None if kind == "records" else b"")
    if kind == "string":
        text = names.name if number is None else f"{names.name}-{number}"
        is_long = names.filling is Filling.LONG and number is not None
        return text.ljust(TEXT_SIZE_MAX, "x") if is_long else text
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
