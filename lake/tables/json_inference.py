"""The schema of JSON values, from a sample of them."""

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from lake.tables.ddl import check_names, type_name
from storage.errors import SettingsError

SAMPLE_RECORDS = 10_000
"""How many values are looked at, unless told otherwise."""

_INT64 = range(-(1 << 63), 1 << 63)


class NoFields(SettingsError):
    """No value of a sample is a JSON object with a field."""


def infer_schema(values: Iterable[bytes | None]) -> Any:
    """Return an Arrow schema that every value of the sample fits.

    Integers become BIGINT, or DOUBLE if any has a fraction or does not fit; text stays STRING (say
    DATE or TIMESTAMP in a schema of your own); a field that is null throughout becomes STRING;
    objects become STRUCT and arrays ARRAY; an object that is empty throughout is left out. Values
    that are null or not a JSON object are passed over.

    Raises SettingsError for a field of two types, naming it, and NoFields for a sample without any
    object.
    """
    merged: Any = None
    for value in values:
        if value is None:
            continue
        try:
            decoded = json.loads(value)
        except (ValueError, RecursionError):
            continue
        if isinstance(decoded, dict):
            merged = _merge(merged, _shape(decoded), "")
    fields = _fields(merged) if merged is not None else []
    if not fields:
        raise NoFields(
            "no JSON object with fields among the sampled values: give the schema with --schema"
        )
    schema = pa.schema(fields)
    check_names(schema)
    return schema


# A shape is None (only null seen), an Arrow type, a dict (object) or a list of one shape (array).


def _shape(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if value in _INT64 else pa.float64()
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, str):
        return pa.string()
    if isinstance(value, list):
        merged: Any = None
        for item in value:
            merged = _merge(merged, _shape(item), "[]")
        return [merged]
    return {name: _shape(item) for name, item in value.items()}


def _merge(left: Any, right: Any, path: str) -> Any:
    if left is None or right is None:
        return right if left is None else left
    if isinstance(left, dict) and isinstance(right, dict):
        for name, shape in right.items():
            left[name] = _merge(left.get(name), shape, f"{path}.{name}" if path else name)
        return left
    if isinstance(left, list) and isinstance(right, list):
        return [_merge(left[0], right[0], f"{path}[]")]
    if left == right:
        return left
    if {left, right} == {pa.int64(), pa.float64()} if _is_plain(left, right) else False:
        return pa.float64()
    raise SettingsError(
        f"field {path or 'value'} of the sampled values is both {_name(left)} and {_name(right)}: "
        "give the schema with --schema"
    )


def _is_plain(*shapes: Any) -> bool:
    return not any(isinstance(shape, dict | list) for shape in shapes)


def _name(shape: Any) -> str:
    if isinstance(shape, dict):
        return "an object"
    return "an array" if isinstance(shape, list) else type_name(shape)


def _fields(shape: dict[str, Any]) -> list[Any]:
    kinds = ((name, _type(inner)) for name, inner in shape.items())
    return [pa.field(name, kind) for name, kind in kinds if kind is not None]


def _type(shape: Any) -> Any:
    """The Arrow type of a shape, None for an object without fields."""
    if shape is None:
        return pa.string()
    if isinstance(shape, dict):
        fields = _fields(shape)
        return pa.struct(fields) if fields else None
    if isinstance(shape, list):
        inner = _type(shape[0])
        return None if inner is None else pa.list_(inner)
    return shape
