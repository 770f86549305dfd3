"""Protobuf schemas: texts and descriptors, compiled by protoc as the lake does, in one form.

A text and a descriptor of the same file are one schema: what is kept is the text that `proto_text`
writes. Comments and blanks are no part of it.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError

from lakehead.connectors.schema_registry.errors import InvalidSchema
from lakehead.connectors.schema_registry.parsed import NamedText, ParsedSchema
from lakehead.connectors.schema_registry.proto_text import json_name, proto_text
from lakehead.connectors.schema_registry.records import PROTOBUF
from lakehead.lake.tables.values.decoder import UnusableSchema
from lakehead.lake.tables.values.protobuf_schema import compile_proto


@dataclass(frozen=True, slots=True)
class ProtobufModel:
    """A file with full names, and all messages and enums that it can see, by name."""

    file: FileDescriptorProto
    types: Mapping[str, Any]
    packages: Mapping[str, str]
    """The package of each type."""


def parse_protobuf(text: str, others: Sequence[NamedText], normalize: bool) -> ParsedSchema:
    """Read a .proto text, or a descriptor in base64; both are normalized in any case.

    Raises InvalidSchema.
    """
    del normalize
    references = tuple((other.name, other.text) for other in others)
    given = _described(text)
    try:
        if given is not None:
            _clean(given)
            written = proto_text(given)
            compiled = compile_proto(written, references)
            if _cleaned(compiled) != given:
                # Something that the printer does not know: the descriptor stays what it is.
                text = base64.b64encode(given.SerializeToString(deterministic=True)).decode()
                return _parsed(text, compile_proto(text, _described_all(references)))
            return _parsed(written, compiled)
        compiled = compile_proto(text, references)
        file = _cleaned(compiled)
        return _parsed(_written(file, text, references), compiled)
    except UnusableSchema as error:
        raise InvalidSchema(str(error)) from None
    except RecursionError:
        raise InvalidSchema("no Protobuf schema: nested too deep") from None


def _written(file: FileDescriptorProto, text: str, references: tuple[tuple[str, str], ...]) -> str:
    """The one text of a file; where it cannot be written so, the text that came."""
    written = proto_text(file)
    if written == text:
        return text
    try:
        same = _cleaned(compile_proto(written, references)) == file
    except UnusableSchema:
        same = False
    return written if same else text.strip()


def _described(text: str) -> FileDescriptorProto | None:
    try:
        found = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError):
        return None
    return found if found.message_type or found.enum_type else None


def _described_all(references: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """References as descriptors: one file is not compiled of texts and descriptors at once."""
    found = []
    for index, (name, text) in enumerate(references):
        if _described(text) is None:
            file = _cleaned(compile_proto(text, references[:index]))
            text = base64.b64encode(file.SerializeToString(deterministic=True)).decode()
        found.append((name, text))
    return tuple(found)


def _cleaned(compiled: FileDescriptor) -> FileDescriptorProto:
    file = FileDescriptorProto()
    compiled.CopyToProto(file)
    _clean(file)
    return file


def _clean(file: FileDescriptorProto) -> None:
    """Leave out what says nothing: the file's name, places in the text, names in JSON that follow
    from those of the fields.
    """
    file.ClearField("name")
    file.ClearField("source_code_info")
    if file.syntax == "proto2":
        file.ClearField("syntax")
    waiting = [*file.message_type]
    _clean_fields(file.extension)
    while waiting:
        message = waiting.pop()
        _clean_fields((*message.field, *message.extension))
        waiting += message.nested_type


def _clean_fields(fields: Any) -> None:
    for field in fields:
        if field.json_name == json_name(field.name):
            field.ClearField("json_name")


def _parsed(text: str, compiled: FileDescriptor) -> ParsedSchema:
    types: dict[str, Any] = {}
    packages: dict[str, str] = {}
    waiting, seen = [compiled], set()
    while waiting:
        each = waiting.pop()
        if each.name in seen:
            continue
        seen.add(each.name)
        file = _cleaned(each)
        _collect(file, f".{file.package}" if file.package else "", types)
        for name in types:
            packages.setdefault(name, file.package)
        waiting += each.dependencies
    model = ProtobufModel(_cleaned(compiled), types, packages)
    return ParsedSchema(kind=PROTOBUF, text=text, model=model)


def _collect(file: FileDescriptorProto, prefix: str, types: dict[str, Any]) -> None:
    waiting: list[tuple[str, Any]] = [
        (f"{prefix}.{each.name}", each) for each in (*file.message_type, *file.enum_type)
    ]
    while waiting:
        name, found = waiting.pop()
        types[name] = found
        inside = (*getattr(found, "nested_type", ()), *getattr(found, "enum_type", ()))
        waiting += [(f"{name}.{each.name}", each) for each in inside]


def serialized(schema: ParsedSchema) -> str:
    """Return the descriptor of a schema in base64, as clients ask for it (format=serialized)."""
    file = FileDescriptorProto()
    file.CopyFrom(schema.model.file)
    file.name = "default"
    return base64.b64encode(file.SerializeToString(deterministic=True)).decode()
