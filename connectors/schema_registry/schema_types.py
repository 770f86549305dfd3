"""Types."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lakehead.connectors.schema_registry.errors import InvalidSchema
from lakehead.connectors.schema_registry.parsed import NamedText, ParsedSchema
from lakehead.connectors.schema_registry.records import AVRO, JSON, PROTOBUF


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaType:
    """What a type of schemas can do.

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
            from lakehead.connectors.schema_registry import avro_compatibility, avro_schema

            return SchemaType(
                parse=avro_schema.parse_avro, unreadable=avro_compatibility.unreadable
            )
        case "JSON":
            from lakehead.connectors.schema_registry import json_compatibility, json_schema

            return SchemaType(
                parse=json_schema.parse_json_schema, unreadable=json_compatibility.unreadable
            )
        case "PROTOBUF":
            from lakehead.connectors.schema_registry import protobuf_compatibility, protobuf_schema

            return SchemaType(
                parse=protobuf_schema.parse_protobuf,
                unreadable=protobuf_compatibility.unreadable,
            )
    raise InvalidSchema(f"Invalid schema type {kind}: there are {AVRO}, {JSON} and {PROTOBUF}")
