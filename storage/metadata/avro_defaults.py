"""Defaults of Avro's fields: which ones Avro's Java library takes (1.12, `Schema.isValidDefault`).

A default of a union may be of any of its branches, text stands for numbers of float and double, and
text of any content for bytes, fixed and enums.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

_NUMBER = re.compile(
    r"[\x00-\x20]*([+-]?(?:NaN|Infinity|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?))[fFdD]?[\x00-\x20]*"
)
_INT, _LONG = 1 << 31, 1 << 63


def read_default(field: Mapping[str, Any], given: Any) -> Any:
    """Return a field's default; text that stands for a float or a double is a number.

    Raises ValueError for text that is not a number, and for numbers that JSON does not have.
    """
    node = field["type"]
    kind = node["type"] if isinstance(node, dict) else node
    if kind not in ("float", "double") or not isinstance(given, str):
        return given
    found = _NUMBER.fullmatch(given)
    value = float(found[1]) if found else math.nan
    if not math.isfinite(value):
        raise ValueError(f"default of field {field['name']} is not a number: {given[:100]!r}")
    return value


def check_default(field: Mapping[str, Any], named: Mapping[str, Any]) -> None:
    """Raise ValueError if the default of a field is not a value of its type.

    A named type that is defined further on takes any object until then.
    """
    if not is_value(field["type"], field["default"], named):
        raise ValueError(f"default of field {field['name']} is not a value of its type")


def is_value(node: Any, value: Any, named: Mapping[str, Any]) -> bool:
    """Whether a default may be of a type, which is a type of an `AvroModel` with its `named`."""
    if isinstance(node, list):
        return any(is_value(each, value, named) for each in node)
    kind = node
    if isinstance(node, dict):
        kind = node["type"]
    elif node in named:
        node = named[node]
        kind = node["type"]
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            limit = _INT if kind == "int" else _LONG
            return type(value) is int and -limit <= value < limit
        case "float" | "double":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "string" | "bytes" | "enum" | "fixed":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list) and all(
                is_value(node["items"], each, named) for each in value
            )
        case "map":
            return isinstance(value, dict) and all(
                is_value(node["values"], each, named) for each in value.values()
            )
        case _:
            return isinstance(value, dict) and _is_record(node, value, named)


def _is_record(node: Any, value: Mapping[str, Any], named: Mapping[str, Any]) -> bool:
    if isinstance(node, str):
        return True  # defined further on
    if "fields" not in node:
        raise ValueError(f"a default of record {node['name']} inside itself")
    for field in node["fields"]:
        if field["name"] in value:
            given = value[field["name"]]
        elif "default" in field:
            given = field["default"]
        else:
            return False
        if not is_value(field["type"], given, named):
            return False
    return True
