"""Avro schemas as tables read them: the columns that their values make. Pure.

Types become what Spark's `from_avro` makes of them: an enum is its symbol, a union of several types
a struct of `member0`, `member1`, ..., of which one is set; a logical type that a table cannot have
is the type below it. Debezium's own names for logical types count as those of Avro.

A node takes no schema here that the lake would not read: both read schemas by this module.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

from lakehead.lake.declaration.avro_schema import MalformedAvro, is_value, load_avro, read_avro
from lakehead.lake.declaration.column_types import (
    ArrayType,
    Column,
    ColumnType,
    DecimalType,
    MapType,
    SimpleType,
    StructType,
    check_column_names,
)
from lakehead.storage.errors import SettingsError

TypeNode: TypeAlias = Any
"""A type of a parsed schema: a name, an object or a list."""

SINGLE_VALUE = "value"
"""The column of values that are not records."""

_SIMPLE = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bytes": "BINARY",
    "string": "STRING",
    "fixed": "BINARY",
    "enum": "STRING",
}
_WIDER = {
    frozenset(("INT", "BIGINT")): "BIGINT",
    frozenset(("FLOAT", "DOUBLE")): "DOUBLE",
}
_INSTANTS = ("timestamp-millis", "timestamp-micros", "timestamp-nanos")
_LOGICAL_TYPES = {
    "int": ("date",),
    "long": (*_INSTANTS, *(f"local-{instant}" for instant in _INSTANTS)),
    "bytes": ("decimal",),
    "fixed": ("decimal", "uuid"),
}
_DEBEZIUM_TYPES = {
    "io.debezium.time.Date": "date",
    "io.debezium.time.Timestamp": "timestamp-millis",
    "io.debezium.time.MicroTimestamp": "timestamp-micros",
    "io.debezium.time.NanoTimestamp": "timestamp-nanos",
}
_BARE_NAME = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)
_PRECISION_MAX = 38
_UUID_SIZE = 16
_FIELDS_MAX = 10_000
_REASON_MAX = 200


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A parsed schema and the named types in it."""

    root: TypeNode
    named: Mapping[str, Any]

    def resolve(self, node: TypeNode) -> Any:
        """Return a union as a list, any other type as an object with its `type`, and with a
        `logicalType` if it is one that a table can have.
        """
        if isinstance(node, list):
            return node
        if isinstance(node, str):
            if node not in self.named:
                return {"type": node}
            node = self.named[node]
        return _with_logical_type(node)

    def fields(self) -> list[dict[str, Any]]:
        """The fields of the record, or the one field of a value that is none."""
        record = self.record()
        if record is not None:
            return list(record["fields"])
        return [{"name": SINGLE_VALUE, "type": self.root}]

    def record(self) -> Any:
        """The record that values are (or null), None if they are something else."""
        node = self.resolve(self.root)
        if isinstance(node, list):
            others = [each for each in map(self.resolve, node) if not is_null(each)]
            node = others[0] if len(others) == 1 else None
        return node if node is not None and is_record(node) else None


def read_schema(text: str, references: Sequence[str] = ()) -> AvroSchema:
    """Parse a schema that may use the types of `references`, each after those it uses itself.

    Raises SettingsError that says why.
    """
    try:
        model = read_avro(partial(_loaded, text), [partial(_loaded, each) for each in references])
    except MalformedAvro as error:
        raise SettingsError(f"no Avro schema: {str(error)[:_REASON_MAX]}") from None
    return AvroSchema(model.root, model.named)


def _loaded(text: str) -> Any:
    """A schema's JSON. Some tools write the name of a type bare, and a type within its type."""
    bare = text.strip()
    return bare if _BARE_NAME.fullmatch(bare) else _unwrapped(load_avro(text))


def _unwrapped(node: Any) -> Any:
    """A schema with `{"type": "int"}` for `{"type": {"type": "int"}}`."""
    if isinstance(node, list):
        return [_unwrapped(each) for each in node]
    if not isinstance(node, dict):
        return node
    if isinstance(node.get("type"), dict | list) and "name" not in node:
        return _unwrapped(node["type"])
    return {key: each if key == "default" else _unwrapped(each) for key, each in node.items()}


def _with_logical_type(node: Any) -> Any:
    """A type with the attributes that Avro does not define beside its own, and its logical type
    only where that is one.
    """
    found: dict[str, Any] = {**node.get("properties", {}), **node}
    kind, name = node["type"], found.get("connect.name")
    logical = _DEBEZIUM_TYPES.get(name) if isinstance(name, str) else None
    if logical is None:
        logical = found.pop("logicalType", None)
    if logical not in _LOGICAL_TYPES.get(kind, ()):
        return found
    if logical == "uuid" and node["size"] != _UUID_SIZE:
        return found
    if logical == "decimal":
        precision, scale = found.get("precision"), found.setdefault("scale", 0)
        if type(precision) is not int or type(scale) is not int:
            return found
        if not 0 <= scale <= precision <= _PRECISION_MAX or precision == 0:
            return found
    return found | {"logicalType": logical}


def column_types(schema: AvroSchema) -> dict[str, ColumnType]:
    """Return the columns of a schema's values; a field that is always null has none.

    Raises SettingsError for types that cannot be columns.
    """
    record = schema.record()
    above = () if record is None else (record["name"],)
    try:
        found = _Columns(schema).fields(schema.fields(), above, ())
    except RecursionError:
        raise SettingsError("types nested too deep") from None
    return {column.name: column.type for column in found}


def is_null(node: Any) -> bool:
    """Return true if a resolved type is null."""
    return not isinstance(node, list) and node["type"] == "null"


def is_record(node: Any) -> bool:
    """Return true if a resolved type is a record."""
    return not isinstance(node, list) and node["type"] in ("record", "error")


def scalar_type(node: Any) -> ColumnType:
    """The column type of a resolved type without parts. Raises SettingsError."""
    kind, logical = node["type"], node.get("logicalType", "")
    if logical == "decimal":
        return DecimalType(node["precision"], node["scale"])
    if kind == "fixed" and node["size"] < 1:
        raise SettingsError(f"type {node['name']} has no bytes")
    if logical == "uuid":
        return SimpleType("STRING")
    if logical == "date":
        return SimpleType("DATE")
    return SimpleType("TIMESTAMP" if logical else _SIMPLE[kind])


def wider_type(nodes: Sequence[Any]) -> ColumnType | None:
    """The one type that a union of these resolved types is, None where it is a struct of members
    (or one type alone).
    """
    if len(nodes) != 2 or any(isinstance(n, list) or n["type"] not in _SIMPLE for n in nodes):
        return None
    kinds = [scalar_type(node) for node in nodes]
    wide = _WIDER.get(frozenset(k.name for k in kinds if isinstance(k, SimpleType)))
    return None if wide is None else SimpleType(wide)


class _Columns:
    """Walks a schema down to its scalars, refusing what never ends. A path leads to a field."""

    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema
        self._left = _FIELDS_MAX

    def fields(
        self, fields: list[dict[str, Any]], above: tuple[str, ...], path: tuple[str, ...]
    ) -> tuple[Column, ...]:
        found = []
        for each in fields:
            kind = self._kind(each["type"], above, (*path, each["name"]))
            if kind is not None:
                found.append(Column(each["name"], kind))
        check_column_names(column.name for column in found)
        return tuple(found)

    def _kind(
        self, node: TypeNode, above: tuple[str, ...], path: tuple[str, ...]
    ) -> ColumnType | None:
        """The type of the column, None for what is always null."""
        self._left -= 1
        if self._left < 0:
            raise SettingsError(f"more than {_FIELDS_MAX} fields")
        node = self._schema.resolve(node)
        if isinstance(node, list):
            return self._union(node, above, path)
        if is_null(node):
            return None
        if is_record(node):
            if node["name"] in above:
                raise SettingsError(
                    f"field {'.'.join(path)} is a {node['name']} inside a {node['name']}: a type "
                    "that contains itself has no columns"
                )
            inner = self.fields(node["fields"], (*above, node["name"]), path)
            if not inner:
                raise SettingsError(f"field {'.'.join(path)} is a record without fields")
            return StructType(inner)
        if node["type"] == "array":
            return ArrayType(self._item(node["items"], above, path))
        if node["type"] == "map":
            return MapType(SimpleType("STRING"), self._item(node["values"], above, path))
        return scalar_type(node)

    def _item(self, node: TypeNode, above: tuple[str, ...], path: tuple[str, ...]) -> ColumnType:
        kind = self._kind(node, above, path)
        if kind is None:
            raise SettingsError(f"field {'.'.join(path)} is a list or map of nulls")
        return kind

    def _union(
        self, branches: list[TypeNode], above: tuple[str, ...], path: tuple[str, ...]
    ) -> ColumnType | None:
        held = (self._kind(each, above, path) for each in branches)
        kinds = [kind for kind in held if kind is not None]
        if len(kinds) < 2:
            return kinds[0] if kinds else None
        plain = [each for each in map(self._schema.resolve, branches) if not is_null(each)]
        wide = wider_type(plain)
        if wide is not None:
            return wide
        return StructType(tuple(Column(f"member{i}", kind) for i, kind in enumerate(kinds)))


_EXACT = Context(prec=1000)
"""Python rounds decimals to 28 digits by default."""
_LONG = 1 << 63


def default_value(schema: AvroSchema, field: dict[str, Any]) -> Any:
    """Return the default of a field, which has one, as Python holds a value of its column: an
    instant as microseconds since 1970, a date as days, a map as pairs.

    Raises SettingsError if it is not a value of the field's column.
    """
    try:
        return _value(schema, field["type"], field["default"])
    except (LookupError, TypeError, ArithmeticError, ValueError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise SettingsError(f"the default of field {field['name']}: {reason}") from None


def check_defaults(schema: AvroSchema) -> None:
    """Raise SettingsError if a default of a field, however deep, is not a value of its column."""
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
