"""Protobuf values: messages framed as Confluent's serializer does, or bare ones of one schema.

With a registry each value names its schema by id and then its message, by its place in the file:
how many indexes, and each of them, as zigzag numbers; a single zero stands for the first message.
Without one a declared schema holds for every value, and no value is framed.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor

from lake.tables.registry import SchemaRegistry
from lake.tables.values.decoder import (
    NO_SCHEMA,
    Decoded,
    MisfitSchema,
    UnusableSchema,
    ValueSpec,
)
from lake.tables.values.evolution import merged
from lake.tables.values.framing import FRAME_BYTES, Values, places, schema_ids
from lake.tables.values.groups import DecodedRows, by_value, decode_rows
from lake.tables.values.protobuf_program import ProtobufProgram, compile_protobuf
from lake.tables.values.protobuf_schema import (
    compile_proto,
    message_at,
    message_named,
    protobuf_columns,
)
from storage.errors import SettingsError

_INDEXES_MAX = 32


@dataclass(frozen=True, slots=True)
class _Writer:
    """A message of a schema, and its columns."""

    message: Descriptor
    columns: Any


class ProtobufValues:
    """One Protobuf message for each value."""

    def __init__(self, spec: ValueSpec, registry: SchemaRegistry | None) -> None:
        self._registry = registry
        self._message = spec.message
        self._declared: _Writer | None = None
        if spec.schema:
            try:
                self._declared = _writer(message_named(compile_proto(spec.schema), spec.message))
            except UnusableSchema as error:
                raise SettingsError(f"the declared schema: {error}") from None
        elif registry is None:
            raise SettingsError("Protobuf values need a schema registry's URL or a schema")
        self._writers: dict[tuple[int, ...], _Writer | UnusableSchema] = {}
        self._programs: dict[tuple[int, ...], ProtobufProgram | MisfitSchema] = {}
        self._columns: Any = None  # what the programs are compiled to

    def schema_of(self, batch: pa.RecordBatch) -> Any:
        """Return the columns of the declared message, or of those that the sample names."""
        if self._declared is not None:
            return self._declared.columns
        values = places(batch.column("value"))
        ids = schema_ids(values)
        found: Any = None
        for schema_id, rows in by_value(ids, np.flatnonzero(ids >= 0)):
            for indexes, _, _ in _by_message(values, rows):
                writer = None if indexes is None else self._writer(schema_id, indexes)
                if isinstance(writer, _Writer):
                    columns = writer.columns
                    found = columns if found is None else merged(found, columns)
        if found is None:
            raise SettingsError(
                "none of the sampled values names a Protobuf schema that the registry has: "
                "declare one"
            )
        return found

    def decode(
        self,
        batch: pa.RecordBatch,
        schema: Any,
        *,
        fault_count_max: int | None = None,  # noqa: ARG002 - a fault costs nothing
    ) -> Decoded:
        """Decode each value by the message that it names."""
        if self._columns != schema:
            self._programs, self._columns = {}, schema
        values = places(batch.column("value"))
        result = DecodedRows(schema)
        present = np.flatnonzero(values.starts >= 0)
        if len(present) < len(values):
            result.nulls(values.nulls)
        if self._registry is None:
            assert self._declared is not None, "checked when it was made"
            self._decode(values, present, (NO_SCHEMA,), self._declared, result)
            return result.decoded()
        for schema_id, rows in by_value(schema_ids(values), present):
            if schema_id == NO_SCHEMA:
                for row in rows.tolist():
                    result.fault(row, "the value has no schema id in front", "unframed")
                continue
            for indexes, group, starts in _by_message(values, rows):
                unframed = values.starts.copy()
                unframed[group] = starts
                framed = Values(data=values.data, starts=unframed, ends=values.ends)
                self._group(framed, group, schema_id, indexes, result)
        return result.decoded()

    def _group(
        self,
        values: Values,
        rows: Any,
        schema_id: int,
        indexes: tuple[int, ...] | None,
        result: DecodedRows,
    ) -> None:
        """Rows of one schema and message."""
        if indexes is None:
            for row in rows.tolist():
                result.fault(row, "the value does not name its message", "unframed", schema_id)
            return
        writer = self._writer(schema_id, indexes)
        if isinstance(writer, _Writer):
            self._decode(values, rows, (schema_id, *indexes), writer, result)
            return
        for row in rows.tolist():
            if writer is None:
                reason = f"the registry has no schema {schema_id}"
                result.fault(row, reason, "unknown_schema", schema_id)
            else:
                result.fault(row, str(writer), "unusable_schema", schema_id)

    def _decode(
        self,
        values: Values,
        rows: Any,
        key: tuple[int, ...],
        writer: _Writer,
        result: DecodedRows,
    ) -> None:
        if self._declared is None:
            result.find(writer.columns)
        program = self._programs.get(key)
        if program is None:
            try:
                program = compile_protobuf(writer.message, self._columns)
            except MisfitSchema as error:
                program = error
            self._programs[key] = program
        if isinstance(program, MisfitSchema):
            for row in rows.tolist():
                result.fault(row, str(program), "misfit", key[0])
            return
        group, faults = decode_rows(program, values, rows, self._columns)
        result.add(group)
        for row, reason in faults:
            result.fault(row, reason, "malformed", key[0])

    def _writer(self, schema_id: int, indexes: tuple[int, ...]) -> _Writer | UnusableSchema | None:
        """The message that a value names; None if the registry has no such schema."""
        key = (schema_id, *indexes)
        if key in self._writers:
            return self._writers[key]
        assert self._registry is not None, "ids come with a registry"
        registered = self._registry.schema(schema_id)
        if registered is None:
            return None
        writer: _Writer | UnusableSchema
        try:
            if registered.kind != "PROTOBUF":
                raise UnusableSchema(f"schema {schema_id} is {registered.kind}, not PROTOBUF")
            others = tuple((other.name, other.text) for other in registered.references)
            file = compile_proto(registered.text, others)
            message = message_at(file, indexes)
            if message is None:
                raise UnusableSchema(f"schema {schema_id} has no message at {list(indexes)}")
            if self._message and message is not message_named(file, self._message):
                raise UnusableSchema(f"the value is a {message.full_name}, not a {self._message}")
            writer = _writer(message)
        except UnusableSchema as error:
            writer = error
        self._writers[key] = writer
        return writer


def _writer(message: Descriptor) -> _Writer:
    return _Writer(message, protobuf_columns(message))


def _by_message(values: Values, rows: Any) -> list[tuple[tuple[int, ...] | None, Any, Any]]:
    """Rows by the message that they name (None: by none), and where their messages start."""
    starts = values.starts[rows] + FRAME_BYTES
    ends = values.ends[rows]
    is_first = starts < ends
    is_first[is_first] = values.data[starts[is_first]] == 0
    found: list[tuple[tuple[int, ...] | None, Any, Any]] = []
    if is_first.any():
        found.append(((0,), rows[is_first], starts[is_first] + 1))
    others: dict[tuple[int, ...] | None, list[tuple[int, int]]] = {}
    for i in np.flatnonzero(~is_first).tolist():
        head = values.data[starts[i] : min(ends[i], starts[i] + 5 * _INDEXES_MAX)].tobytes()
        indexes, length = _indexes(head)
        others.setdefault(indexes, []).append((int(rows[i]), int(starts[i]) + length))
    for indexes, pairs in others.items():
        table = np.array(pairs, np.int64)
        found.append((indexes, table[:, 0], table[:, 1]))
    return found


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
