"""The schema of JSON values, from a sample of them."""

import json
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from lakehead.lake.tables.ddl import check_names, type_name
from lakehead.storage.errors import SettingsError

SAMPLE_RECORDS = 10_000
"""Default number of values in a sample."""

_INT64 = range(-(1 << 63), 1 << 63)

Path = tuple[str, ...]


class NoFields(SettingsError):
    """No value of a sample is a JSON object with a field."""


def infer_schema(values: Iterable[bytes | None], *, by_most: bool = False) -> Any:
    """Return an Arrow schema that every value of the sample fits.

    Integers become BIGINT, or DOUBLE if any has a fraction or does not fit; text stays STRING (say
    DATE or TIMESTAMP in a schema of your own); a field that is null throughout becomes STRING;
    objects become STRUCT and arrays ARRAY; an object that is empty throughout is left out. Values
    that are null or not a JSON object are passed over. With `by_most` a field of several types has
    that of most of its values (of as many, the one seen first), and others do not fit.

    Raises SettingsError for a field of two types, naming it, and NoFields for a sample without any
    object.
    """
    objects: Iterable[dict[str, Any]] = _objects(values)
    if by_most:
        every = list(objects)
        kinds = _kinds_of_most(every)
        objects = (_agreeing(one, (), kinds) for one in every)
    merged: Any = None
    for one in objects:
        merged = _merge(merged, _shape(one), "")
    fields = _fields(merged) if merged is not None else []
    if not fields:
        raise NoFields(
            "no JSON object with fields among the sampled values: give the schema with --schema, "
            "or keep values that are not JSON as bytes with --value-format raw"
        )
    schema = pa.schema(fields)
    check_names(schema)
    return schema


def _objects(values: Iterable[bytes | None]) -> Iterator[dict[str, Any]]:
    for value in values:
        if value is None:
            continue
        try:
            decoded = json.loads(value)
        except (ValueError, RecursionError):
            continue
        if isinstance(decoded, dict):
            yield decoded


# A kind is a type of JSON's own: numbers of both types are one kind.


def _kind(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number"
    return type(value).__name__


def _inner(value: Any, path: Path) -> Iterator[tuple[Any, Path]]:
    if isinstance(value, dict):
        yield from ((inner, (*path, name)) for name, inner in value.items())
    elif isinstance(value, list):
        yield from ((item, (*path, "[]")) for item in value)


def _kinds_of_most(objects: Iterable[Any]) -> Mapping[Path, str]:
    counts: dict[Path, Counter[str]] = {}
    for one in objects:
        waiting: deque[tuple[Any, Path]] = deque([(one, ())])
        while waiting:
            value, path = waiting.popleft()
            if value is not None:
                counts.setdefault(path, Counter())[_kind(value)] += 1
                waiting += _inner(value, path)
    return {path: count.most_common(1)[0][0] for path, count in counts.items()}


def _agreeing(value: Any, path: Path, kinds: Mapping[Path, str]) -> Any:
    """The value with null for all in it that is not of its field's kind."""
    if value is None or _kind(value) != kinds[path]:
        return None
    if isinstance(value, dict):
        return {name: _agreeing(inner, (*path, name), kinds) for name, inner in value.items()}
    if isinstance(value, list):
        return [_agreeing(item, (*path, "[]"), kinds) for item in value]
    return value


def outline(value: bytes | None) -> Hashable:
    """Return what `infer_schema` goes by in one value: values with the same outline have the same
    schema, or are refused for the same reason. None: it is passed over.
    """
    for decoded in _objects([value]):
        return _outline(decoded)
    return None


def _outline(value: Any) -> Hashable:
    if isinstance(value, dict):
        return ("object", *((name, _outline(inner)) for name, inner in value.items()))
    if isinstance(value, list):
        return ("array", *dict.fromkeys(map(_outline, value)))
    if type(value) is int and value not in _INT64:
        return "float"
    return type(value).__name__


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
