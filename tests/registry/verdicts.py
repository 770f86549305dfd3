"""Verdicts of Java's libraries on generated schemas, and those of the registry beside them."""

import json
import random
from collections.abc import Sequence
from typing import Any

from lakehead.connectors.schema_registry.compatibility import LEVELS, Earlier, problems, schema_type
from lakehead.connectors.schema_registry.errors import InvalidSchema
from lakehead.connectors.schema_registry.parsed import NamedText, ParsedSchema
from tests.registry.generated_avro import avro_chain, avro_reference
from tests.registry.generated_json import json_schema
from tests.registry.generated_protobuf import protobuf_schema

KINDS = ("AVRO", "JSON", "PROTOBUF")
BY_DESIGN = {
    "JSON": (
        "no JSON Schema: at '#/",  # by the draft, which everit looks at where a reference leads
        "references lead to one another",
        "no JSON Schema: reference",
    ),
    "PROTOBUF": ("no Protobuf schema: ",),  # protoc looks at meanings, Wire's parser at words
}
"""In reasons by which the registry refuses what Java takes: docs/schema-registry.md."""


def made_cases(kind: str, seed: int, count: int) -> list[dict[str, Any]]:
    """Return cases of three schemas each. Those of Avro grow from one another, and every fifth
    case has a schema that they may refer to.
    """
    rng = random.Random(seed)
    cases = []
    for index in range(count):
        others: list[dict[str, str]] = []
        if kind == "AVRO":
            others = [{"name": "other", "text": avro_reference(rng)}] if index % 5 == 0 else []
            schemas = avro_chain(rng)
        else:
            made = json_schema if kind == "JSON" else protobuf_schema
            schemas = [made(rng) for _ in range(3)]
        cases.append({"kind": kind, "references": others, "schemas": schemas})
    return cases


def disagreements(case: dict[str, Any], verdict: dict[str, Any]) -> list[str]:
    """Return what the registry says otherwise than Java's library, of one case."""
    others = [NamedText(name=each["name"], text=each["text"]) for each in case["references"]]
    kind, found, parsed = case["kind"], [], []
    for text, java in zip(case["schemas"], verdict["parsed"], strict=True):
        schema, reason = _parsed(kind, text, others)
        parsed.append(schema)
        if java["ok"] and any(known in reason for known in BY_DESIGN.get(kind, ())):
            continue
        if (schema is not None) != java["ok"]:
            found.append(f"parse: {reason or 'taken'}, Java: {java.get('error', 'taken')}: {text}")
        elif (
            schema is not None
            and kind == "AVRO"
            and _ordered(schema.text) != _ordered(java["text"])
        ):
            found.append(f"text: {schema.text}, Java: {java['text']}")
    if kind == "AVRO" and not found and None not in parsed:
        found += _levels([each for each in parsed if each is not None], verdict["reads"])
    return found


def _parsed(kind: str, text: str, others: Sequence[NamedText]) -> tuple[ParsedSchema | None, str]:
    try:
        return schema_type(kind).parse(text, others, False), ""
    except InvalidSchema as error:
        return None, str(error)


def _ordered(text: str) -> Any:
    """JSON with the order of its keys: numbers may be written in several ways."""
    return json.loads(text, object_pairs_hook=list)


def _levels(chain: list[ParsedSchema], reads: list[list[bool]]) -> Sequence[str]:
    """The last schema of a chain against the others, at each level."""
    new = len(chain) - 1
    earlier = [Earlier(version=at + 1, schema=each) for at, each in enumerate(chain[:new])]
    found = []
    for level in LEVELS:
        held = range(new) if level.endswith("_TRANSITIVE") else [new - 1]
        expected = level == "NONE" or all(
            (reads[new][old] or not level.startswith(("BACKWARD", "FULL")))
            and (reads[old][new] or not level.startswith(("FORWARD", "FULL")))
            for old in held
        )
        if (not problems(level, chain[new], earlier)) != expected:
            found.append(f"{level}: Java says {expected}: {[each.text for each in chain]}")
    return found
