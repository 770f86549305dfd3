"""Protobuf schemas of the registry: texts and descriptors in one form, and compatibility.

A text and a descriptor of the same file are one schema, compiled by protoc as the lake does; the
registry keeps the text that `_proto_text` writes, without comments and blanks. protoc compiles
texts and writes none, and Python's library has no printer of descriptors. A registry needs a
printer: Python's serializers send descriptors, Java's send texts with comments, and both mean the
same schema. The caller compiles the written text again and uses it only if it gives the same
descriptor, so a feature that the printer lacks (custom options, editions' features) costs a pretty
text and never a meaning.

Two are compatible by the rules of Confluent's registry. Fields are identified by number. Numbers
may come and go, but not those of `required` fields; a type may change within its kind on the wire
(int32 and int64 and bool and enums, string and bytes); a message that is there stays; and of fields
that could be set together no two may come into one `oneof`. Stricter in one place than Confluent's:
a proto3 number without a label that becomes `repeated` is incompatible, as it is when the label is
written out, since packed values are not read as one.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    OneofDescriptorProto,
    ServiceDescriptorProto,
)
from google.protobuf.message import DecodeError

from lakehead.connectors.schema_registry.errors import InvalidSchema
from lakehead.connectors.schema_registry.parsed import NamedText, ParsedSchema, difference
from lakehead.connectors.schema_registry.records import PROTOBUF
from lakehead.lake.tables.values.decoder import UnusableSchema
from lakehead.lake.tables.values.protobuf_schema import compile_proto

_MAX_NUMBER = 1 << 29
_ENUM_MAX = (1 << 31) - 1
_INDENT = "  "


def _proto_text(file: FileDescriptorProto) -> str:
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
        members: dict[int, list[FieldDescriptorProto]] = {}
        for field in message.field:
            if _is_member(field):
                members.setdefault(field.oneof_index, []).append(field)
        for field in message.field:
            if not _is_member(field):
                yield from self._field(field, inner, waiting)
            elif field.oneof_index in members:
                oneof = message.oneof_decl[field.oneof_index]
                yield from self._oneof(oneof, members.pop(field.oneof_index), inner, waiting)
        for each in waiting:
            yield from self._message(each, inner)

    def _oneof(
        self,
        oneof: OneofDescriptorProto,
        members: Sequence[FieldDescriptorProto],
        indent: str,
        waiting: list[DescriptorProto],
    ) -> Iterator[str]:
        inner = indent + _INDENT
        yield f"{indent}oneof {oneof.name} {{"
        yield from (f"{inner}option {option};" for option in self._options(oneof.options))
        for member in members:
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
        if field.json_name and field.json_name != _json_name(field.name):
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
            request = f"{'stream ' if method.client_streaming else ''}{method.input_type}"
            response = f"{'stream ' if method.server_streaming else ''}{method.output_type}"
            options = [f"option {option};" for option in self._options(method.options)]
            end = f" {{ {' '.join(options)} }}" if options else ";"
            yield f"{_INDENT}rpc {method.name} ({request}) returns ({response}){end}"
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


def _is_member(field: FieldDescriptorProto) -> bool:
    """True for a field of a oneof that is written, not of one that proto3's `optional` makes up."""
    return field.HasField("oneof_index") and not field.proto3_optional


def _own_message(
    field: FieldDescriptorProto, waiting: list[DescriptorProto]
) -> DescriptorProto | None:
    """The message that the field makes where it stands: a group, or the entries of a map."""
    is_group = field.type == FieldDescriptorProto.TYPE_GROUP
    if not is_group and field.label != FieldDescriptorProto.LABEL_REPEATED:
        return None
    name = field.type_name.rpartition(".")[2]
    for each in waiting:
        if each.name == name and (is_group or each.options.map_entry):
            return each
    return None


def _json_name(name: str) -> str:
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
            written = _proto_text(given)
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
    written = _proto_text(file)
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
        if field.json_name == _json_name(field.name):
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
    """Return the descriptor of a schema in base64, as clients request it (format=serialized)."""
    file = FileDescriptorProto()
    file.CopyFrom(schema.model.file)
    file.name = "default"
    return base64.b64encode(file.SerializeToString(deterministic=True)).decode()


_Proto = FieldDescriptorProto
_WIRE_KINDS: Mapping[int, str] = {
    **dict.fromkeys(
        (
            *(_Proto.TYPE_INT32, _Proto.TYPE_INT64, _Proto.TYPE_UINT32, _Proto.TYPE_UINT64),
            *(_Proto.TYPE_BOOL, _Proto.TYPE_ENUM),
        ),
        "number",
    ),
    **dict.fromkeys((_Proto.TYPE_SINT32, _Proto.TYPE_SINT64), "signed number"),
    **dict.fromkeys((_Proto.TYPE_STRING, _Proto.TYPE_BYTES), "string or bytes"),
    **dict.fromkeys((_Proto.TYPE_FIXED32, _Proto.TYPE_SFIXED32), "fixed32"),
    **dict.fromkeys((_Proto.TYPE_FIXED64, _Proto.TYPE_SFIXED64), "fixed64"),
    _Proto.TYPE_FLOAT: "float",
    _Proto.TYPE_DOUBLE: "double",
}


def unreadable(reader: ProtobufModel, writer: ProtobufModel) -> list[str]:
    """Return why values of `writer` cannot be read by `reader`: nothing if they can."""
    comparison = _Comparison(writer, reader)
    found = comparison.messages(writer.file.message_type, reader.file.message_type, "#")
    return list(dict.fromkeys(found))


_Entries = Mapping[str, DescriptorProto]
"""The messages that stand for the entries of a message's maps, by name."""


class _Comparison:
    def __init__(self, old: ProtobufModel, new: ProtobufModel) -> None:
        self._old = old
        self._new = new
        self._begun: set[tuple[str, str]] = set()
        self._local = {f"{_prefix(old)}.{each.name}" for each in old.file.message_type}

    def messages(self, old: Any, new: Any, path: str) -> Iterator[str]:
        """Compare messages at one place, by their names."""
        kept = {each.name: each for each in new}
        for message in old:
            if message.options.map_entry:
                continue
            place = f"{path}/{message.name}"
            if message.name not in kept:
                yield _reason("MESSAGE_REMOVED", place)
            else:
                yield from self._message(message, kept[message.name], place)

    def _message(self, old: DescriptorProto, new: DescriptorProto, path: str) -> Iterator[str]:
        yield from _oneofs(old, new, path)
        was = {field.number: field for field in old.field}
        now = {field.number: field for field in new.field}
        entries_were, entries_are = _entries(old), _entries(new)
        for number in sorted(was.keys() | now.keys()):
            place = f"{path}/{number}"
            before, after = was.get(number), now.get(number)
            if before is not None and after is not None:
                yield from self._field((entries_were, before), (entries_are, after), place)
            elif before is not None and before.label == _Proto.LABEL_REQUIRED:
                yield _reason("REQUIRED_FIELD_REMOVED", place)
            elif after is not None and after.label == _Proto.LABEL_REQUIRED:
                yield _reason("REQUIRED_FIELD_ADDED", place)
        yield from self.messages(old.nested_type, new.nested_type, path)

    def _field(
        self,
        old_pair: tuple[_Entries, FieldDescriptorProto],
        new_pair: tuple[_Entries, FieldDescriptorProto],
        path: str,
    ) -> Iterator[str]:
        (_, old), (_, new) = old_pair, new_pair
        was, now = _entry(*old_pair), _entry(*new_pair)
        kind_was = "map" if was is not None else _kind(old)
        kind_is = "map" if now is not None else _kind(new)
        if kind_was != kind_is:
            yield _reason("FIELD_KIND_CHANGED", path)
        elif was is not None and now is not None:
            for index, part in enumerate(("key", "value")):
                place = f"{path}/{part}"
                yield from self._field(({}, was.field[index]), ({}, now.field[index]), place)
        elif kind_was == "message":
            yield from self._message_type(old, new, path)
        else:
            yield from _scalar(old, new, path)

    def _message_type(
        self, old: FieldDescriptorProto, new: FieldDescriptorProto, path: str
    ) -> Iterator[str]:
        was, now = old.type_name, new.type_name
        if _bare(was, self._old) != _bare(now, self._new):
            yield _reason("FIELD_NAMED_TYPE_CHANGED", path)
            return
        pair = (was, now)
        if pair in self._begun or any(f"{was}.".startswith(f"{own}.") for own in self._local):
            return  # of the file itself: compared where it stands
        self._begun.add(pair)
        found = list(self._message(self._old.types[was], self._new.types[now], path))
        if found:
            yield from found
            yield _reason("FIELD_NAMED_TYPE_CHANGED", path)


def _prefix(model: ProtobufModel) -> str:
    return f".{model.file.package}" if model.file.package else ""


def _bare(name: str, model: ProtobufModel) -> str:
    """A type's name without its package, which may change."""
    package = model.packages.get(name, "")
    return name.removeprefix(f".{package}.") if package else name.removeprefix(".")


def _kind(field: FieldDescriptorProto) -> str:
    is_message = field.type in (_Proto.TYPE_MESSAGE, _Proto.TYPE_GROUP)
    return "message" if is_message else "scalar"


def _entries(message: DescriptorProto) -> _Entries:
    return {each.name: each for each in message.nested_type if each.options.map_entry}


def _entry(entries: _Entries, field: FieldDescriptorProto) -> DescriptorProto | None:
    """The message that stands for the entries of a map."""
    if field.type != _Proto.TYPE_MESSAGE:
        return None
    return entries.get(field.type_name.rpartition(".")[2])


def _scalar(old: FieldDescriptorProto, new: FieldDescriptorProto, path: str) -> Iterator[str]:
    was, now = _WIRE_KINDS[old.type], _WIRE_KINDS[new.type]
    if was != now:
        yield _reason("FIELD_SCALAR_KIND_CHANGED", path)
    elif was != "string or bytes" and old.label != new.label:
        yield _reason("FIELD_NUMERIC_LABEL_CHANGED", path)


def _oneofs(old: DescriptorProto, new: DescriptorProto, path: str) -> Iterator[str]:
    """Fields that could be set together before and cannot now, and members that are gone."""
    was, now = _members(old), _members(new)
    oneof_of = {number: name for name, numbers in was.items() for number in numbers}
    plain = {field.number for field in old.field} - oneof_of.keys()
    for name, numbers in now.items():
        moved = numbers & plain
        sources = {oneof_of[number] for number in numbers & oneof_of.keys()}
        if len(moved) > 1 or len(sources) > 1:
            yield _reason("MULTIPLE_FIELDS_MOVED_TO_ONEOF", f"{path}/{name}")
        elif moved and sources:
            yield _reason("FIELD_MOVED_TO_EXISTING_ONEOF", f"{path}/{name}")
    kept = {field.number for field in new.field}
    for name, numbers in was.items():
        if name in now:
            for number in sorted(numbers - kept):
                yield _reason("ONEOF_FIELD_REMOVED", f"{path}/{name}/{number}")


def _members(message: DescriptorProto) -> dict[str, set[int]]:
    """The numbers of each oneof."""
    found: dict[str, set[int]] = {}
    for field in message.field:
        if _is_member(field):
            name = message.oneof_decl[field.oneof_index].name
            found.setdefault(name, set()).add(field.number)
    return found


def _reason(kind: str, path: str) -> str:
    return difference(kind, f"The new schema differs at path '{path}'", path)
