"""A .proto text from a file's descriptor.

protoc compiles texts and writes none, and Python's library has no printer of descriptors. A
registry needs one: Python's serializers send descriptors, Java's send texts with comments, and both
mean the same schema. What is written here is compiled again by the caller and used only if it gives
the same descriptor, so what this module does not know (custom options, editions' features) costs a
pretty text and never a meaning.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    ServiceDescriptorProto,
)

_MAX_NUMBER = 1 << 29
_ENUM_MAX = (1 << 31) - 1
_INDENT = "  "


def proto_text(file: FileDescriptorProto) -> str:
    """Return the text of a file whose types are named in full."""
    return "\n".join(_Printer(file).file()) + "\n"


class _Printer:
    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._is_proto3 = file.syntax == "proto3"
        self._prefix = f".{file.package}." if file.package else "."

    def file(self) -> Iterator[str]:
        """The lines of a file."""
        file = self._file
        if file.syntax == "editions":
            yield f'edition = "{file.edition}";'
        else:
            yield f'syntax = "{file.syntax or "proto2"}";'
        if file.package:
            yield f"package {file.package};"
        if file.dependency:
            yield ""
        for index, name in enumerate(file.dependency):
            public = "public " if index in file.public_dependency else ""
            yield f"import {public}{_quoted(name)};"
        options = list(self._options(file.options))
        if options:
            yield ""
        yield from (f"option {option};" for option in options)
        for message in file.message_type:
            yield ""
            yield from self._message(message, "")
        for enum in file.enum_type:
            yield ""
            yield from self._enum(enum, "")
        yield from self._extensions(file.extension, "")
        for service in file.service:
            yield ""
            yield from self._service(service)

    def _message(self, message: DescriptorProto, indent: str) -> Iterator[str]:
        yield f"{indent}message {message.name} {{"
        yield from self._body(message, indent + _INDENT)
        yield f"{indent}}}"

    def _body(self, message: DescriptorProto, inner: str) -> Iterator[str]:
        yield from (f"{inner}option {option};" for option in self._options(message.options))
        yield from _reserved(message, inner)
        for ranged in message.extension_range:
            yield f"{inner}extensions {_span(ranged.start, ranged.end - 1, _MAX_NUMBER - 1)};"
        for enum in message.enum_type:
            yield from self._enum(enum, inner)
        waiting = list(message.nested_type)
        yield from self._extensions(message.extension, inner, waiting)
        shown: set[int] = set()
        for field in message.field:
            if not field.HasField("oneof_index") or field.proto3_optional:
                yield from self._field(field, inner, waiting)
            elif field.oneof_index not in shown:
                shown.add(field.oneof_index)
                yield from self._oneof(message, field.oneof_index, inner, waiting)
        for each in waiting:
            yield from self._message(each, inner)

    def _oneof(
        self, message: DescriptorProto, index: int, indent: str, waiting: list[DescriptorProto]
    ) -> Iterator[str]:
        oneof, inner = message.oneof_decl[index], indent + _INDENT
        yield f"{indent}oneof {oneof.name} {{"
        yield from (f"{inner}option {option};" for option in self._options(oneof.options))
        for member in message.field:
            if member.HasField("oneof_index") and member.oneof_index == index:
                yield from self._field(member, inner, waiting)
        yield f"{indent}}}"

    def _field(
        self, field: FieldDescriptorProto, indent: str, waiting: list[DescriptorProto]
    ) -> Iterator[str]:
        """A field, after the nested messages whose places are before that of its own message.

        Values name their message by its place among the nested ones, entries of maps included.
        """
        details = self._details(field)
        entry = _own_message(field, waiting)
        if entry is not None:
            while waiting[0] is not entry:
                yield from self._message(waiting.pop(0), indent)
            waiting.pop(0)
            if entry.options.map_entry:
                kinds = ", ".join(self._type(each) for each in entry.field)
                yield f"{indent}map<{kinds}> {field.name} = {field.number}{details};"
            else:
                yield f"{indent}{self._label(field)}group {entry.name} = {field.number}{details} {{"
                yield from self._body(entry, indent + _INDENT)
                yield f"{indent}}}"
            return
        label = self._label(field)
        yield f"{indent}{label}{self._type(field)} {field.name} = {field.number}{details};"

    def _label(self, field: FieldDescriptorProto) -> str:
        if field.label == FieldDescriptorProto.LABEL_REPEATED:
            return "repeated "
        if field.HasField("oneof_index") and not field.proto3_optional:
            return ""
        if field.label == FieldDescriptorProto.LABEL_REQUIRED:
            return "required "
        is_said = field.proto3_optional or self._file.syntax in ("", "proto2")
        return "optional " if is_said else ""

    def _type(self, field: FieldDescriptorProto) -> str:
        if field.type_name:
            return str(field.type_name)
        name: str = FieldDescriptorProto.Type.Name(field.type)
        return name.removeprefix("TYPE_").lower()

    def _details(self, field: FieldDescriptorProto) -> str:
        found = []
        if field.HasField("default_value"):
            text = field.default_value
            is_text = field.type == FieldDescriptorProto.TYPE_STRING
            is_bytes = field.type == FieldDescriptorProto.TYPE_BYTES
            shown = _quoted(text) if is_text else f'"{text}"' if is_bytes else text
            found.append(f"default = {shown}")
        if field.json_name and field.json_name != json_name(field.name):
            found.append(f"json_name = {_quoted(field.json_name)}")
        found += self._options(field.options)
        return f" [{', '.join(found)}]" if found else ""

    def _enum(self, enum: EnumDescriptorProto, indent: str) -> Iterator[str]:
        inner = indent + _INDENT
        yield f"{indent}enum {enum.name} {{"
        yield from (f"{inner}option {option};" for option in self._options(enum.options))
        spans = [_span(each.start, each.end, _ENUM_MAX) for each in enum.reserved_range]
        if spans:
            yield f"{inner}reserved {', '.join(spans)};"
        if enum.reserved_name:
            yield f"{inner}reserved {', '.join(map(_quoted, enum.reserved_name))};"
        for value in enum.value:
            options = list(self._options(value.options))
            details = f" [{', '.join(options)}]" if options else ""
            yield f"{inner}{value.name} = {value.number}{details};"
        yield f"{indent}}}"

    def _extensions(
        self,
        extensions: Iterable[FieldDescriptorProto],
        indent: str,
        waiting: list[DescriptorProto] | None = None,
    ) -> Iterator[str]:
        for field in extensions:
            yield f"{indent}extend {field.extendee} {{"
            yield from self._field(field, indent + _INDENT, [] if waiting is None else waiting)
            yield f"{indent}}}"

    def _service(self, service: ServiceDescriptorProto) -> Iterator[str]:
        yield f"service {service.name} {{"
        yield from (f"{_INDENT}option {option};" for option in self._options(service.options))
        for method in service.method:
            asked = f"{'stream ' if method.client_streaming else ''}{method.input_type}"
            told = f"{'stream ' if method.server_streaming else ''}{method.output_type}"
            options = [f"option {option};" for option in self._options(method.options)]
            end = f" {{ {' '.join(options)} }}" if options else ";"
            yield f"{_INDENT}rpc {method.name} ({asked}) returns ({told}){end}"
        yield "}"

    @staticmethod
    def _options(options: Any) -> Iterator[str]:
        for field, value in options.ListFields():
            if field.name == "map_entry" or field.message_type is not None or field.is_repeated:
                continue
            if field.enum_type is not None:
                shown = field.enum_type.values_by_number[value].name
            elif isinstance(value, bool):
                shown = str(value).lower()
            else:
                shown = _quoted(value) if isinstance(value, str) else str(value)
            yield f"{field.name} = {shown}"


def _own_message(
    field: FieldDescriptorProto, waiting: list[DescriptorProto]
) -> DescriptorProto | None:
    """The message that the field makes where it stands: a group, or the entries of a map."""
    is_group = field.type == FieldDescriptorProto.TYPE_GROUP
    name = field.type_name.rpartition(".")[2]
    for each in waiting:
        if each.name == name and (is_group or each.options.map_entry):
            return each
    return None


def json_name(name: str) -> str:
    """Return the name in JSON that a field has by default: `flight_no` is `flightNo`."""
    first, *others = name.split("_")
    return first + "".join(each[:1].upper() + each[1:] for each in others)


def _reserved(message: DescriptorProto, indent: str) -> Iterator[str]:
    spans = [_span(each.start, each.end - 1, _MAX_NUMBER - 1) for each in message.reserved_range]
    if spans:
        yield f"{indent}reserved {', '.join(spans)};"
    if message.reserved_name:
        yield f"{indent}reserved {', '.join(map(_quoted, message.reserved_name))};"


def _span(first: int, last: int, most: int) -> str:
    if first == last:
        return str(first)
    return f"{first} to {'max' if last == most else last}"


def _quoted(text: str) -> str:
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}"
        for byte in text.encode()
    )
    return f'"{escaped}"'
