"""JSON Schemas (drafts 4 to 2020-12) of the registry: reading, and compatibility.

Schemas are checked by `jsonschema`, and references are found by `referencing`. A schema is taken
apart as the comparison needs it: each part asserts one thing, and one that asserts several is
`allOf` them. Nothing is fetched: a reference is resolved in the schema, in the registered schemas
that come with it, or among the drafts themselves.

Two are compatible by the rules of Confluent's registry: for each keyword, the new schema accepts
all that the old one accepted, and objects are compared as open or closed. A property may be added
where the old schema was closed (no writer could have used it) or had a schema for further
properties, and removed where the new one is open. An open object that gets a property is
incompatible: a writer may have used that name with another type.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal
from urllib.parse import urljoin

import pyarrow as pa
import pyarrow.compute as pc
from jsonschema.exceptions import SchemaError
from jsonschema.validators import Draft7Validator, validator_for
from jsonschema_specifications import REGISTRY
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT7, DRAFT201909, DRAFT202012, specification_with

from lakehead.connectors.schema_registry.errors import InvalidSchema
from lakehead.connectors.schema_registry.parsed import NamedText, ParsedSchema, difference
from lakehead.connectors.schema_registry.records import JSON

Kind = Literal[
    "any", "never", "string", "number", "boolean", "null", "object", "array",
    "enum", "const", "not", "combined",
]  # fmt: skip
Criterion = Literal["allOf", "anyOf", "oneOf"]

_TYPES: Mapping[str, Kind] = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "object",
    "array": "array",
}
_SIGNS: Mapping[Kind, frozenset[str]] = {
    "object": frozenset(
        (
            *("properties", "required", "additionalProperties", "patternProperties"),
            *("minProperties", "maxProperties", "dependencies", "propertyNames"),
            *("dependentRequired", "dependentSchemas", "unevaluatedProperties"),
        )
    ),
    "array": frozenset(
        (
            *("items", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains"),
            *("prefixItems", "unevaluatedItems"),
        )
    ),
    "string": frozenset(("minLength", "maxLength", "pattern")),
    "number": frozenset(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    ),
}
"""Keywords that imply the type of a schema that does not name it."""
_REFERENCES_MAX = 100
_COMPARED_MAX = 20


@dataclass(frozen=True, slots=True)
class Source:
    """A schema as it is written, and where its references start from."""

    raw: Any
    resolver: Any


@dataclass(frozen=True, slots=True)
class Part:
    """A schema that asserts one thing. `parts`: of a combined one, or what `not` negates."""

    kind: Kind
    source: Source
    criterion: Criterion = "allOf"
    parts: "tuple[Part | Source, ...]" = ()
    is_integer: bool = False

    @property
    def raw(self) -> Mapping[str, Any]:
        """Its keywords."""
        return self.source.raw if isinstance(self.source.raw, dict) else {}

    def at(self, raw: Any) -> Source:
        """Return a schema inside this one."""
        resolver = self.source.resolver
        if isinstance(raw, dict) and "$id" in raw:
            resolver = resolver.in_subresource(DRAFT7.create_resource(raw))
        return Source(raw, resolver)


def parse_json_schema(text: str, others: Sequence[NamedText], normalize: bool) -> ParsedSchema:
    """Read a schema that may refer to others by their names. Raises InvalidSchema."""
    try:
        raw = _loaded(text)
        validator_for(raw, default=Draft7Validator).check_schema(_without_long_lists(raw))
        source = _rooted(raw, others)
        _check_references(source)
    except SchemaError as error:
        where = "/".join(map(str, error.absolute_path))
        raise InvalidSchema(f"no JSON Schema: at '#/{where}': {error.message[:200]}") from None
    except Unresolvable as error:
        raise InvalidSchema(f"no JSON Schema: reference {error.ref!r} leads nowhere") from None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise InvalidSchema(f"no JSON Schema: {' '.join(str(error).split())[:200]}") from None
    except RecursionError:
        raise InvalidSchema("no JSON Schema: nested too deep") from None
    written = json.dumps(raw, sort_keys=normalize, separators=(",", ":"), ensure_ascii=False)
    return ParsedSchema(kind=JSON, text=written, model=source)


def _loaded(text: str) -> Any:
    raw = json.loads(text, parse_constant=_refused)
    if not isinstance(raw, dict | bool):
        raise InvalidSchema("no JSON Schema: it is neither an object nor true or false")
    json.dumps(raw, allow_nan=False)  # 1e999 is read as infinity, which JSON cannot write
    return raw


def _without_long_lists(raw: Any) -> Any:
    """Return a schema to hold against its draft, with long lists of values cut short: `jsonschema`
    finds out that each is there once by comparing each pair, unless they can be sorted. It is valid
    if the schema is. The values of an `enum` may be any, but drafts to 6 want each once: a list
    that had a value twice has one twice still.
    """
    if isinstance(raw, list):
        kinds = {type(each): each for each in raw}
        if len(raw) > _COMPARED_MAX and kinds.keys() != {str} and kinds.keys() - {dict, bool}:
            return list(kinds.values())  # keywords take lists of schemas, or of names
        return [_without_long_lists(each) for each in raw]
    if not isinstance(raw, dict):
        return raw
    return {name: _keyword_without_long_lists(name, value) for name, value in raw.items()}


def _keyword_without_long_lists(keyword: str, value: Any) -> Any:
    if keyword == "enum" and isinstance(value, list):
        return _cut(value)
    if keyword == "type" and isinstance(value, list):
        return value[:_COMPARED_MAX]  # there are fewer types: further ones are there twice
    if keyword == "dependencies" and isinstance(value, dict):
        return {name: _few_schemas(_without_long_lists(each)) for name, each in value.items()}
    return _without_long_lists(value)


def _few_schemas(value: Any) -> Any:
    """Return a list of schemas cut short where only one of names is right."""
    is_of_schemas = isinstance(value, list) and not any(isinstance(each, str) for each in value)
    return value[:_COMPARED_MAX] if is_of_schemas else value


def _cut(values: list[Any]) -> list[Any]:
    if len(values) <= _COMPARED_MAX:
        return values
    are_all_other = len(set(map(_hashable, values))) == len(values)
    return values[:1] if are_all_other else [values[0], values[0]]


def _hashable(value: Any) -> Any:
    """Return a value so that those are equal that are equal in JSON Schema: 1 and 1.0, not true."""
    if isinstance(value, bool):
        return (bool, value)
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        return frozenset((name, _hashable(each)) for name, each in value.items())
    return value


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _rooted(raw: Any, others: Sequence[NamedText]) -> Source:
    """A schema with all that it may refer to."""
    root = _resource(raw)
    base = root.id() or ""
    registry = REGISTRY.with_resource(base, root)
    for other in others:
        resource = _resource(_loaded(other.text))
        for name in {other.name, urljoin(base, other.name), resource.id() or other.name}:
            registry = registry.with_resource(name, resource)
    # Once and for all: a registry that is not crawled looks through all schemas at each reference.
    return Source(raw, registry.crawl().resolver(base))


def _resource(raw: Any) -> Any:
    named = raw.get("$schema") if isinstance(raw, dict) else None
    specification = specification_with(named, default=DRAFT7) if named else DRAFT7
    return specification.create_resource(raw)


def _parts_of(given: Source | Part) -> Part:
    """Take a schema apart, through its references. Raises Unresolvable."""
    if isinstance(given, Part):
        return given
    source = given
    for _ in range(_REFERENCES_MAX):
        raw = source.raw
        if not isinstance(raw, dict) or "$ref" not in raw:
            break
        found = source.resolver.lookup(raw["$ref"])
        target = Source(found.contents, found.resolver)
        if len(raw) > 1 and _reads_siblings(source):
            rest = Source(
                {key: value for key, value in raw.items() if key != "$ref"}, source.resolver
            )
            beside = tuple(_assertions(Part("any", rest)))
            if beside:
                return Part("combined", source, "allOf", (*beside, target))
        source = target
    else:
        raise ValueError(f"more than {_REFERENCES_MAX} references lead to one another")
    if isinstance(source.raw, bool):
        return Part("any" if source.raw else "never", source)
    whole = Part("any", source)
    found_parts = tuple(_assertions(whole))
    if not found_parts:
        return whole
    return found_parts[0] if len(found_parts) == 1 else Part("combined", source, parts=found_parts)


def _reads_siblings(source: Source) -> bool:
    """Since 2019-09 what stands beside a $ref holds too."""
    root = source.resolver.lookup("#").contents
    named = root.get("$schema") if isinstance(root, dict) else None
    return named is not None and specification_with(named, default=DRAFT7) in (
        DRAFT201909,
        DRAFT202012,
    )


def _assertions(whole: Part) -> Iterator[Part]:
    """The assertions of a schema, one by one."""
    raw, source = whole.raw, whole.source
    types = raw.get("type")
    if isinstance(types, list):
        branches = tuple(_typed(source, each) for each in types)
        yield branches[0] if len(branches) == 1 else Part("combined", source, "anyOf", branches)
    elif isinstance(types, str):
        yield _typed(source, types)
    else:
        for kind, signs in _SIGNS.items():
            if not signs.isdisjoint(raw):
                yield Part(kind, source)
    if "const" in raw:
        yield Part("const", source)
    if "enum" in raw:
        yield Part("enum", source)
    if "not" in raw:
        yield Part("not", source, parts=(whole.at(raw["not"]),))
    for criterion in ("allOf", "anyOf", "oneOf"):
        if criterion in raw:
            inside = tuple(whole.at(each) for each in raw[criterion])
            yield Part("combined", source, criterion, inside)


def _typed(source: Source, name: str) -> Part:
    return Part(_TYPES[name], source, is_integer=name == "integer")


def _check_references(root: Source) -> None:
    """Take apart all that can be reached, so that no comparison meets a dead reference."""
    seen: set[int] = set()
    waiting: list[Source | Part] = [root]
    while waiting:
        given = waiting.pop()
        if isinstance(given, Source):
            if id(given.raw) in seen:
                continue
            seen.add(id(given.raw))
            waiting += _definitions(given)
        part = _parts_of(given)
        waiting += [*part.parts, *_inside(part)]


def _definitions(source: Source) -> Iterator[Source]:
    """The schemas that others may refer to. Since 2019-09 they are judged though none does, as
    json-sKema does.
    """
    raw = source.raw
    found = raw.get("$defs") if isinstance(raw, dict) else None
    if isinstance(found, dict) and _reads_siblings(source):
        whole = Part("any", source)
        yield from (whole.at(each) for each in found.values())


def _inside(part: Part) -> Iterator[Source]:
    """The schemas of properties and items."""
    if part.kind not in ("object", "array"):
        return
    raw = part.raw
    for keyword in ("properties", "patternProperties", "dependentSchemas", "dependencies"):
        for each in raw.get(keyword, {}).values():
            if isinstance(each, dict | bool):
                yield part.at(each)
    for keyword in ("additionalProperties", "items", "additionalItems", "prefixItems"):
        given = raw.get(keyword)
        for each in given if isinstance(given, list) else [given]:
            if isinstance(each, dict | bool):
                yield part.at(each)


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference: values that the new schema does not accept any more, at a path of it."""

    kind: str
    path: str


Compare = Callable[[Source | Part | None, Source | Part | None, str], list[Difference]]
"""Compares an old schema with a new one; None: there is none."""


def _frozen(value: Any) -> str:
    """Return a value so that equal ones are the same text."""
    return json.dumps(value, sort_keys=True)


def _bounds(
    old: Mapping[str, Any], new: Mapping[str, Any], path: str, upper: Mapping[str, str],
    lower: Mapping[str, str],
) -> list[Difference]:  # fmt: skip
    """Return the limits that are new or tighter; `upper` and `lower` name keywords by kind."""
    found = []
    for keywords, sign, worse in ((upper, 1, "DECREASED"), (lower, -1, "INCREASED")):
        for keyword, kind in keywords.items():
            was, now = old.get(keyword), new.get(keyword)
            if now is None:
                continue
            if was is None:
                found.append(Difference(f"{kind}_ADDED", f"{path}/{keyword}"))
            elif sign * now < sign * was:
                found.append(Difference(f"{kind}_{worse}", f"{path}/{keyword}"))
    return found


def _strings(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> list[Difference]:
    """Return the differences of two schemas of strings."""
    found = _bounds(old, new, path, {"maxLength": "MAX_LENGTH"}, {"minLength": "MIN_LENGTH"})
    was, now = old.get("pattern"), new.get("pattern")
    if now is not None and was != now:
        kind = "PATTERN_ADDED" if was is None else "PATTERN_CHANGED"
        found.append(Difference(kind, f"{path}/pattern"))
    return found


def _numbers(old: Part, new: Part, path: str) -> list[Difference]:
    """Return the differences of two schemas of numbers."""
    was, now = _limits(old.raw), _limits(new.raw)
    found = _bounds(
        was,
        now,
        path,
        {"maximum": "MAXIMUM", "exclusiveMaximum": "EXCLUSIVE_MAXIMUM"},
        {"minimum": "MINIMUM", "exclusiveMinimum": "EXCLUSIVE_MINIMUM"},
    )
    before, after = old.raw.get("multipleOf"), new.raw.get("multipleOf")
    if after is not None and before != after:
        place = f"{path}/multipleOf"
        if before is None:
            found.append(Difference("MULTIPLE_OF_ADDED", place))
        elif Fraction(str(before)) % Fraction(str(after)):
            expanded = not Fraction(str(after)) % Fraction(str(before))
            kind = "MULTIPLE_OF_EXPANDED" if expanded else "MULTIPLE_OF_CHANGED"
            found.append(Difference(kind, place))
    if new.is_integer and not old.is_integer:
        found.append(Difference("TYPE_NARROWED", path))
    return found


def _limits(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Limits as numbers: in draft 4 `exclusiveMaximum: true` makes `maximum` exclusive."""
    found = dict(raw)
    for limit, exclusive in (("maximum", "exclusiveMaximum"), ("minimum", "exclusiveMinimum")):
        flag = raw.get(exclusive)
        if isinstance(flag, bool):
            del found[exclusive]
            if flag and limit in raw:
                found[exclusive] = found.pop(limit)
    return found


def _enums(old: Sequence[Any], new: Sequence[Any], path: str) -> list[Difference]:
    """Return the differences of two lists of values."""
    was, now = set(map(_frozen, old)), set(map(_frozen, new))
    if was <= now:
        return []
    kind = "ENUM_ARRAY_NARROWED" if now <= was else "ENUM_ARRAY_CHANGED"
    return [Difference(kind, f"{path}/enum")]


def _matches(pattern: str, name: str) -> bool:
    """Return whether a pattern is found in a name.

    By RE2, in time linear in both, because any client may choose both. A pattern that RE2 does not
    know (look-ahead) matches nothing.
    """
    try:
        found = pc.match_substring_regex(pa.array([name], pa.string()), pattern)
    except pa.ArrowInvalid:
        return False
    return bool(found[0].as_py())


def _objects(compare: Compare, old: Part, new: Part, path: str) -> list[Difference]:
    """Return the differences of two schemas of objects."""
    found = _required(old.raw, new.raw, f"{path}/required")
    was, now = _schemas(old, "properties"), _schemas(new, "properties")
    needed = frozenset(_needed(new.raw))
    for name in dict.fromkeys((*was, *now)):
        place = f"{path}/properties/{name}"
        if name not in now:
            found += _removed(compare, was[name], new, name, place)
        elif name not in was:
            found += _added(compare, old, now[name], name, place)
            if not _is_open(old) and name in needed:
                found.append(Difference("REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL", place))
        else:
            found += compare(was[name], now[name], place)
    found += _dependencies(compare, old, new, f"{path}/dependencies")
    found += _rest(
        compare,
        (old, old.raw.get("additionalProperties", True)),
        (new, new.raw.get("additionalProperties", True)),
        f"{path}/additionalProperties",
        "ADDITIONAL_PROPERTIES",
    )
    return found + _bounds(
        old.raw,
        new.raw,
        path,
        {"maxProperties": "MAX_PROPERTIES"},
        {"minProperties": "MIN_PROPERTIES"},
    )


def _schemas(part: Part, keyword: str) -> dict[str, Source]:
    return {name: part.at(raw) for name, raw in part.raw.get(keyword, {}).items()}


def _required(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> list[Difference]:
    before, properties = _names(old), old.get("properties", {})
    return [
        Difference("REQUIRED_ATTRIBUTE_ADDED", f"{path}/{name}")
        for name in _needed(new)
        if name in properties and name not in before
    ]


def _names(raw: Mapping[str, Any]) -> frozenset[str]:
    given = raw.get("required", ())
    return frozenset(given) if isinstance(given, list) else frozenset()


def _needed(raw: Mapping[str, Any]) -> list[str]:
    """Return the properties that have to be there, and that no default stands for, in order."""
    names = _names(raw)
    return [
        name
        for name, schema in raw.get("properties", {}).items()
        if name in names and not (isinstance(schema, dict) and "default" in schema)
    ]


def _is_open(part: Part) -> bool:
    """Return whether any property may be there that is not named."""
    raw = part.raw
    return not raw.get("patternProperties") and raw.get("additionalProperties", True) is True


def _schema_of_others(part: Part, name: str) -> Source | None:
    """The schema for properties without a name, of an object that is neither open nor closed."""
    for pattern, raw in part.raw.get("patternProperties", {}).items():
        if _matches(pattern, name):
            return part.at(raw)
    rest = part.raw.get("additionalProperties", True)
    return part.at(rest) if isinstance(rest, dict) else None


def _removed(compare: Compare, was: Source, new: Part, name: str, place: str) -> list[Difference]:
    if _is_open(new):
        return []
    others = _schema_of_others(new, name)
    if others is not None:
        found = compare(was, others, place)
        kind = "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
        return [*found, Difference(kind, place)] if found else []
    if _parts_of(was).kind == "never":
        return []
    return [Difference("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", place)]


def _added(compare: Compare, old: Part, now: Source, name: str, place: str) -> list[Difference]:
    if _is_open(old):
        if _parts_of(now).kind == "any":
            return []
        return [Difference("PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", place)]
    others = _schema_of_others(old, name)
    found = [] if others is None else compare(others, now, place)
    kind = "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
    return [*found, Difference(kind, place)] if found else []


def _dependencies(compare: Compare, old: Part, new: Part, path: str) -> list[Difference]:
    found = []
    was, now = _names_needed(old.raw), _names_needed(new.raw)
    for name, needed in now.items():
        place = f"{path}/{name}"
        if name not in was:
            found.append(Difference("DEPENDENCY_ARRAY_ADDED", place))
        elif not set(needed) <= set(was[name]):
            wider = set(was[name]) <= set(needed)
            kind = "DEPENDENCY_ARRAY_EXTENDED" if wider else "DEPENDENCY_ARRAY_CHANGED"
            found.append(Difference(kind, place))
    before, after = _schemas_needed(old), _schemas_needed(new)
    for name, schema in after.items():
        place = f"{path}/{name}"
        if name not in before:
            found.append(Difference("DEPENDENCY_SCHEMA_ADDED", place))
        else:
            found += compare(before[name], schema, place)
    return found


def _names_needed(raw: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    given = {**raw.get("dependencies", {}), **raw.get("dependentRequired", {})}
    return {name: each for name, each in given.items() if isinstance(each, list)}


def _schemas_needed(part: Part) -> dict[str, Source]:
    given = {**part.raw.get("dependencies", {}), **part.raw.get("dependentSchemas", {})}
    return {name: part.at(each) for name, each in given.items() if not isinstance(each, list)}


def _rest(
    compare: Compare, old: tuple[Part, Any], new: tuple[Part, Any], path: str, kind: str
) -> list[Difference]:
    """The schema of properties or items without a name: false, true, or a schema."""
    (old_part, was), (new_part, now) = old, new
    if (was is False) != (now is False):
        return [Difference(f"{kind}_REMOVED", path)] if now is False else []
    if not isinstance(now, dict):
        return []
    if not isinstance(was, dict):
        return [Difference(f"{kind}_NARROWED", path)]
    return compare(old_part.at(was), new_part.at(now), path)


def _arrays(compare: Compare, old: Part, new: Part, path: str) -> list[Difference]:
    """Return the differences of two schemas of arrays."""
    was, now = _Items(old), _Items(new)
    found = compare(was.every, now.every, f"{path}/items")
    common = min(len(was.first), len(now.first))
    for index in range(common):
        found += compare(was.first[index], now.first[index], f"{path}/items/{index}")
    for index in range(common, len(was.first)):
        found += _item_removed(compare, was.first[index], now, f"{path}/items/{index}")
    for index in range(common, len(now.first)):
        found += _item_added(compare, was, now.first[index], f"{path}/items/{index}")
    found += _rest(
        compare, (old, was.rest), (new, now.rest), f"{path}/additionalItems", "ADDITIONAL_ITEMS"
    )
    found += _bounds(old.raw, new.raw, path, {"maxItems": "MAX_ITEMS"}, {"minItems": "MIN_ITEMS"})
    if new.raw.get("uniqueItems") and not old.raw.get("uniqueItems"):
        found.append(Difference("UNIQUE_ITEMS_ADDED", f"{path}/uniqueItems"))
    return found


class _Items:
    """Schemas of items: of the first ones one by one, of the rest, or of all alike."""

    def __init__(self, part: Part) -> None:
        raw = part.raw
        items, first = raw.get("items"), raw.get("prefixItems")
        self.every: Source | None = None
        self.rest: Any = True
        if first is not None:  # since 2020-12
            self.rest = True if items is None else items
        else:
            # Confluent's rules look at it even where no list of items gives it a meaning.
            self.rest = raw.get("additionalItems", True)
            if isinstance(items, list):
                first = items
            elif items is not None:
                self.every = part.at(items)
        self.first = [part.at(each) for each in first or ()]
        self.others = part.at(self.rest) if isinstance(self.rest, dict) else None
        self.is_open = self.rest is True


def _item_removed(compare: Compare, was: Source, now: _Items, place: str) -> list[Difference]:
    if now.is_open:
        return []
    if now.others is not None:
        found = compare(was, now.others, place)
        kind = "ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
        return [*found, Difference(kind, place)] if found else []
    if _parts_of(was).kind == "never":
        return []
    return [Difference("ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL", place)]


def _item_added(compare: Compare, was: _Items, now: Source, place: str) -> list[Difference]:
    if was.is_open:
        if _parts_of(now).kind == "any":
            return []
        return [Difference("ITEM_ADDED_TO_OPEN_CONTENT_MODEL", place)]
    found = [] if was.others is None else compare(was.others, now, place)
    kind = "ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
    return [*found, Difference(kind, place)] if found else []


_STEPS_MAX = 200_000
_VALUES_A_STEP = 5
"""Values of an `enum` that take as long as a step does."""
_TEXT_A_STEP = 2000
"""Characters of JSON, of the same."""


def unreadable(reader: Source, writer: Source) -> list[str]:
    """Return why a value of `writer` may be none of `reader`: nothing if each is one."""
    found = _Comparison().schemas(writer, reader, "#")
    return [
        difference(each.kind, f"The new schema is narrower at path '{each.path}'", each.path)
        for each in dict.fromkeys(found)
    ]


@dataclass(slots=True)
class _Comparison:
    """One pass over two schemas. Schemas inside themselves are compared once on each way."""

    above: set[tuple[int, int, str]] = field(default_factory=set)
    steps: int = 0

    def schemas(
        self, old_given: Source | Part | None, new_given: Source | Part | None, path: str
    ) -> list[Difference]:
        """The differences between two schemas: values of the old one that the new one rejects;
        None: there is no schema.
        """
        if new_given is None:
            return []
        if old_given is None:
            return [Difference("SCHEMA_ADDED", path)]
        self._spend(1)
        old, new = _parts_of(old_given), _parts_of(new_given)
        if (old.kind == "combined") != (new.kind == "combined") and self._is_branch(old, new, path):
            return []
        if old.kind != new.kind:
            return (
                []
                if old.kind == "never" or new.kind == "any"
                else [Difference("TYPE_CHANGED", path)]
            )
        pair = (id(old.source.raw), id(new.source.raw), old.kind + old.criterion)
        if pair in self.above:
            return []
        self.above.add(pair)
        try:
            return self._same_kind(old, new, path)
        finally:
            self.above.discard(pair)

    def _spend(self, steps: int) -> None:
        """Count the steps of a comparison, which may meet one large part on many ways. Raises
        InvalidSchema.
        """
        self.steps += steps
        if self.steps > _STEPS_MAX:
            raise InvalidSchema(f"the schemas take more than {_STEPS_MAX} steps to compare")

    def _is_branch(self, old: Part, new: Part, path: str) -> bool:
        """Return whether one of the two is, to the other, no more than one of its own parts."""
        if new.kind == "combined":
            if len(new.parts) == 1 or new.criterion in ("anyOf", "oneOf"):
                return any(not self.schemas(old, each, path) for each in new.parts)
            return False
        if len(old.parts) == 1 or old.criterion == "allOf":
            return any(not self.schemas(each, new, path) for each in old.parts)
        return False

    def _same_kind(self, old: Part, new: Part, path: str) -> list[Difference]:
        match old.kind:
            case "string":
                return _strings(old.raw, new.raw, path)
            case "number":
                return _numbers(old, new, path)
            case "enum":
                self._spend((len(old.raw["enum"]) + len(new.raw["enum"])) // _VALUES_A_STEP)
                return _enums(old.raw["enum"], new.raw["enum"], path)
            case "const":
                changed = _frozen(old.raw["const"]) != _frozen(new.raw["const"])
                return [Difference("ENUM_ARRAY_CHANGED", f"{path}/const")] if changed else []
            case "not":
                # A negated schema may take less, never more.
                refused = self.schemas(new.parts[0], old.parts[0], f"{path}/not")
                return [Difference("NOT_TYPE_EXTENDED", f"{path}/not")] if refused else []
            case "combined":
                return self._combined(old, new, path)
            case "object":
                # A pattern is tried on each name that the other schema has alone.
                self._spend(_trials(old.raw, new.raw) + _trials(new.raw, old.raw))
                return _objects(self.schemas, old, new, path)
            case "array":
                return _arrays(self.schemas, old, new, path)
            case _:
                return []

    def _combined(self, old: Part, new: Part, path: str) -> list[Difference]:
        before, after = self._distinct(old.parts), self._distinct(new.parts)
        if not _is_criterion_kept(old, new):
            return [Difference("COMBINED_TYPE_CHANGED", path)]
        found = []
        if len(before) < len(after) and new.criterion == "allOf":
            found.append(Difference("PRODUCT_TYPE_EXTENDED", path))
        if len(before) > len(after) and old.criterion != "allOf":
            found.append(Difference("SUM_TYPE_NARROWED", path))
        edges = [
            [
                there
                for there, each in enumerate(after)
                if not self.schemas(part, each, f"{path}/{old.criterion}/{here}")
            ]
            for here, part in enumerate(before)
        ]
        if _matched(edges, len(after)) < min(len(before), len(after)):
            found.append(Difference("COMBINED_TYPE_SUBSCHEMAS_CHANGED", path))
        return found

    def _distinct(self, parts: Sequence[Part | Source]) -> list[Part | Source]:
        """Parts without those that are written twice."""
        found: dict[str, Part | Source] = {}
        for each in parts:
            kind = ""
            if isinstance(each, Part):
                kind = each.kind + str(each.is_integer) + each.criterion
            text = _frozen(each.source.raw if isinstance(each, Part) else each.raw)
            self._spend(len(text) // _TEXT_A_STEP)
            found.setdefault(kind + text, each)
        return list(found.values())


def _trials(raw: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    patterns = raw.get("patternProperties")
    if not patterns:
        return 0
    names = other.get("properties", {}).keys() - raw.get("properties", {}).keys()
    return len(patterns) * len(names)


def _is_criterion_kept(old: Part, new: Part) -> bool:
    if new.criterion in {old.criterion, "anyOf"}:
        return True
    was_one, is_one = len(old.parts) == 1, len(new.parts) == 1
    return (
        (was_one and is_one)
        or (was_one and new.criterion == "oneOf")
        or (is_one and old.criterion == "allOf")
    )


def _matched(edges: Sequence[Sequence[int]], count: int) -> int:
    """Number of one side that can be matched with one each of the other (Kuhn's
    augmenting paths).
    """
    given: list[int | None] = [None] * count

    def place(here: int, tried: set[int]) -> bool:
        for there in edges[here]:
            if there not in tried:
                tried.add(there)
                holder = given[there]
                if holder is None or place(holder, tried):
                    given[there] = here
                    return True
        return False

    return sum(place(here, set()) for here in range(len(edges)))
