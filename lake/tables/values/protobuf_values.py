"""Protobuf values: messages framed as Confluent's serializer does, or bare ones of one schema.

With a registry each value names its schema by id and then its message, by its place in the file:
how many indexes, and each of them, as zigzag numbers; a single zero stands for the first message.
Without one a declared schema holds for every value, and no value is framed.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from google.protobuf.descriptor import Descriptor

from lakehead.lake.tables.registry import RegisteredSchema, SchemaRegistry
from lakehead.lake.tables.values.by_schema import (
    Format,
    Part,
    Place,
    ValuesBySchema,
    Writer,
    declared_writer,
)
from lakehead.lake.tables.values.decoder import UnusableSchema, ValueSpec
from lakehead.lake.tables.values.framing import FRAME_BYTES, Values
from lakehead.lake.tables.values.protobuf_program import ProtobufProgram, compile_protobuf
from lakehead.lake.tables.values.protobuf_schema import (
    compile_proto,
    message_at,
    message_named,
    protobuf_columns,
)
from lakehead.storage.errors import SettingsError

_INDEXES_MAX = 32


def protobuf_values(spec: ValueSpec, registry: SchemaRegistry | None) -> ValuesBySchema:
    """Return the decoder of one Protobuf message for each value. Raises SettingsError."""
    if not spec.schema and registry is None:
        raise SettingsError("Protobuf values need a schema registry's URL or a schema")
    declared: Writer | None = None
    if spec.schema:
        declared = declared_writer(
            lambda: _writer(message_named(compile_proto(spec.schema), spec.message))
        )

    def read(registered: RegisteredSchema, place: Place) -> Writer:
        return _registered_writer(registered, place, spec.message)

    return ValuesBySchema(Format(readers={"PROTOBUF": read}, parts=_parts), registry, declared)


def _registered_writer(registered: RegisteredSchema, place: Place, wanted: str) -> Writer:
    others = tuple((other.name, other.text) for other in registered.references)
    file = compile_proto(registered.text, others)
    message = message_at(file, place)
    if message is None:
        raise UnusableSchema(f"it has no message at {list(place)}")
    if wanted and message is not message_named(file, wanted):
        raise UnusableSchema(f"the value is a {message.full_name}, not a {wanted}")
    return _writer(message)


def _writer(message: Descriptor) -> Writer:
    def compiled(columns: Any) -> ProtobufProgram:
        return compile_protobuf(message, columns)

    return Writer(columns=protobuf_columns(message), compiled=compiled)


def _parts(values: Values, rows: Any) -> Iterable[Part]:
    """Rows by the message that they name."""
    starts = values.starts[rows] + FRAME_BYTES
    ends = values.ends[rows]
    is_first = starts < ends
    is_first[is_first] = values.data[starts[is_first]] == 0
    if is_first.any():
        yield Part(place=(0,), rows=rows[is_first], starts=starts[is_first] + 1)
    others: dict[Place | None, list[tuple[int, int]]] = {}
    for i in np.flatnonzero(~is_first).tolist():
        head = values.data[starts[i] : min(ends[i], starts[i] + 5 * _INDEXES_MAX)].tobytes()
        indexes, length = _indexes(head)
        others.setdefault(indexes, []).append((int(rows[i]), int(starts[i]) + length))
    for indexes, pairs in others.items():
        table = np.array(pairs, np.int64)
        yield Part(place=indexes, rows=table[:, 0], starts=table[:, 1])


def _indexes(head: bytes) -> tuple[tuple[int, ...] | None, int]:
    """Where a message lies in its file, and how many bytes say so."""
    numbers: list[int] = []
    value, shift, wanted = 0, 0, 1
    for at, byte in enumerate(head):
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte & 0x80:
            continue
        numbers.append((value >> 1) ^ -(value & 1))
        value, shift = 0, 0
        if len(numbers) == 1:
            wanted = 1 + numbers[0]
            if not 0 < numbers[0] < _INDEXES_MAX:
                return None, 0
        if len(numbers) == wanted:
            return tuple(numbers[1:]), at + 1
    return None, 0
