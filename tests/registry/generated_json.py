"""JSON Schemas by a seed, of drafts 4 to 2020-12, most of them damaged. Without 2019-09, of which
Java's library fetches the draft from its address.
"""

import json
import random
from typing import Any

DRAFTS = (
    None,
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2020-12/schema",
)
TYPES = ("string", "number", "integer", "boolean", "null", "object", "array")
WRONG: tuple[Any, ...] = (None, True, 0, -1, 1.5, "", "a", [], [1], ["a", "a"], {}, {"a": 5}, "(")
KEYWORDS = (
    *("type", "properties", "required", "additionalProperties", "patternProperties", "items"),
    *("minLength", "maxLength", "pattern", "minimum", "maximum", "multipleOf", "uniqueItems"),
    *("enum", "allOf", "anyOf", "oneOf", "not", "$ref", "title", "description", "definitions"),
    *("minItems", "maxItems", "minProperties", "dependencies", "format", "default", "$id"),
    *("exclusiveMinimum", "contains", "propertyNames", "const", "if", "additionalItems"),
)


def json_schema(rng: random.Random) -> str:
    """Return a text."""
    schema = _schema(rng, 3)
    draft = rng.choice(DRAFTS)
    if isinstance(schema, dict):
        definitions = {"a": _schema(rng, 1), "b": _schema(rng, 1)}
        key = "$defs" if draft and "20" in draft else "definitions"
        schema = {**({"$schema": draft} if draft else {}), **schema, key: definitions}
        if rng.random() < 0.5:
            inside = rng.choice(_objects(schema))
            inside[rng.choice(KEYWORDS)] = rng.choice(WRONG)
        if rng.random() < 0.2:
            inside = rng.choice(_objects(schema))
            inside["$ref"] = rng.choice((f"#/{key}/a", f"#/{key}/none", "#", "other.json", "#x"))
    text = json.dumps(schema)
    return text[:-1] if rng.random() < 0.02 else text


def _schema(rng: random.Random, depth: int) -> Any:
    if depth < 3 and rng.random() < 0.1:
        return rng.random() < 0.7
    kind = rng.choice(TYPES)
    node: dict[str, Any] = {"type": kind if rng.random() < 0.9 else [kind, "null"]}
    match kind:
        case "object" if depth:
            names = rng.sample("abcd", rng.randrange(0, 4))
            node["properties"] = {name: _schema(rng, depth - 1) for name in names}
            if names and rng.random() < 0.5:
                node["required"] = names[:1]
            if rng.random() < 0.4:
                node["additionalProperties"] = rng.choice((False, True, _schema(rng, 0)))
        case "array" if depth:
            node["items"] = _schema(rng, depth - 1)
        case "string":
            node |= rng.choice(({}, {"minLength": 1}, {"pattern": "^a"}, {"enum": ["a", "b"]}))
        case "number" | "integer":
            node |= rng.choice(({}, {"minimum": 1}, {"multipleOf": 2}, {"maximum": 1.5}))
    if depth and rng.random() < 0.2:
        node = {rng.choice(("oneOf", "anyOf", "allOf")): [node, _schema(rng, depth - 1)]}
    return node


def _objects(node: Any) -> list[dict[str, Any]]:
    """The schemas in a schema."""
    found = []
    if isinstance(node, dict):
        found.append(node)
        for key in ("properties", "definitions", "$defs"):
            inside = node.get(key)
            for each in inside.values() if isinstance(inside, dict) else ():
                found += _objects(each)
        found += _objects(node.get("items"))
    return found
