"""JSON Schemas (drafts 4 to 2020-12): checked by `jsonschema`, references found by `referencing`.

A schema is taken apart the way that the comparison needs it: each part asserts one thing, and one
that asserts several is `allOf` them. Nothing is fetched: what is referred to lies in the schema, in
the registered schemas that come with it, or among the drafts themselves.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urljoin

from jsonschema.exceptions import SchemaError
from jsonschema.validators import Draft7Validator, validator_for
from jsonschema_specifications import REGISTRY
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT7, DRAFT201909, DRAFT202012, specification_with

from lakehead.connectors.schema_registry.errors import InvalidSchema
from lakehead.connectors.schema_registry.parsed import NamedText, ParsedSchema
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
"""What tells the type of a schema that does not name it."""
_REFERENCES_MAX = 100


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
        validator_for(raw, default=Draft7Validator).check_schema(raw)
        source = _rooted(raw, others)
        _check_references(source)
    except SchemaError as error:
        where = "/".join(map(str, error.absolute_path))
        raise InvalidSchema(f"no JSON Schema: at '#/{where}': {error.message[:200]}") from None
    except Unresolvable as error:
        raise InvalidSchema(f"no JSON Schema: reference {error.ref!r} leads nowhere") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
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


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _rooted(raw: Any, others: Sequence[NamedText]) -> Source:
    """A schema with all that it may refer to."""
    root = _resource(raw)
    base = root.id() or ""
    registry = REGISTRY.with_resource(base, root)
    for other in others:
        resource = _resource(_loaded(other.text))
        for name in {other.name, urljoin(base, other.name), resource.id() or other.name}:
            registry = registry.with_resource(name, resource)
    return Source(raw, registry.resolver(base))


def _resource(raw: Any) -> Any:
    named = raw.get("$schema") if isinstance(raw, dict) else None
    specification = specification_with(named, default=DRAFT7) if named else DRAFT7
    return specification.create_resource(raw)


def parts_of(given: Source | Part) -> Part:
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
    """What a schema asserts, one thing at a time."""
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
        part = parts_of(given)
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
