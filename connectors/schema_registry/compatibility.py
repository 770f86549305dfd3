"""What a compatibility level asks of a new schema, and of which earlier ones."""

from collections.abc import Sequence
from dataclasses import dataclass

from lakehead.connectors.schema_registry.parsed import ParsedSchema
from lakehead.connectors.schema_registry.schema_types import schema_type

LEVELS = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)
"""Backward: consumers with the new schema read what was written by earlier ones. Forward: consumers
with earlier ones read what is written by the new one. Full: both. Transitive: of all earlier ones
and not of the last alone.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """A version that a new schema is held against."""

    version: int
    schema: ParsedSchema


def problems(level: str, schema: ParsedSchema, earlier: Sequence[Earlier]) -> list[str]:
    """Return why a schema is not compatible with earlier ones (the oldest first); empty: it is.

    Raises InvalidSchema for schemas that are too large to compare.
    """
    if level == "NONE":
        return []
    held_against = list(reversed(earlier)) if level.endswith("_TRANSITIVE") else earlier[-1:]
    for one in held_against:
        found = _against(level, schema, one)
        if found:
            return [
                *found,
                f"{{oldSchemaVersion: {one.version}}}",
                f"{{oldSchema: '{one.schema.text}'}}",
                f"{{validateFields: 'false', compatibility: '{level}'}}",
            ]
    return []


def _against(level: str, schema: ParsedSchema, earlier: Earlier) -> list[str]:
    old = earlier.schema
    if schema.kind != old.kind:
        return [f"Incompatible because of different schema type: {old.kind} was, {schema.kind} is"]
    unreadable = schema_type(schema.kind).unreadable
    found: list[str] = []
    if level.startswith(("BACKWARD", "FULL")):
        found += unreadable(schema.model, old.model)
    if level.startswith(("FORWARD", "FULL")):
        found += unreadable(old.model, schema.model)
    return found
