"""Avro schemas: checked by fastavro, written the way that Avro's Java library writes them.

Confluent's registry keeps what `Schema.toString()` gives, so a schema that came with other blanks,
another order of attributes or full names where short ones do is the same schema with the same id.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from connectors.schema_registry.errors import InvalidSchema
from connectors.schema_registry.parsed import NamedText, ParsedSchema
from connectors.schema_registry.records import AVRO, compact_json

_PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_NAMED = ("record", "error", "enum", "fixed")
_TYPE_ATTRIBUTES = frozenset(
    ("type", "name", "namespace", "doc", "fields", "aliases", "items", "values", "symbols", "size")
)
_FIELD_ATTRIBUTES = frozenset(("type", "name", "doc", "default", "order", "aliases"))


@dataclass(frozen=True, slots=True)
class AvroModel:
    """A schema with full names, and the named types in it and in those it refers to."""

    root: Any
    named: Mapping[str, Any]


def parse_avro(text: str, others: Sequence[NamedText], normalize: bool) -> ParsedSchema:
    """Read a schema that may use the named types of others. Raises InvalidSchema."""
    named: dict[str, Any] = {}
    try:
        for other in others:
            parse_schema(_loaded(other.text), named)
        given = _loaded(text)
        root = parse_schema(given, named)
        written = compact_json(_Writer(normalize).type(given, "")).decode()
    except (SchemaParseException, UnknownType, ValueError, TypeError, LookupError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InvalidSchema(f"no Avro schema: {type(error).__name__}: {reason}") from None
    except AttributeError as error:
        raise InvalidSchema(f"no Avro schema: {error}") from None
    except RecursionError:
        raise InvalidSchema("no Avro schema: nested too deep") from None
    return ParsedSchema(kind=AVRO, text=written, model=AvroModel(root, named))


def _loaded(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refused)
    except ValueError:
        bare = text.strip()
        if bare in _PRIMITIVES:  # a name without its quotes
            return bare
        raise


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


class _Writer:
    """Puts a schema into the one order of attributes, with names as short as they can be."""

    def __init__(self, sorts_properties: bool) -> None:
        self._sorts = sorts_properties

    def type(self, node: Any, space: str) -> Any:
        if isinstance(node, str):
            return node if node in _PRIMITIVES else _short(*_split(node, {}, space), space)
        if isinstance(node, list):
            return _checked_union([self.type(each, space) for each in node])
        kind = node["type"]
        if not isinstance(kind, str):
            return self.type(kind, space)
        if kind in _NAMED:
            return self._named(node, space)
        properties = dict(self._properties(node, _TYPE_ATTRIBUTES))
        if kind == "array":
            return {"type": kind, "items": self.type(node["items"], space), **properties}
        if kind == "map":
            return {"type": kind, "values": self.type(node["values"], space), **properties}
        if kind in _PRIMITIVES:
            return {"type": kind, **properties} if properties else kind
        return self.type(kind, space)

    def _named(self, node: Any, outer: str) -> Any:
        space, name = _split(node["name"], node, outer)
        found: dict[str, Any] = {"type": node["type"], "name": name}
        if space != outer:
            found["namespace"] = space
        if node.get("doc") is not None:
            found["doc"] = node["doc"]
        known = _TYPE_ATTRIBUTES
        if "fields" in node:
            found["fields"] = [self._field(field, space) for field in node["fields"]]
        for attribute in ("symbols", "size"):
            if attribute in node:
                found[attribute] = node[attribute]
        if node["type"] == "enum":
            known = known | {"default"}
            if "default" in node:
                found["default"] = node["default"]
        found |= self._properties(node, known)
        if node.get("aliases"):
            found["aliases"] = [_short(*_split(each, {}, space), space) for each in node["aliases"]]
        return found

    def _field(self, field: Any, space: str) -> Any:
        found: dict[str, Any] = {"name": field["name"], "type": self.type(field["type"], space)}
        if field.get("doc") is not None:
            found["doc"] = field["doc"]
        if "default" in field:
            found["default"] = field["default"]
        if field.get("order", "ascending") != "ascending":
            found["order"] = field["order"]
        if field.get("aliases"):
            found["aliases"] = field["aliases"]
        return found | dict(self._properties(field, _FIELD_ATTRIBUTES))

    def _properties(self, node: Any, known: frozenset[str]) -> Iterator[tuple[str, Any]]:
        names = (name for name in node if name not in known)
        for name in sorted(names) if self._sorts else names:
            yield name, node[name]


def _checked_union(branches: list[Any]) -> list[Any]:
    """A union as it may be: no union right inside, and nothing twice, which fastavro lets pass."""
    seen = set()
    for each in branches:
        if isinstance(each, list):
            raise SchemaParseException("a union may not hold another union")
        kind = each if isinstance(each, str) else each["type"]
        name = f"{each.get('namespace', '')}.{each['name']}" if kind in _NAMED else kind
        if name in seen:
            raise SchemaParseException(f"{kind} is in a union twice")
        seen.add(name)
    return branches


def _split(name: str, node: Any, outer: str) -> tuple[str, str]:
    """The name space and the bare name of a type that is named inside a name space."""
    space, dot, bare = name.rpartition(".")
    if dot:
        return space, bare
    return str(node.get("namespace", outer) or ""), name


def _short(space: str, name: str, outer: str) -> str:
    return name if space in ("", outer) else f"{space}.{name}"
