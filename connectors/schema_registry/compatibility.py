"""Types of schemas, and compatibility levels: the versions that a new schema is compared with.

Each type has a module that reads its schemas and compares two of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lakehead.connectors.schema_registry.errors import InvalidSchema
from lakehead.connectors.schema_registry.parsed import NamedText, ParsedSchema
from lakehead.connectors.schema_registry.records import AVRO, JSON, PROTOBUF


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaType:
    """The functions of a type of schemas.

    `parse(text, others, normalize)` raises InvalidSchema; `others` stand each after those they need
    themselves. `unreadable(reader, writer)` are the reasons why values of `writer` cannot be read
    by `reader`; none: they can.
    """

    parse: Callable[[str, Sequence[NamedText], bool], ParsedSchema]
    unreadable: Callable[[Any, Any], list[str]]


def schema_type(kind: str) -> SchemaType:
    """Return the type of a name. Raises InvalidSchema."""
    match kind:
        case "AVRO":
            from lakehead.connectors.schema_registry import avro_schema

            return SchemaType(parse=avro_schema.parse_avro, unreadable=avro_schema.unreadable)
        case "JSON":
            from lakehead.connectors.schema_registry import json_schema

            return SchemaType(
                parse=json_schema.parse_json_schema, unreadable=json_schema.unreadable
            )
        case "PROTOBUF":
            from lakehead.connectors.schema_registry import protobuf_schema

            return SchemaType(
                parse=protobuf_schema.parse_protobuf,
                unreadable=protobuf_schema.unreadable,
            )
    raise InvalidSchema(f"Invalid schema type {kind}: there are {AVRO}, {JSON} and {PROTOBUF}")


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
