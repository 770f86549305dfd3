"""Avro schemas: read, resolved, and as Arrow columns.

fastavro parses and checks them. Types become what Spark's `from_avro` makes of them: an enum is
its symbol, a union of several types a struct of `member0`, `member1`, ..., of which one is set; a
logical type that a table cannot have is the type below it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from fastavro.schema import SchemaParseException, parse_schema

from lake.tables.ddl import TIMESTAMP, check_names
from lake.tables.values.decoder import UnusableSchema
from storage.errors import SettingsError

TypeNode = Any
"""A type of a parsed schema: a name, an object or a list."""

SINGLE_VALUE = "value"
"""The column of values that are no records."""

_SIMPLE = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_INSTANTS = ("timestamp-millis", "timestamp-micros", "timestamp-nanos")
_DEPTH_MAX = 100
_DEBEZIUM_TYPES = {
    "io.debezium.time.Date": "date",
    "io.debezium.time.Timestamp": "timestamp-millis",
    "io.debezium.time.MicroTimestamp": "timestamp-micros",
    "io.debezium.time.NanoTimestamp": "timestamp-nanos",
}


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A parsed schema and the named types in it."""

    root: TypeNode
    named: Mapping[str, Any]

    def resolve(self, node: TypeNode) -> Any:
        """Return a union as a list, any other type as an object with its `type`."""
        depth = 0
        while True:
            depth += 1
            if depth > _DEPTH_MAX:
                raise UnusableSchema("types nested too deep")
            if isinstance(node, list):
                return node
            if isinstance(node, str):
                if node in self.named:
                    node = self.named[node]
                else:
                    return {"type": node}
            elif isinstance(node["type"], dict | list) or node["type"] in self.named:
                node = node["type"]  # {"type": {"type": ...}}
            else:
                return node

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
            node = others[0] if len(others) == 1 and not isinstance(others[0], list) else None
        return node if node is not None and is_record(node) else None


def read_schema(text: str, references: Sequence[str] = ()) -> AvroSchema:
    """Parse a schema that may use the types of `references`, each after those it uses itself.

    Raises UnusableSchema that says why.
    """
    named: dict[str, Any] = {}
    try:
        for reference in references:
            parse_schema(_with_logical_types(json.loads(reference)), named)
        try:
            decoded = json.loads(text)
        except ValueError:
            decoded = text.strip()  # a bare name, "string"
        return AvroSchema(parse_schema(_with_logical_types(decoded), named), named)
    except (SchemaParseException, LookupError, ValueError, TypeError, AttributeError) as error:
        raise UnusableSchema(f"no Avro schema: {' '.join(str(error).split())[:200]}") from None
    except RecursionError:
        raise UnusableSchema("no Avro schema: nested too deep") from None


def _with_logical_types(node: Any) -> Any:
    """A schema with Avro's logical types in place of Debezium's own names for them."""
    if isinstance(node, list):
        return [_with_logical_types(each) for each in node]
    if not isinstance(node, dict):
        return node
    walked = {
        key: value if key == "default" else _with_logical_types(value)
        for key, value in node.items()
    }
    known = _DEBEZIUM_TYPES.get(str(node.get("connect.name")))
    return walked if known is None else {**walked, "logicalType": known}


def avro_columns(schema: AvroSchema) -> Any:
    """Return the Arrow schema of a schema's values. Raises UnusableSchema."""
    record = schema.record()
    above = () if record is None else (record["name"],)
    found = pa.schema(_Columns(schema).fields(schema.fields(), above, ()))
    try:
        check_names(found)
    except SettingsError as error:
        raise UnusableSchema(str(error)) from None
    return found


def is_null(node: Any) -> bool:
    """Whether a resolved type is null."""
    return not isinstance(node, list) and node["type"] == "null"


def is_record(node: Any) -> bool:
    """Whether a resolved type is a record."""
    return not isinstance(node, list) and node["type"] in ("record", "error")


def scalar_type(node: Any) -> Any:
    """The Arrow type of a resolved type without parts."""
    kind, logical = node["type"], node.get("logicalType", "")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = node.get("precision", 0), node.get("scale", 0)
        fits = 1 <= precision <= 38 and 0 <= scale <= precision
        return pa.decimal128(precision, scale) if fits else pa.binary()
    if kind == "fixed":
        if node["size"] < 1:
            raise UnusableSchema(f"type {node['name']} has no bytes")
        return pa.string() if logical == "uuid" and node["size"] == 16 else pa.binary()
    if kind == "enum":
        return pa.string()
    if kind == "int" and logical == "date":
        return pa.date32()
    if kind == "long" and logical.removeprefix("local-") in _INSTANTS:
        return TIMESTAMP
    return _SIMPLE[kind]


def wider_of(kinds: Sequence[Any]) -> Any:
    """The one type that a union of these is, None where it is a struct of members."""
    if set(kinds) == {pa.int32(), pa.int64()}:
        return pa.int64()
    return pa.float64() if set(kinds) == {pa.float32(), pa.float64()} else None


class _Columns:
    """Walks a schema down to its scalars, refusing what never ends. A path leads to a field."""

    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema
        self._left = 10_000

    def fields(
        self, fields: list[dict[str, Any]], above: tuple[str, ...], path: tuple[str, ...]
    ) -> list[Any]:
        typed = (
            (each["name"], self.kind(each["type"], above, (*path, each["name"]))) for each in fields
        )
        return [pa.field(name, kind) for name, kind in typed if kind is not None]

    def kind(self, node: TypeNode, above: tuple[str, ...], path: tuple[str, ...]) -> Any:
        """The Arrow type, None for what is always null."""
        self._left -= 1
        if self._left < 0:
            raise UnusableSchema("more than 10000 fields")
        node = self._schema.resolve(node)
        if isinstance(node, list):
            return self._union(node, above, path)
        if is_null(node):
            return None
        if is_record(node):
            if node["name"] in above:
                raise UnusableSchema(
                    f"field {'.'.join(path)} is a {node['name']} inside a {node['name']}: a type "
                    "that contains itself has no columns"
                )
            inner = self.fields(node["fields"], (*above, node["name"]), path)
            if not inner:
                raise UnusableSchema(f"field {'.'.join(path)} is a record without fields")
            return pa.struct(inner)
        if node["type"] == "array":
            return pa.list_(self._item(node["items"], above, path))
        if node["type"] == "map":
            return pa.map_(pa.string(), self._item(node["values"], above, path))
        return scalar_type(node)

    def _item(self, node: TypeNode, above: tuple[str, ...], path: tuple[str, ...]) -> Any:
        kind = self.kind(node, above, path)
        if kind is None:
            raise UnusableSchema(f"field {'.'.join(path)} is a list or map of nulls")
        return kind

    def _union(
        self, branches: list[TypeNode], above: tuple[str, ...], path: tuple[str, ...]
    ) -> Any:
        held = (self.kind(each, above, path) for each in branches)
        kinds = [kind for kind in held if kind is not None]
        if len(kinds) < 2:
            return kinds[0] if kinds else None
        wide = wider_of(kinds)
        if wide is not None:
            return wide
        return pa.struct([pa.field(f"member{i}", kind) for i, kind in enumerate(kinds)])
