"""The records of the topic `_schemas`, as Confluent's registry writes and reads them.

Keys and values are JSON. A key's bytes decide what compaction keeps, so its fields have one order:

- SCHEMA (subject, version, magic 1): subject, version, id, schemaType unless AVRO, references,
  schema, deleted; null: gone for good
- CONFIG (subject or null, magic 0): compatibilityLevel, normalize; null: unset
- MODE (subject or null, magic 0): mode; null: unset
- DELETE_SUBJECT (subject, magic 0): subject, version: all to this one are soft deleted
- CLEAR_SUBJECT (subject, magic 0): subject
- CONTEXT (tenant, context, magic 0): tenant, context
- NOOP (magic 0): null, or what is ours: ids, the highest id of each context that was ever given

Confluent's reader skips a NOOP without a look at its value, so the highest ids may be kept there:
they must not be given again when the schema that had one is deleted for good.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
KINDS = (JSON, PROTOBUF, AVRO)
_TENANT = "default"


class MalformedRecord(Exception):
    """A record of the topic that this registry cannot read."""


_MALFORMED = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)
"""Errors of reading one; the last is that of a number such as 1e999."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaReference:
    """A version of a subject that a schema uses, by the name it uses it under."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaText:
    """All that makes a schema that one and no other: two of the same are one schema with one id.

    `metadata` and `rule_set` are JSON texts with sorted keys, empty for none: they are kept and
    given back, and nothing here acts by them.
    """

    kind: str
    text: str
    references: tuple[SchemaReference, ...] = ()
    metadata: str = ""
    rule_set: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A schema as a version of a subject (by its qualified name)."""

    subject: str
    version: int
    schema_id: int
    schema: SchemaText
    is_deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The config of a subject, a context or all; None: it is not set there."""

    level: str | None = None
    normalize: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecord:
    """A version as it is from here on; None: it is gone for good."""

    subject: str
    version: int
    held: Version | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord:
    """The config of a subject, or of all for an empty name."""

    subject: str
    config: Config | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeRecord:
    """The mode of a subject, or of all for an empty name."""

    subject: str
    mode: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectDeletion:
    """Versions of a subject to this one are soft deleted."""

    subject: str
    last_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectCleared:
    """Nothing of a subject is left; its versions have gone by records of their own."""

    subject: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRecord:
    """There is a context."""

    context: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IdsRecord:
    """The highest ids that were ever given, by context."""

    highest: Mapping[str, int] = field(default_factory=dict)


Record = (
    VersionRecord
    | ConfigRecord
    | ModeRecord
    | SubjectDeletion
    | SubjectCleared
    | ContextRecord
    | IdsRecord
)


def encode(record: Record) -> tuple[bytes, bytes | None]:
    """Return the key and the value of a record."""
    key: dict[str, Any]
    value: dict[str, Any] | None
    match record:
        case VersionRecord():
            key = {"keytype": "SCHEMA", "subject": record.subject, "version": record.version}
            key["magic"] = 1
            value = None if record.held is None else _version_value(record.held)
        case ConfigRecord():
            key = _subject_key("CONFIG", record.subject)
            value = None if record.config is None else _config_value(record.config)
        case ModeRecord():
            key = _subject_key("MODE", record.subject)
            value = None if record.mode is None else {"mode": record.mode}
        case SubjectDeletion():
            key = _subject_key("DELETE_SUBJECT", record.subject)
            value = {"subject": record.subject, "version": record.last_version}
        case SubjectCleared():
            key = _subject_key("CLEAR_SUBJECT", record.subject)
            value = {"subject": record.subject}
        case ContextRecord():
            value = {"tenant": _TENANT, "context": record.context}
            key = {"keytype": "CONTEXT", **value, "magic": 0}
        case IdsRecord():
            key = {"keytype": "NOOP", "magic": 0}
            value = {"ids": dict(sorted(record.highest.items()))}
    return compact_json(key), None if value is None else compact_json(value)


def decode(key_bytes: bytes | None, value_bytes: bytes | None) -> Record | None:
    """Return the record of a key and a value, None for one that says nothing.

    Raises MalformedRecord.
    """
    try:
        key = json.loads(key_bytes or b"")
        value = json.loads(value_bytes) if value_bytes else None
        return _decoded(key, value)
    except _MALFORMED as error:
        raise MalformedRecord(f"{type(error).__name__}: {error}") from None


def _decoded(key: dict[str, Any], value: dict[str, Any] | None) -> Record | None:
    subject = str(key.get("subject") or "")
    match key["keytype"]:
        case "SCHEMA":
            held = None if value is None else _version(value)
            return VersionRecord(subject=subject, version=int(key["version"]), held=held)
        case "CONFIG":
            return ConfigRecord(subject=subject, config=None if value is None else _config(value))
        case "MODE":
            return ModeRecord(subject=subject, mode=None if value is None else str(value["mode"]))
        case "DELETE_SUBJECT" if value is not None:
            return SubjectDeletion(subject=subject, last_version=int(value["version"]))
        case "CONTEXT" if value is not None:
            return ContextRecord(context=str(value["context"]))
        case "NOOP" if value is not None:
            given = value.get("ids", {})
            return IdsRecord(highest={str(name): int(number) for name, number in given.items()})
        case _:
            return None


def _subject_key(kind: str, subject: str) -> dict[str, Any]:
    return {"keytype": kind, "subject": subject or None, "magic": 0}


def _version_value(held: Version) -> dict[str, Any]:
    schema = held.schema
    value: dict[str, Any] = {"subject": held.subject, "version": held.version}
    value["id"] = held.schema_id
    if schema.kind != AVRO:
        value["schemaType"] = schema.kind
    if schema.references:
        value["references"] = [reference_fields(each) for each in schema.references]
    if schema.metadata:
        value["metadata"] = json.loads(schema.metadata)
    if schema.rule_set:
        value["ruleSet"] = json.loads(schema.rule_set)
    return value | {"schema": schema.text, "deleted": held.is_deleted}


def reference_fields(reference: SchemaReference) -> dict[str, Any]:
    """Return a reference in the form of requests, responses and records."""
    return {"name": reference.name, "subject": reference.subject, "version": reference.version}


def read_reference(given: Mapping[str, Any]) -> SchemaReference:
    """Return the reference of its fields. Raises KeyError, TypeError, ValueError."""
    return SchemaReference(
        name=str(given["name"]), subject=str(given["subject"]), version=int(given["version"])
    )


def sorted_json(given: Any) -> str:
    """Return JSON with sorted keys, empty for nothing."""
    return json.dumps(given, sort_keys=True, separators=(",", ":")) if given else ""


def _version(value: Mapping[str, Any]) -> Version:
    return Version(
        subject=str(value["subject"]),
        version=int(value["version"]),
        schema_id=int(value["id"]),
        schema=SchemaText(
            kind=str(value.get("schemaType") or AVRO),
            text=str(value["schema"]),
            references=tuple(map(read_reference, value.get("references") or ())),
            metadata=sorted_json(value.get("metadata")),
            rule_set=sorted_json(value.get("ruleSet")),
        ),
        is_deleted=bool(value.get("deleted", False)),
    )


def _config(value: Mapping[str, Any]) -> Config:
    level, normalize = value.get("compatibilityLevel"), value.get("normalize")
    return Config(
        level=None if level is None else str(level),
        normalize=None if normalize is None else bool(normalize),
    )


def _config_value(config: Config) -> dict[str, Any]:
    value: dict[str, Any] = {}
    if config.level is not None:
        value["compatibilityLevel"] = config.level
    if config.normalize is not None:
        value["normalize"] = config.normalize
    return value


def compact_json(value: Any) -> bytes:
    """Return JSON without blanks, in UTF-8."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
