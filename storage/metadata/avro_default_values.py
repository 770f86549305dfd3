"""Defaults of Avro fields (Avro 1.12, "Schema Record"): JSON to values as columns hold them."""

from decimal import Context, Decimal
from typing import Any
from uuid import UUID

from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.avro_defaults import is_value
from lakehead.storage.metadata.avro_types import AvroSchema, is_null, is_record, wider_type

_EXACT = Context(prec=1000)
"""Python rounds decimals to 28 digits unless told otherwise."""
_LONG = 1 << 63


def default_value(schema: AvroSchema, field: dict[str, Any]) -> Any:
    """Return the default of a field, which has one, as Python holds a value of its column: an
    instant as microseconds since 1970, a date as days, a map as pairs.

    Raises SettingsError if it is no value of the field's column.
    """
    try:
        return _value(schema, field["type"], field["default"])
    except (LookupError, TypeError, ArithmeticError, ValueError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise SettingsError(f"the default of field {field['name']}: {reason}") from None


def check_defaults(schema: AvroSchema) -> None:
    """Raise SettingsError if a default of a field, however deep, is no value of its column."""
    for node in schema.named.values():
        for field in node.get("fields", ()):
            if "default" in field:
                default_value(schema, field)


def _value(schema: AvroSchema, node: Any, default: Any) -> Any:
    if isinstance(node, list):
        return _of_union(schema, node, default)
    node = schema.resolve(node)
    if is_record(node):
        given = {field["name"]: field.get("default") for field in node["fields"]} | default
        types = {field["name"]: field["type"] for field in node["fields"]}
        return {name: _value(schema, kind, given[name]) for name, kind in types.items()}
    if node["type"] == "array":
        return [_value(schema, node["items"], each) for each in default]
    if node["type"] == "map":
        return [(key, _value(schema, node["values"], each)) for key, each in default.items()]
    return _scalar(node, default)


def _of_union(schema: AvroSchema, branches: list[Any], default: Any) -> Any:
    """Of the first branch that it fits, as libraries have it; the specification says: the first."""
    if default is None:
        return None
    others = [each for each in branches if not is_null(schema.resolve(each))]
    place = next((i for i, n in enumerate(others) if is_value(n, default, schema.named)), -1)
    if place < 0:
        raise ValueError("it fits no branch of the union")
    value = _value(schema, others[place], default)
    if len(others) == 1 or wider_type([schema.resolve(each) for each in others]) is not None:
        return value
    return {f"member{place}": value}


def _scalar(node: Any, default: Any) -> Any:
    kind, logical = node["type"], node.get("logicalType", "")
    if kind in ("bytes", "fixed"):
        content = default.encode("latin-1")
        if logical == "uuid":
            return str(UUID(bytes=content))
        return _decimal(node, content) if logical == "decimal" else content
    if kind in ("string", "enum"):
        default.encode()  # half a surrogate pair is not text
        return default
    if kind in ("float", "double"):
        return float(default)
    if logical.endswith("timestamp-millis"):
        if not -_LONG <= default * 1000 < _LONG:
            raise ValueError(f"{default} ms is beyond what a TIMESTAMP holds")
        return default * 1000
    return default // 1000 if logical.endswith("timestamp-nanos") else default


def _decimal(node: Any, content: bytes) -> Decimal:
    number = int.from_bytes(content, "big", signed=True)
    if abs(number) >= 10 ** node["precision"]:
        raise ValueError(f"it has more than {node['precision']} digits")
    return Decimal(number).scaleb(-node["scale"], _EXACT)
