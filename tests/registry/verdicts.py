"""Verdicts of Java's Avro on generated schemas, and those of the registry beside them."""

import json
import random
from collections.abc import Sequence
from typing import Any

from connectors.schema_registry.compatibility import LEVELS, Earlier, problems
from connectors.schema_registry.errors import InvalidSchema
from connectors.schema_registry.parsed import NamedText, ParsedSchema, schema_type
from tests.registry.generated_avro import avro_chain, avro_reference


def avro_cases(seed: int, count: int) -> list[dict[str, Any]]:
    """Return cases of three schemas each, every fifth with a schema that they may refer to."""
    rng = random.Random(seed)
    cases = []
    for index in range(count):
        others = [{"name": "other", "text": avro_reference(rng)}] if index % 5 == 0 else []
        cases.append({"references": others, "schemas": avro_chain(rng)})
    return cases


def disagreements(case: dict[str, Any], verdict: dict[str, Any]) -> list[str]:
    """Return what the registry says otherwise than Java's library, of one case."""
    others = [NamedText(name=each["name"], text=each["text"]) for each in case["references"]]
    found, parsed = [], []
    for text, java in zip(case["schemas"], verdict["parsed"], strict=True):
        schema, reason = _parsed(text, others)
        parsed.append(schema)
        if (schema is not None) != java["ok"]:
            found.append(f"parse: {reason or 'taken'}, Java: {java.get('error', 'taken')}: {text}")
        elif schema is not None and _ordered(schema.text) != _ordered(java["text"]):
            found.append(f"text: {schema.text}, Java: {java['text']}")
    if not found and None not in parsed:
        found += _levels([each for each in parsed if each is not None], verdict["reads"])
    return found


def _parsed(text: str, others: Sequence[NamedText]) -> tuple[ParsedSchema | None, str]:
    try:
        return schema_type("AVRO").parse(text, others, False), ""
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
