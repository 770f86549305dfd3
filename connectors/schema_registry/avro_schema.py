"""Avro schemas of the registry: the form in which they are kept, and compatibility.

The form is that of `Schema.toString()` of Avro's Java library. So a schema that came with other
blanks, another order of attributes or full names where short ones do is the same schema with the
same id.

Two are compatible by the rules of Avro 1.12, "Schema Resolution": names by their last part or by an
alias, promotions, defaults for fields that the writer's schema lacks, a symbol for those that the
reader's lacks, and every branch that the writer may choose.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from lakehead.connectors.schema_registry.errors import InvalidSchema
from lakehead.connectors.schema_registry.parsed import NamedText, ParsedSchema, difference
from lakehead.connectors.schema_registry.records import AVRO, compact_json
from lakehead.lake.declaration import avro_schema
from lakehead.lake.declaration.avro_schema import PRIMITIVES, AvroModel, MalformedAvro, name_space

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


_Pair = tuple[str, str]
"""The names of a reader's record and a writer's."""
_PROMOTIONS = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "bytes": ("string",),
    "string": ("bytes",),
}


def unreadable(reader: AvroModel, writer: AvroModel) -> list[str]:
    """Return why values of `writer` cannot be read by `reader`: nothing if they can."""
    return _Resolution(reader, writer).types(reader.root, writer.root, "")


_STEPS_MAX = 1_000_000


class _Resolution:
    """One pass over two schemas. Each pair of records is compared once, however many ways lead to
    it: a set of records that all refer to each other has as many ways as it has orders.
    """

    def __init__(self, reader: AvroModel, writer: AvroModel) -> None:
        self._reader = reader
        self._writer = writer
        self._known: dict[_Pair, list[str]] = {}
        self._open: dict[_Pair, int] = {}
        """Pairs that are being compared, by their depth, and those that can be read if the pair
        at a depth can, which is still being compared.
        """
        self._resting: list[_Pair] = []  # the latter, in the order of their comparison
        self._depth = 0
        self._lowest = 0  # depth of the outermost open pair that the present one rests on
        self._steps = 0

    def types(self, reader: Any, writer: Any, path: str) -> list[str]:
        """Return the reasons why a type of the writer cannot be read as one of the reader's."""
        self._steps += 1
        if self._steps > _STEPS_MAX:
            raise InvalidSchema(f"the schemas take more than {_STEPS_MAX} steps to compare")
        read, wrote = _node(reader, self._reader), _node(writer, self._writer)
        if isinstance(wrote, list):
            return self._writer_union(reader, read, wrote, path)
        if isinstance(read, list):
            # The one of the same name first, as a rule the only one: a union may have thousands.
            likely = [writer] if isinstance(writer, str) and writer in read else []
            if any(not self.types(each, writer, path) for each in (*likely, *read)):
                return []
            return [
                difference(
                    "MISSING_UNION_BRANCH",
                    f"The new schema is missing a type inside a union field at path "
                    f"'{path or '/'}' in the old schema",
                    f"reader union lacking writer type: {wrote['type'].upper()}",
                )
            ]
        if read["type"] != wrote["type"]:
            if wrote["type"] in _PROMOTIONS.get(read["type"], ()):
                return []
            return [
                difference(
                    "TYPE_MISMATCH",
                    f"The type (path '{path or '/'}') of a field in the new schema does not "
                    "match with the old schema",
                    f"reader type: {read['type'].upper()} not compatible with writer type: "
                    f"{wrote['type'].upper()}",
                )
            ]
        return self._same_type(read, wrote, path)

    def _writer_union(self, reader: Any, read: Any, wrote: list[Any], path: str) -> list[str]:
        if not isinstance(read, list):
            return [reason for each in wrote for reason in self.types(reader, each, path)]
        return [
            reason
            for index, each in enumerate(wrote)
            for reason in self.types(reader, each, f"{path}/{index}")
        ]

    def _same_type(self, read: Any, wrote: Any, path: str) -> list[str]:
        match read["type"]:
            case "array":
                return self.types(read["items"], wrote["items"], f"{path}/items")
            case "map":
                return self.types(read["values"], wrote["values"], f"{path}/values")
            case "fixed":
                return _names(read, wrote, path) + _sizes(read, wrote, path)
            case "enum":
                return _names(read, wrote, path) + _symbols(read, wrote, path)
            case "record" | "error":
                return self._records(read, wrote, path)
            case _:
                return []

    def _records(self, read: Any, wrote: Any, path: str) -> list[str]:
        pair = (read["name"], wrote["name"])
        if pair in self._known:
            return self._known[pair]
        if pair in self._open:  # a record inside itself is as compatible as it is outside
            self._lowest = min(self._lowest, self._open[pair])
            return []
        depth, begun, above = self._depth, len(self._resting), self._lowest
        self._open[pair] = self._lowest = depth
        self._depth += 1
        reasons = self._fields(read, wrote, path)
        self._depth -= 1
        if not reasons and self._lowest < depth:
            self._open[pair] = self._lowest
            self._resting.append(pair)
        else:
            self._known[pair] = reasons
            self._settle(begun, is_readable=not reasons)
            del self._open[pair]
        self._lowest = min(above, self._lowest)
        return reasons

    def _settle(self, begun: int, *, is_readable: bool) -> None:
        """Settle the pairs inside one that is decided: if it cannot be read, they are compared
        again where they are needed, since some of them rest on it.
        """
        for pair in self._resting[begun:]:
            del self._open[pair]
            if is_readable:
                self._known[pair] = []
        del self._resting[begun:]

    def _fields(self, read: Any, wrote: Any, path: str) -> list[str]:
        reasons = _names(read, wrote, path)
        written = {field["name"]: field for field in wrote["fields"]}
        for index, field in enumerate(read["fields"]):
            names = (field["name"], *field["aliases"])
            found = [written[name] for name in names if name in written]
            place = f"{path}/fields/{index}"
            if len(found) > 1:
                reasons.append(_ambiguous(field["name"], place))
            elif found:
                reasons += self.types(field["type"], found[0]["type"], f"{place}/type")
            elif "default" not in field:
                reasons.append(_no_default(field["name"], place))
        return reasons


def _node(node: Any, model: AvroModel) -> Any:
    """A union as a list, anything else as an object with its `type`."""
    if isinstance(node, str):
        return model.named.get(node, {"type": node})
    return node


def _names(read: Any, wrote: Any, path: str) -> list[str]:
    bare = read["name"].rpartition(".")[2]
    if bare == wrote["name"].rpartition(".")[2] or wrote["name"] in read["aliases"]:
        return []
    description = f"The name of the schema has changed (path '{path}/name')"
    return [difference("NAME_MISMATCH", description, f"expected: {wrote['name']}")]


def _sizes(read: Any, wrote: Any, path: str) -> list[str]:
    if read["size"] == wrote["size"]:
        return []
    description = (
        f"The size of FIXED type field at path '{path}/size' in the new schema does not match "
        "with the old schema"
    )
    info = f"expected: {wrote['size']}, found: {read['size']}"
    return [difference("FIXED_SIZE_MISMATCH", description, info)]


def _symbols(read: Any, wrote: Any, path: str) -> list[str]:
    known = set(read["symbols"])
    missing = [symbol for symbol in wrote["symbols"] if symbol not in known]
    if not missing or "default" in read:
        return []
    named = ", ".join(missing)
    description = (
        f"The new schema is missing enum symbols '[{named}]' at path '{path}/symbols' in "
        "the old schema"
    )
    return [difference("MISSING_ENUM_SYMBOLS", description, f"[{named}]")]


def _ambiguous(name: str, place: str) -> str:
    description = (
        f"The field '{name}' at path '{place}' in the new schema is, by its name and aliases, more "
        "than one field of the old schema"
    )
    return difference("FIELD_NAME_AMBIGUOUS", description, name)


def _no_default(name: str, place: str) -> str:
    description = (
        f"The field '{name}' at path '{place}' in the new schema has no default value and "
        "is missing in the old schema"
    )
    return difference("READER_FIELD_MISSING_DEFAULT_VALUE", description, name)
