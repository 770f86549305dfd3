"""Avro schemas as the registry keeps them: in the one form that `Schema.toString()` of Avro's Java
library gives. So a schema that came with other blanks, another order of attributes or full names
where short ones do is the same schema with the same id.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from lakehead.connectors.schema_registry.errors import InvalidSchema
from lakehead.connectors.schema_registry.parsed import NamedText, ParsedSchema
from lakehead.connectors.schema_registry.records import AVRO, compact_json
from lakehead.storage.metadata import avro_schema
from lakehead.storage.metadata.avro_schema import PRIMITIVES, AvroModel, MalformedAvro, name_space

_TYPE_NAMES = PRIMITIVES | {"record", "enum", "array", "map", "union", "fixed"}


def parse_avro(text: str, others: Sequence[NamedText], normalize: bool) -> ParsedSchema:
    """Read a schema that may use the named types of others. Raises InvalidSchema."""
    try:
        model = avro_schema.parse_avro(text, [other.text for other in others])
        written = _Writer(model, normalize).type(model.root, "")
        return ParsedSchema(kind=AVRO, text=compact_json(written).decode(), model=model)
    except (MalformedAvro, UnicodeEncodeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InvalidSchema(f"no Avro schema: {reason}") from None
    except RecursionError:
        raise InvalidSchema("no Avro schema: nested too deep") from None


class _Writer:
    """Puts a schema into the one order of attributes, with names as short as they can be."""

    def __init__(self, model: AvroModel, sorts_properties: bool) -> None:
        self._named = model.named
        self._known = set(model.outside)
        self._sorts = sorts_properties

    def type(self, node: Any, space: str) -> Any:
        if isinstance(node, list):
            return [self.type(each, space) for each in node]
        if isinstance(node, str):
            if node in PRIMITIVES or node in self._known:
                return node if node in PRIMITIVES else _short(node, space)
            self._known.add(node)
            return self._definition(self._named[node], space)
        kind, properties = node["type"], dict(self._properties(node))
        if kind == "array":
            return {"type": kind, "items": self.type(node["items"], space), **properties}
        if kind == "map":
            return {"type": kind, "values": self.type(node["values"], space), **properties}
        return {"type": kind, **properties} if properties else kind

    def _definition(self, node: Any, outer: str) -> Any:
        space = name_space(node["name"])
        found: dict[str, Any] = {"type": node["type"], "name": node["name"].rpartition(".")[2]}
        if space != outer:
            found["namespace"] = space
        if "doc" in node:
            found["doc"] = node["doc"]
        if "fields" in node:
            found["fields"] = [self._field(field, space) for field in node["fields"]]
        for attribute in ("symbols", "size", "default"):
            if attribute in node:
                found[attribute] = node[attribute]
        found |= self._properties(node)
        if node["aliases"]:
            found["aliases"] = [_short(each, space) for each in node["aliases"]]
        return found

    def _field(self, field: Any, space: str) -> Any:
        found: dict[str, Any] = {"name": field["name"], "type": self.type(field["type"], space)}
        for attribute in ("doc", "default"):
            if attribute in field:
                found[attribute] = field[attribute]
        if field["order"] != "ascending":
            found["order"] = field["order"]
        if field["aliases"]:
            found["aliases"] = field["aliases"]
        return found | dict(self._properties(field))

    def _properties(self, node: Any) -> Iterator[tuple[str, Any]]:
        given = node["properties"]
        for name in sorted(given) if self._sorts else given:
            yield name, given[name]


def _short(full: str, space: str) -> str:
    """A name as it is written within a name space: short unless a type of Avro has that name."""
    bare = full.rpartition(".")[2]
    return bare if space and name_space(full) == space and bare not in _TYPE_NAMES else full
