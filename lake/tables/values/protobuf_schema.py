"""Protobuf schemas: .proto texts compiled by protoc, and messages as Arrow columns.

`grpcio-tools` carries protoc as a wheel; no other parser reads imports, options and editions as it
does. Types become what Spark's `from_protobuf` makes of them: an enum is its name (a number that it
does not have, the number as text), uint32 a BIGINT, uint64 a DECIMAL(20, 0), `Timestamp` a
TIMESTAMP, a wrapper its nullable value. `Struct` and its parts are JSON as text. A message that
contains itself is BINARY: its bytes from there on. So is one without fields, which no table can
have.
"""

import base64
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from lakehead.lake.tables.ddl import TIMESTAMP, check_names
from lakehead.lake.tables.values.decoder import UnusableSchema
from lakehead.storage.errors import SettingsError

_MAIN = "lakehead_values.proto"
_TIMEOUT_S = 60
_REMARK = re.compile(r"warning|^WARNING: |^[IW]\d{4} ")
"""Output of protoc besides errors: warnings of its own, and lines of its log."""
_FIELDS_MAX = 10_000

TIMESTAMP_MESSAGE = "google.protobuf.Timestamp"
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
JSON_MESSAGES = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
"""Any JSON as messages: a column of its text."""

_SCALARS = {
    FieldDescriptor.TYPE_DOUBLE: pa.float64(),
    FieldDescriptor.TYPE_FLOAT: pa.float32(),
    FieldDescriptor.TYPE_INT64: pa.int64(),
    FieldDescriptor.TYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.TYPE_INT32: pa.int32(),
    FieldDescriptor.TYPE_FIXED64: pa.decimal128(20, 0),
    FieldDescriptor.TYPE_FIXED32: pa.int64(),
    FieldDescriptor.TYPE_BOOL: pa.bool_(),
    FieldDescriptor.TYPE_STRING: pa.string(),
    FieldDescriptor.TYPE_BYTES: pa.binary(),
    FieldDescriptor.TYPE_UINT32: pa.int64(),
    FieldDescriptor.TYPE_ENUM: pa.string(),
    FieldDescriptor.TYPE_SFIXED32: pa.int32(),
    FieldDescriptor.TYPE_SFIXED64: pa.int64(),
    FieldDescriptor.TYPE_SINT32: pa.int32(),
    FieldDescriptor.TYPE_SINT64: pa.int64(),
}


@lru_cache(maxsize=256)
def compile_proto(text: str, references: tuple[tuple[str, str], ...] = ()) -> FileDescriptor:
    """Compile a .proto text; `references` are (name that it is imported by, text) of others.

    Google's own messages need not be among them. In place of a text there may be a descriptor in
    base64, which is how Confluent's serializers hand schemas to a registry. Raises UnusableSchema
    with protoc's words.
    """
    descriptor = _serialized(text)
    files_needed = _compiled(text, references) if descriptor is None else []
    pool = DescriptorPool()
    if descriptor is not None:
        given = {name: _serialized(content) for name, content in references}
        descriptor.name = _MAIN
        imported: dict[str, FileDescriptorProto] = {}
        _find_imports(descriptor, given, (), imported)
        files_needed = [*imported.values(), descriptor]
    try:
        for file in {file.name: file for file in files_needed}.values():
            pool.Add(file)
        return pool.FindFileByName(_MAIN)
    except (TypeError, KeyError) as error:
        raise UnusableSchema(f"no Protobuf schema: {' '.join(str(error).split())[:200]}") from None


def _serialized(text: str) -> FileDescriptorProto | None:
    """A schema that is a descriptor in base64."""
    try:
        found = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError):
        return None
    return found if found.message_type else None


def _find_imports(
    file: FileDescriptorProto,
    given: dict[str, FileDescriptorProto | None],
    above: tuple[str, ...],
    found: dict[str, FileDescriptorProto],
) -> None:
    """Add the files that a file imports to `found`, each once and after those that it imports
    itself.
    """
    for name in file.dependency:
        if name in found:
            continue
        imported = given.get(name)
        if imported is None and name.startswith("google/protobuf/"):
            imported = _own_file(name)
        if imported is None or name in above:
            raise UnusableSchema(f"no Protobuf schema: it imports {name}, which is not to be had")
        imported.name = name
        _find_imports(imported, given, (*above, name), found)
        found[name] = imported


def _own_file(name: str) -> FileDescriptorProto | None:
    """One of Google's own files."""
    found = FileDescriptorProto()
    module = name.removesuffix(".proto").replace("/", ".")
    try:
        import_module(f"{module}_pb2").DESCRIPTOR.CopyToProto(found)
    except (ImportError, AttributeError):
        return None
    return found


def _compiled(text: str, references: tuple[tuple[str, str], ...]) -> list[FileDescriptorProto]:
    """The compiled text: the file and all that it imports, those first."""
    with tempfile.TemporaryDirectory(prefix="lakehead-proto-") as folder:
        root = Path(folder)
        for name, content in (*references, (_MAIN, text)):
            parts = PurePosixPath(name)
            if parts.is_absolute() or ".." in parts.parts or not parts.parts:
                raise UnusableSchema(f"imports {name!r}, which is not an import path")
            (root / parts).parent.mkdir(parents=True, exist_ok=True)
            (root / parts).write_text(content, encoding="utf-8")
        command = [
            *(sys.executable, "-m", "grpc_tools.protoc", f"-I{root}"),
            f"-I{files('grpc_tools') / '_proto'}",
            *("--include_imports", f"--descriptor_set_out={root / 'compiled'}", _MAIN),
        ]
        try:
            run = subprocess.run(  # noqa: S603 - our own interpreter, no shell
                command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise UnusableSchema(f"protoc has not compiled it in {_TIMEOUT_S} s") from None
        if run.returncode:
            reason = _complaint(run.stderr.replace(f"{root}/", ""))
            raise UnusableSchema(f"no Protobuf schema: {reason}")
        return list(FileDescriptorSet.FromString((root / "compiled").read_bytes()).file)


def _complaint(errors: str) -> str:
    lines = [line for line in errors.splitlines() if not _REMARK.search(line)]
    return " ".join((lines or ["protoc failed"])[0].split()).removeprefix(f"{_MAIN}:")[:200]


def message_named(file: FileDescriptor, name: str) -> Descriptor:
    """Return the message of a name, with or without its package, `Outer.Inner` for one inside; for
    no name the only one at the top. Raises UnusableSchema that names those there are.
    """
    top = list(file.message_types_by_name.values())
    if not name and len(top) == 1:
        return top[0]
    known = {each.full_name: each for each in _all_messages(top)}
    for full_name in (name, f"{file.package}.{name}"):
        if full_name in known:
            return known[full_name]
    names = ", ".join(known) or "none"
    what = f"no message {name!r}" if name else "more than one message, and none is named"
    raise UnusableSchema(f"{what}: it has {names}")


def message_at(file: FileDescriptor, indexes: tuple[int, ...]) -> Descriptor | None:
    """Return the message at a place among those of the file, then among those inside, and so on."""
    among = list(file.message_types_by_name.values())
    found = None
    for index in indexes:
        if not 0 <= index < len(among):
            return None
        found = among[index]
        among = list(found.nested_types)
    return found


def protobuf_columns(message: Descriptor) -> Any:
    """Return the Arrow schema of a message. Raises UnusableSchema."""
    columns = _Columns()
    found = pa.schema(columns.fields(message, (message.full_name,)))
    try:
        check_names(found)
    except SettingsError as error:
        raise UnusableSchema(str(error)) from None
    return found


def scalar_type(field: FieldDescriptor) -> Any:
    """The Arrow type of a field that is not a message."""
    return _SCALARS[field.type]


def is_opaque(message: Descriptor, above: Sequence[str]) -> bool:
    """Return whether a message inside those `above` is kept as bytes."""
    return message.full_name in above or not message.fields


def is_map(field: FieldDescriptor) -> bool:
    """Return whether a repeated field is a map."""
    return bool(field.message_type and field.message_type.GetOptions().map_entry)


class _Columns:
    """Walks a message down to its scalars."""

    def __init__(self) -> None:
        self._left = _FIELDS_MAX

    def fields(self, message: Descriptor, above: tuple[str, ...]) -> list[Any]:
        return [pa.field(field.name, self._field(field, above)) for field in message.fields]

    def _field(self, field: FieldDescriptor, above: tuple[str, ...]) -> Any:
        self._left -= 1
        if self._left < 0:
            raise UnusableSchema(f"more than {_FIELDS_MAX} fields")
        if is_map(field):
            key, value = field.message_type.fields
            return pa.map_(scalar_type(key), self._kind(value, above))
        kind = self._kind(field, above)
        return pa.list_(kind) if field.is_repeated else kind

    def _kind(self, field: FieldDescriptor, above: tuple[str, ...]) -> Any:
        message = field.message_type
        if message is None:
            return scalar_type(field)
        if message.full_name == TIMESTAMP_MESSAGE:
            return TIMESTAMP
        if message.full_name in WRAPPERS:
            return scalar_type(message.fields[0])
        if message.full_name in JSON_MESSAGES or is_opaque(message, above):
            if field.type == FieldDescriptor.TYPE_GROUP:
                raise UnusableSchema(
                    f"field {field.full_name} is a group that contains itself, or has no fields"
                )
            return pa.string() if message.full_name in JSON_MESSAGES else pa.binary()
        return pa.struct(self.fields(message, (*above, message.full_name)))


def _all_messages(messages: Sequence[Descriptor]) -> list[Descriptor]:
    found = []
    for message in messages:
        found += [message, *_all_messages(list(message.nested_types))]
    return found
