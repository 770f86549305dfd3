"""Whether values of one Protobuf schema can be read by another: the rules of Confluent's registry.

Fields are told by number. Numbers may come and go, but not those of `required` fields; a type may
change within its kind on the wire (int32 and int64 and bool and enums, string and bytes); a message
that is there stays; and of fields that could be set together no two may come into one `oneof`.

Stricter in one place than Confluent's: a proto3 number without a label that becomes `repeated` is
incompatible, as it is when the label is written out, since packed values are not read as one.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

from lakehead.connectors.schema_registry.parsed import difference
from lakehead.connectors.schema_registry.protobuf_schema import ProtobufModel

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
        for number in sorted(was.keys() | now.keys()):
            place = f"{path}/{number}"
            before, after = was.get(number), now.get(number)
            if before is not None and after is not None:
                yield from self._field((old, before), (new, after), place)
            elif before is not None and before.label == _Proto.LABEL_REQUIRED:
                yield _reason("REQUIRED_FIELD_REMOVED", place)
            elif after is not None and after.label == _Proto.LABEL_REQUIRED:
                yield _reason("REQUIRED_FIELD_ADDED", place)
        yield from self.messages(old.nested_type, new.nested_type, path)

    def _field(
        self,
        old_pair: tuple[DescriptorProto, FieldDescriptorProto],
        new_pair: tuple[DescriptorProto, FieldDescriptorProto],
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
                pairs = (was, was.field[index]), (now, now.field[index])
                yield from self._field(*pairs, f"{path}/{part}")
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


def _entry(message: DescriptorProto, field: FieldDescriptorProto) -> DescriptorProto | None:
    """The message that stands for the entries of a map."""
    if field.type != _Proto.TYPE_MESSAGE:
        return None
    name = field.type_name.rpartition(".")[2]
    found = (each for each in message.nested_type if each.name == name and each.options.map_entry)
    return next(found, None)


def _scalar(old: FieldDescriptorProto, new: FieldDescriptorProto, path: str) -> Iterator[str]:
    was, now = _WIRE_KINDS[old.type], _WIRE_KINDS[new.type]
    if was != now:
        yield _reason("FIELD_SCALAR_KIND_CHANGED", path)
    elif was != "string or bytes" and old.label != new.label:
        yield _reason("FIELD_NUMERIC_LABEL_CHANGED", path)


def _oneofs(old: DescriptorProto, new: DescriptorProto, path: str) -> Iterator[str]:
    """What may be set together before and not after, and members that are gone."""
    was = _members(old)
    oneof_of = {number: name for name, numbers in was.items() for number in numbers}
    plain = {field.number for field in old.field} - oneof_of.keys()
    for name, numbers in _members(new).items():
        moved = numbers & plain
        sources = {oneof_of[number] for number in numbers & oneof_of.keys()}
        if len(moved) > 1 or len(sources) > 1:
            yield _reason("MULTIPLE_FIELDS_MOVED_TO_ONEOF", f"{path}/{name}")
        elif moved and sources:
            yield _reason("FIELD_MOVED_TO_EXISTING_ONEOF", f"{path}/{name}")
    kept = {field.number for field in new.field}
    for name, numbers in was.items():
        if name in _members(new):
            for number in sorted(numbers - kept):
                yield _reason("ONEOF_FIELD_REMOVED", f"{path}/{name}/{number}")


def _members(message: DescriptorProto) -> dict[str, set[int]]:
    """The numbers of each oneof; one that proto3's `optional` makes up is none."""
    found: dict[str, set[int]] = {}
    for field in message.field:
        if field.HasField("oneof_index") and not field.proto3_optional:
            name = message.oneof_decl[field.oneof_index].name
            found.setdefault(name, set()).add(field.number)
    return found


def _reason(kind: str, path: str) -> str:
    return difference(kind, f"The new schema differs at path '{path}'", path)
