"""Defaults of Avro fields (Avro 1.12, "Schema Record"): JSON to the values of Arrow columns."""

from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

from lake.tables.values.avro_schema import AvroSchema, is_null, is_record
from lake.tables.values.decoder import UnusableSchema

_EXACT = Context(prec=1000)
"""Python rounds decimals to 28 digits unless told otherwise."""


def default_value(schema: AvroSchema, field: dict[str, Any], kind: Any) -> Any:
    """Return the default of a reader's field as Python holds a value of the Arrow type `kind`.

    Raises UnusableSchema if it is no value of the field's type.
    """
    try:
        value = _value(schema, field["type"], field["default"])
        pa.scalar(value, kind)
    except (pa.ArrowException, LookupError, TypeError, ValueError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise UnusableSchema(f"the default of field {field['name']}: {reason}") from None
    return value


def _value(schema: AvroSchema, node: Any, default: Any) -> Any:
    node = schema.resolve(node)
    if isinstance(node, list):
        if default is None:
            return None
        # Of the first branch, says the specification; the first that it fits, say libraries.
        return _value(schema, next(n for n in map(schema.resolve, node) if not is_null(n)), default)
    if is_record(node):
        given = {field["name"]: field.get("default") for field in node["fields"]} | default
        types = {field["name"]: field["type"] for field in node["fields"]}
        return {name: _value(schema, kind, given[name]) for name, kind in types.items()}
    if node["type"] == "array":
        return [_value(schema, node["items"], each) for each in default]
    if node["type"] == "map":
        return [(key, _value(schema, node["values"], each)) for key, each in default.items()]
    return _scalar(node, default)


def _scalar(node: Any, default: Any) -> Any:
    logical = node.get("logicalType", "")
    if node["type"] in ("bytes", "fixed"):
        content = default.encode("latin-1")
        if logical == "decimal":
            number = int.from_bytes(content, "big", signed=True)
            return Decimal(number).scaleb(-node.get("scale", 0), _EXACT)
        return content
    if logical.endswith("timestamp-millis"):
        return default * 1000
    if logical.endswith("timestamp-nanos"):
        return default // 1000
    return default
