"""Checked content of requests: a schema to register or to find, a version, a config."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lakehead.connectors.schema_registry.compatibility import LEVELS
from lakehead.connectors.schema_registry.errors import (
    invalid_compatibility,
    invalid_schema,
    invalid_version,
    malformed_request,
)
from lakehead.connectors.schema_registry.records import (
    AVRO,
    KINDS,
    Config,
    SchemaReference,
    read_reference,
    sorted_json,
)

LATEST = -1
_VERSION_MAX = 2**31 - 1
_REFERENCES_MAX = 1000
_CONFIG_FIELDS = frozenset(("compatibility", "compatibilityLevel", "normalize"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedSchema:
    """A schema as a client sent it. `schema_id` and `version` are for the mode IMPORT."""

    kind: str
    text: str
    references: tuple[SchemaReference, ...] = ()
    metadata: str = ""
    rule_set: str = ""
    schema_id: int | None = None
    version: int | None = None


def read_schema(body: Any) -> RequestedSchema:
    """Return the schema of a request. Raises RegistryError."""
    fields = _object(body)
    kind = fields.get("schemaType") or AVRO
    text = fields.get("schema")
    if kind not in KINDS:
        raise invalid_schema(f"Invalid schema type {kind}: there are AVRO, JSON and PROTOBUF")
    if not isinstance(text, str) or not text.strip():
        raise invalid_schema("Empty schema")
    if not text.isprintable():
        _check_characters(text)
    given = fields.get("references") or []
    try:
        references = tuple(map(read_reference, given))
        if len(references) > _REFERENCES_MAX:
            raise ValueError(f"more than {_REFERENCES_MAX} references")
        number = _number(fields.get("id"))
        version = _number(fields.get("version"))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise malformed_request(
            f"references are a list of name, subject and version, id and version numbers: {error}"
        ) from None
    for name in ("metadata", "ruleSet"):
        if not isinstance(fields.get(name) or {}, dict):
            raise malformed_request(f"{name} is not a JSON object")
        _check_characters(json.dumps(fields.get(name), ensure_ascii=False))
    return RequestedSchema(
        kind=kind,
        text=text,
        references=references,
        metadata=sorted_json(fields.get("metadata")),
        rule_set=sorted_json(fields.get("ruleSet")),
        schema_id=number,
        version=version,
    )


def _check_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise invalid_schema(
            "Invalid schema: half of a surrogate pair is not a character"
        ) from None


def _number(given: Any) -> int | None:
    """A number that is set: clients send 0 or -1 for none."""
    number = 0 if given is None else int(given)
    if number > _VERSION_MAX:
        raise ValueError(f"{number} is more than {_VERSION_MAX}")
    return number if number > 0 else None


def read_version(text: str) -> int:
    """Return the version of a path, LATEST for the last. Raises RegistryError."""
    if text in ("latest", "-1"):
        return LATEST
    is_number = text.isascii() and text.isdigit() and len(text) <= 20
    if not (is_number and 0 < int(text) <= _VERSION_MAX):
        raise invalid_version(text)
    return int(text)


def read_config(body: Any) -> Config:
    """Return the config of a request. Raises RegistryError."""
    fields = _object(body)
    unserved = sorted(name for name in fields if name not in _CONFIG_FIELDS and fields[name])
    if unserved:
        raise malformed_request(
            f"{unserved[0]} is not served here: a config has compatibility and normalize"
        )
    level = fields.get("compatibility", fields.get("compatibilityLevel"))
    normalize = fields.get("normalize")
    if level is not None and str(level).upper() not in LEVELS:
        raise invalid_compatibility()
    if level is None and normalize is None:
        raise invalid_compatibility()
    return Config(
        level=None if level is None else str(level).upper(),
        normalize=None if normalize is None else bool(normalize),
    )


def read_mode(body: Any) -> str:
    """Return the mode of a request, as it came."""
    return str(_object(body).get("mode", "")).upper()


def _object(body: Any) -> Mapping[str, Any]:
    if not isinstance(body, dict):
        raise malformed_request("the body is not a JSON object")
    return body
