"""JSON Schemas (drafts 4 to 2020-12) as columns.

The types in a schema become columns; its conditions on values (`required`, `minimum`, `pattern`)
are for writers to check: every column may be null. A field whose type it leaves open (several
types, an object of any fields, a type that contains itself) cannot be a column, and the message
names it. Kafka Connect's types, which it writes as `title` and `connect.type`, are known.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote, urljoin

import pyarrow as pa

from lakehead.lake.tables.ddl import TIMESTAMP, check_names, type_name
from lakehead.lake.tables.values.connect_json import DATES, DECIMAL, INSTANTS, ZONED, decimal_type
from lakehead.lake.tables.values.decoder import UnusableSchema
from lakehead.lake.tables.values.json_program import ITEM, Forms, Path, Written
from lakehead.storage.errors import SettingsError

_PARTS_MAX = 10_000
_ADVICE = "declare the columns that you want in lakehead.table.schema"
_TYPE_WORDS = frozenset(
    ("type", "properties", "items", "$ref", "enum", "const", "allOf", "anyOf", "oneOf")
)
"""Keywords that say what a value is; the others restrict what it may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonSchema:
    """The columns of a schema, and how those are written that JSON has no type for."""

    columns: Any  # pa.Schema
    forms: Forms


def read_json_schema(text: str, references: Mapping[str, str] | None = None) -> JsonSchema:
    """Return what a schema says of its values; `references` are texts of others, by the name that
    it uses them under. Raises UnusableSchema that names the field.
    """
    try:
        documents = _Documents(text, references or {})
        walk = _Walk(documents)
        kind = walk.kind([documents.root], ())
    except RecursionError:
        raise UnusableSchema("no JSON Schema: nested too deep") from None
    except (AttributeError, TypeError, ValueError, LookupError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UnusableSchema(f"no JSON Schema: {reason}") from None
    if kind is None or not pa.types.is_struct(kind):
        found = "null" if kind is None else type_name(kind)
        raise UnusableSchema(f"its values are {found} and not objects, which have fields")
    columns = pa.schema([kind.field(i) for i in range(kind.num_fields)])
    try:
        check_names(columns)
    except SettingsError as error:
        raise UnusableSchema(str(error)) from None
    return JsonSchema(columns=columns, forms=walk.forms)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """A schema inside a document; `above` are the targets of references that lead to it."""

    schema: Any
    document: str
    above: frozenset[int] = frozenset()


class _Documents:
    """A schema and those it refers to."""

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        main = json.loads(text)
        self._known: dict[str, Any] = {}
        for name, content in references.items():
            parsed = json.loads(content)
            self._known[name] = parsed
            self._known.setdefault(_own_name(parsed), parsed)
        own = _own_name(main)
        self._known[own] = main
        self.root = _Node(schema=main, document=own, above=frozenset([id(main)]))

    def follow(self, node: _Node, path: Path) -> _Node:
        """The target of a node's reference."""
        reference = str(node.schema["$ref"])
        name, _, fragment = reference.partition("#")
        names = (name, urljoin(node.document, name)) if name else (node.document,)
        document = next((each for each in names if each in self._known), None)
        if document is None:
            raise UnusableSchema(
                f"{_field(path)} refers to {reference}, which is not among the schema's references"
            )
        target = self._known[document]
        if fragment and not fragment.startswith("/"):
            raise UnusableSchema(f"{_field(path)} refers to {reference} by an anchor, not a path")
        for step in unquote(fragment).split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            target = target[int(key)] if isinstance(target, list) else target[key]
        if id(target) in node.above:
            raise UnusableSchema(
                f"{_field(path)} contains itself (by {reference}), and no column does: {_ADVICE}"
            )
        return _Node(schema=target, document=document, above=node.above | {id(target)})


class _Walk:
    """Walks a schema down to its scalars. `forms` are those found on the way."""

    def __init__(self, documents: _Documents) -> None:
        self._documents = documents
        self._left = _PARTS_MAX
        self.forms: dict[Path, Written] = {}

    def kind(self, nodes: Sequence[_Node], path: Path) -> Any:
        """The type of values that all of `nodes` hold for; None for what is always null."""
        parts: list[_Node] = []
        choices: list[list[_Node]] = []
        for node in nodes:
            self._gather(node, parts, choices, path)
        types = _types([part.schema for part in parts])
        if not choices:
            return self._of(types, parts, path)
        chosen = self._chosen(choices, path)
        if types - {"null"} and self._of(types, parts, path) != chosen:
            raise UnusableSchema(f"{_field(path)} is of a type and of another: {_ADVICE}")
        return chosen

    def _of(self, types: set[str], parts: list[_Node], path: Path) -> Any:
        """The type of what is one of `types`."""
        if types == {"null"}:
            return None
        types = types - {"null"}
        if types == {"integer", "number"}:
            types = {"number"}
        if len(types) != 1:
            several = f"may be {' or '.join(sorted(types))}" if types else "may be anything"
            raise UnusableSchema(f"{_field(path)} {several}, and no column holds that: {_ADVICE}")
        (found,) = types
        if found == "object":
            return self._object(parts, path)
        return self._array(parts, path) if found == "array" else self._scalar(found, parts, path)

    def _gather(
        self, node: _Node, parts: list[_Node], choices: list[list[_Node]], path: Path
    ) -> None:
        """Take a node apart: all that holds for the value, and what one of several holds for."""
        # Counted here, because references can make much of a little: each of two to two more.
        self._left -= 1
        if self._left < 0:
            raise UnusableSchema(f"more than {_PARTS_MAX} fields and parts of them")
        schema = node.schema
        if schema is True:
            return
        if not isinstance(schema, dict):
            raise UnusableSchema(f"{_field(path)} has an invalid schema")
        parts.append(node)
        if "$ref" in schema:
            self._gather(self._documents.follow(node, path), parts, choices, path)
        for each in schema.get("allOf", ()):
            self._gather(replace(node, schema=each), parts, choices, path)
        for word in ("oneOf", "anyOf"):
            known = [each for each in schema.get(word, ()) if each is True or _has_type(each)]
            others = [replace(node, schema=each) for each in known if _types([each]) != {"null"}]
            if len(others) == 1 and len(known) == len(schema[word]):
                self._gather(others[0], parts, choices, path)
            elif others:
                choices.append(others)

    def _chosen(self, choices: list[list[_Node]], path: Path) -> Any:
        """The one type that every choice comes to."""
        found = set()
        outer = self.forms
        for node in (each for among in choices for each in among):
            self.forms = {}
            found.add((self.kind([node], path), frozenset(self.forms.items())))
        self.forms = outer
        if len(found) > 1:
            raise UnusableSchema(
                f"{_field(path)} is one of several types (oneOf or anyOf), and no column holds "
                f"them all: {_ADVICE}"
            )
        ((kind, forms),) = found
        self.forms |= dict(forms)
        return kind

    def _object(self, parts: list[_Node], path: Path) -> Any:
        inside: dict[str, list[_Node]] = {}
        for part in parts:
            for name, schema in part.schema.get("properties", {}).items():
                if schema is not False:
                    inside.setdefault(name, []).append(replace(part, schema=schema))
        kinds = {name: self.kind(nodes, (*path, name)) for name, nodes in inside.items()}
        fields = [pa.field(name, kind) for name, kind in kinds.items() if kind is not None]
        if not fields:
            raise UnusableSchema(f"{_field(path)} is an object that names no fields: {_ADVICE}")
        return pa.struct(fields)

    def _array(self, parts: list[_Node], path: Path) -> Any:
        items = [p for p in parts if "items" in p.schema or "prefixItems" in p.schema]
        if any("prefixItems" in p.schema or isinstance(p.schema["items"], list) for p in items):
            raise UnusableSchema(f"{_field(path)} is a list with items of several types: {_ADVICE}")
        inner = [replace(part, schema=part.schema["items"]) for part in items]
        kind = self.kind(inner, (*path, ITEM)) if inner else None
        if kind is None:
            raise UnusableSchema(f"{_field(path)} is a list of anything: {_ADVICE}")
        return pa.list_(kind)

    def _scalar(self, found: str, parts: list[_Node], path: Path) -> Any:
        known: dict[str, Any] = {}
        for part in reversed(parts):
            known |= part.schema
        kind, form = _scalar(found, known)
        if kind is None:
            raise UnusableSchema(f"{_field(path)} has the type {found!r}, which JSON does not have")
        if form is not None:
            self.forms[path] = form
        return kind


def _scalar(found: str, known: Mapping[str, Any]) -> tuple[Any, Written | None]:
    """The column of a type without parts, None for one that there is not, and its form."""
    title, connect = known.get("title"), known.get("connect.type")
    match found:
        case "boolean":
            return pa.bool_(), None
        case "integer" if title in DATES:
            return pa.date32(), Written(type=pa.date32())
        case "integer" if title in INSTANTS:
            times, divided = INSTANTS[title]
            return TIMESTAMP, Written(type=TIMESTAMP, numerator=times, denominator=divided)
        case "integer":
            return (pa.int32() if connect in ("int8", "int16", "int32") else pa.int64()), None
        case "number" if title == DECIMAL:
            return decimal_type(known.get("connect.parameters")), None
        case "number":
            return (pa.float32() if connect == "float32" else pa.float64()), None
        case "string" if title == DECIMAL:
            kind = decimal_type(known.get("connect.parameters"))
            return kind, Written(type=kind)
        case "string" if connect == "bytes" or known.get("contentEncoding") == "base64":
            return pa.binary(), Written(type=pa.binary())
        case "string" if known.get("format") == "date-time" or title == ZONED:
            return TIMESTAMP, None
        case "string":
            return (pa.date32() if known.get("format") == "date" else pa.string()), None
    return None, None


def _types(schemas: Sequence[Any]) -> set[str]:
    """The types that schemas name, or show."""
    found: set[str] = set()
    for schema in schemas:
        if not isinstance(schema, dict):
            continue
        given = schema.get("type", ())
        found |= {given} if isinstance(given, str) else set(given)
    if found - {"null"}:
        return found
    for schema in schemas:
        if isinstance(schema, dict):
            found |= {_type_of(each) for each in schema.get("enum", ())}
            found |= {_type_of(schema["const"])} if "const" in schema else set()
            found |= {"object"} if "properties" in schema else set()
            found |= {"array"} if "items" in schema else set()
    return found


def _type_of(value: Any) -> str:
    """The type of a value in JSON Schema's words."""
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


def _has_type(schema: Any) -> bool:
    return isinstance(schema, dict) and not _TYPE_WORDS.isdisjoint(schema)


def _own_name(schema: Any) -> str:
    return str(schema.get("$id") or schema.get("id") or "") if isinstance(schema, dict) else ""


def _field(path: Path) -> str:
    return f"field {'.'.join(path).replace(f'.{ITEM}', ITEM)}" if path else "the value"
