"""Hypothesis makes messages of any of kio's classes: every field, nullable ones null at times."""

import dataclasses
import types
import typing
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

ELEMENTS_MAX = 3
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECONDS_MAX = 10**13  # the year 2286; Python's dates end before Kafka's


def _signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": _signed(8),
    "int16": _signed(16),
    "int32": _signed(32),
    "int64": _signed(64),
    "uint8": st.integers(0, 2**8 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "float64": st.floats(allow_nan=False),
    # 150 letters: a length of two bytes in the compact encoding
    "string": st.text(max_size=12) | st.just("long" * 40),
    "bytes": st.binary(max_size=12) | st.just(b"long" * 40),
    "records": st.binary(max_size=12),
    "uuid": st.uuids().filter(lambda value: value.int != 0),
    "error_code": st.sampled_from(list(ErrorCode)),
    "timedelta_i32": _signed(32).map(lambda number: timedelta(milliseconds=number)),
    "timedelta_i64": st.integers(-_MILLISECONDS_MAX, _MILLISECONDS_MAX).map(
        lambda number: timedelta(milliseconds=number)
    ),
    "datetime_i64": st.integers(0, _MILLISECONDS_MAX).map(
        lambda number: _EPOCH + timedelta(milliseconds=number)
    ),
}


@cache
def messages(cls: Any) -> st.SearchStrategy[Any]:
    """Messages of one of kio's classes, at any nesting level."""
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    return st.builds(cls, **{field.name: _values(field, hints[field.name]) for field in fields})


def _values(field: dataclasses.Field[Any], hint: Any) -> st.SearchStrategy[Any]:
    is_nullable = False
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        is_nullable = True
        (hint,) = (arm for arm in typing.get_args(hint) if arm is not types.NoneType)
    kind = field.metadata.get("kafka_type")
    if typing.get_origin(hint) is tuple:
        inner: Any = typing.get_args(hint)[0]
        element = messages(inner) if kind is None else _PRIMITIVES[kind]
        values: st.SearchStrategy[Any] = st.lists(element, max_size=ELEMENTS_MAX).map(tuple)
    else:
        values = messages(hint) if kind is None else _PRIMITIVES[kind]
    # a tagged field that is a struct is left out by its default, it has no null of its own
    return st.none() | values if is_nullable else values
