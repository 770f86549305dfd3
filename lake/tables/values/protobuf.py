"""Protobuf values: a message compiled to the tables that read it, its columns, and the framing.

With a registry each value names its schema by id and then its message, by its place in the file:
the number of indexes, and each of them, as zigzag numbers; a single zero stands for the first
message. Without a registry a declared schema holds for every value, and no value is framed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from lakehead.lake.tables.ddl import TIMESTAMP, type_name
from lakehead.lake.tables.registry import RegisteredSchema, SchemaRegistry
from lakehead.lake.tables.values import protobuf_kernel as kernel
from lakehead.lake.tables.values.by_schema import (
    Format,
    Part,
    Place,
    ValuesBySchema,
    Writer,
    declared_writer,
)
from lakehead.lake.tables.values.cells import Cells
from lakehead.lake.tables.values.decoder import ErrorClass, MisfitSchema, UnusableSchema, ValueSpec
from lakehead.lake.tables.values.evolution import becomes
from lakehead.lake.tables.values.framing import FRAME_BYTES, Values
from lakehead.lake.tables.values.protobuf_schema import (
    JSON_MESSAGES,
    TIMESTAMP_MESSAGE,
    WRAPPERS,
    compile_proto,
    is_map,
    is_opaque,
    message_at,
    message_named,
    protobuf_columns,
    scalar_type,
)
from lakehead.lake.tables.values.shape import (
    Constant,
    Instant,
    Items,
    Leaf,
    LeafKind,
    Record,
    Shape,
)
from lakehead.storage.errors import SettingsError
from lakehead.storage.format.varint import INT_BITS, read_varint

_KINDS: dict[int, tuple[int, LeafKind]] = {
    FieldDescriptor.TYPE_DOUBLE: (kernel.FIXED64_KIND, "float64"),
    FieldDescriptor.TYPE_FLOAT: (kernel.FIXED32_KIND, "float32"),
    FieldDescriptor.TYPE_INT64: (kernel.INT64_KIND, "integer"),
    FieldDescriptor.TYPE_UINT64: (kernel.INT64_KIND, "unsigned"),
    FieldDescriptor.TYPE_INT32: (kernel.INT32_KIND, "integer"),
    FieldDescriptor.TYPE_FIXED64: (kernel.FIXED64_KIND, "unsigned"),
    FieldDescriptor.TYPE_FIXED32: (kernel.FIXED32_KIND, "integer"),
    FieldDescriptor.TYPE_BOOL: (kernel.BOOL_KIND, "boolean"),
    FieldDescriptor.TYPE_STRING: (kernel.BYTES_KIND, "text"),
    FieldDescriptor.TYPE_BYTES: (kernel.BYTES_KIND, "bytes"),
    FieldDescriptor.TYPE_UINT32: (kernel.UINT32_KIND, "integer"),
    FieldDescriptor.TYPE_ENUM: (kernel.INT32_KIND, "enum"),
    FieldDescriptor.TYPE_GROUP: (kernel.GROUP_KIND, "bytes"),
    FieldDescriptor.TYPE_SFIXED32: (kernel.SFIXED32_KIND, "integer"),
    FieldDescriptor.TYPE_SFIXED64: (kernel.FIXED64_KIND, "integer"),
    FieldDescriptor.TYPE_SINT32: (kernel.SINT32_KIND, "integer"),
    FieldDescriptor.TYPE_SINT64: (kernel.SINT64_KIND, "integer"),
}
_COLUMN = {name: i for i, name in enumerate(kernel.FIELD)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtobufProgram:
    """The program that `protobuf_kernel` runs, and the shape of the cells that it fills."""

    tables: tuple[Any, ...]
    domains: tuple[int, ...]
    domain_count: int
    shape: Record
    forgets: bool

    def run(self, data: Any, starts: Any, ends: Any, cells: Cells) -> Any:
        """Fill `cells` with messages; return a fault for each."""
        return kernel.decode_messages(data, starts, ends, self.tables, cells)

    @property
    def column_error(self) -> ErrorClass:
        """Text that is not UTF-8 and numbers beyond their type are not values of the format."""
        return "malformed"

    def left_out(self, rows: Any) -> Any:
        """All of `rows` where the schema has fields that no column is for, else None."""
        return rows if self.forgets else None

    def fault(self, code: int) -> tuple[str, ErrorClass]:
        """A fault of `run` in words, and its class."""
        return kernel.fault_text(code), "malformed"


def _compile_protobuf(message: Descriptor, columns: Any) -> ProtobufProgram:
    """Compile a message to the Arrow schema `columns`: fields by name, null where it has none.

    `message` has passed `protobuf_columns`. Raises MisfitSchema if a field cannot be its column.
    """
    compiler = _Compiler()
    target = pa.struct(list(columns))
    shape = compiler.message(message, target, -1, 0, (message.full_name,))
    return ProtobufProgram(
        tables=compiler.tables(),
        domains=tuple(compiler.domains),
        domain_count=compiler.domain_count,
        shape=shape,
        forgets=compiler.forgets,
    )


@dataclass(slots=True)
class _Message:
    """A place of a message: the rows of its fields, by number."""

    rows: list[dict[str, int]] = field(default_factory=list)
    oneofs: dict[str, list[dict[str, int]]] = field(default_factory=dict)
    owned: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)  # by number


class _Compiler:
    """Walks the tree of columns; each place of a message in it gets tables of its own."""

    def __init__(self) -> None:
        self._messages: list[_Message] = []
        self._numbers: list[int] = []
        self.domains: list[int] = []
        self.domain_count = 1
        self.forgets = False
        self._lists: set[int] = set()

    def message(
        self, message: Descriptor, target: Any, slot: int, domain: int, above: tuple[str, ...]
    ) -> Record:
        """Add a message's fields; returns its shape."""
        place = _Message()
        self._messages.append(place)
        shapes: dict[str, Shape] = {}
        for each in sorted(message.fields, key=lambda f: f.number):
            at = target.get_field_index(each.name)
            oneof = each.containing_oneof
            if at < 0:
                self.forgets = True
                if oneof is not None:
                    self._forgotten(place, each, oneof.name)
                continue
            row = dict.fromkeys(kernel.FIELD, 0) | {"number": each.number, "list_slot": -1}
            place.rows.append(row)
            first_slot = len(self.domains)
            shapes[each.name] = self._field(row, each, target.field(at).type, domain, above)
            if oneof is not None:
                place.oneofs.setdefault(oneof.name, []).append(row)
                place.owned[each.number] = [
                    (s, domain, int(s in self._lists))
                    for s in range(first_slot, len(self.domains))
                    if self.domains[s] == domain
                ]
        fields = tuple(
            shapes.get(f.name, Constant(domain=domain, type=f.type))
            for f in (target.field(i) for i in range(target.num_fields))
        )
        return Record(slot=slot, domain=domain, type=target, fields=fields)

    def _forgotten(self, place: _Message, each: FieldDescriptor, oneof: str) -> None:
        """A member of a oneof that has no column, but may take the place of one that has."""
        kind, _ = _KINDS.get(each.type, (kernel.MESSAGE_KIND, "bytes"))
        row = dict.fromkeys(kernel.FIELD, 0) | {"number": each.number, "list_slot": -1}
        row |= {"kind": kernel.FORGOTTEN_KIND, "message": _wire_of(kind)}
        place.rows.append(row)
        place.oneofs.setdefault(oneof, []).append(row)

    def _field(
        self,
        row: dict[str, int],
        each: FieldDescriptor,
        target: Any,
        domain: int,
        above: tuple[str, ...],
    ) -> Shape:
        if not each.is_repeated:
            return self._value(row, each, target, domain, above, always=not each.has_presence)
        if not (pa.types.is_map if is_map(each) else pa.types.is_list)(target):
            raise _misfit(each, "a map" if is_map(each) else "repeated", target)
        slot, items = self._slot(domain), self.domain_count
        self._lists.add(slot)
        self.domain_count += 1
        row |= {"list_slot": slot, "list_domain": domain}
        if is_map(each):
            entry = pa.struct([target.key_field, target.item_field])
            row |= {"kind": kernel.MESSAGE_KIND, "slot": -1, "domain": items}
            row["message"] = len(self._messages)
            item: Shape = self._entry(each.message_type, entry, items, above)
        else:
            item = self._value(row, each, target.value_type, items, above, always=False)
        return Items(slot=slot, domain=domain, items=items, type=target, item=item, always=True)

    def _entry(
        self, message: Descriptor, target: Any, domain: int, above: tuple[str, ...]
    ) -> Record:
        """A map's entry: key and value are there even if they were left out."""
        place = _Message()
        self._messages.append(place)
        shapes = []
        for i, each in enumerate(message.fields):
            row = dict.fromkeys(kernel.FIELD, 0) | {"number": each.number, "list_slot": -1}
            place.rows.append(row)
            kind = target.field(i).type
            shapes.append(self._value(row, each, kind, domain, above, always=True))
        return Record(slot=-1, domain=domain, type=target, fields=tuple(shapes))

    def _value(
        self,
        row: dict[str, int],
        each: FieldDescriptor,
        target: Any,
        domain: int,
        above: tuple[str, ...],
        *,
        always: bool,
    ) -> Shape:
        """One value, of a field or of an item."""
        inner = each.message_type
        if inner is None:
            return self._scalar(row, each, target, domain, always=always)
        if inner.full_name in JSON_MESSAGES:
            if target != pa.string():
                raise _misfit(each, "a message kept as JSON", target)
            slot = self._slot(domain)
            row |= {"kind": kernel.BYTES_KIND, "slot": slot, "domain": domain}
            name = inner.full_name
            return Leaf(
                kind="message", slot=slot, domain=domain, type=target, native=name, always=always
            )
        if inner.full_name != TIMESTAMP_MESSAGE and is_opaque(inner, above):
            if target != pa.binary():
                raise _misfit(each, "a message kept as BINARY", target)
            slot = self._slot(domain)
            row |= {"kind": kernel.BYTES_KIND, "slot": slot, "domain": domain}
            return Leaf(kind="bytes", slot=slot, domain=domain, type=target, always=always)
        slot = self._slot(domain)
        is_group = each.type == FieldDescriptor.TYPE_GROUP
        kind = kernel.GROUP_KIND if is_group else kernel.MESSAGE_KIND
        row |= {"kind": kind, "slot": slot, "domain": domain}
        row["message"] = len(self._messages)
        if inner.full_name == TIMESTAMP_MESSAGE:
            return self._instant(each, target, slot, domain, always=always)
        if inner.full_name in WRAPPERS:
            place = _Message()
            self._messages.append(place)
            value = dict.fromkeys(kernel.FIELD, 0) | {"number": 1, "list_slot": -1}
            place.rows.append(value)
            return self._scalar(
                value, inner.fields[0], target, domain, always=always, valid_by=slot
            )
        if not pa.types.is_struct(target):
            raise _misfit(each, "a message", target)
        present = -1 if always else slot
        return self.message(inner, target, present, domain, (*above, inner.full_name))

    def _instant(
        self, each: FieldDescriptor, target: Any, slot: int, domain: int, *, always: bool
    ) -> Instant:
        if target != TIMESTAMP:
            raise _misfit(each, "a Timestamp", target)
        place = _Message()
        self._messages.append(place)
        seconds, nanos = self._slot(domain), self._slot(domain)
        kinds = ((1, kernel.INT64_KIND, seconds), (2, kernel.INT32_KIND, nanos))
        for number, kind, part in kinds:
            row = {"number": number, "list_slot": -1, "kind": kind, "slot": part, "domain": domain}
            place.rows.append(dict.fromkeys(kernel.FIELD, 0) | row)
        present = -1 if always else slot
        return Instant(slot=present, domain=domain, seconds=seconds, nanos=nanos, type=target)

    def _scalar(
        self,
        row: dict[str, int],
        each: FieldDescriptor,
        target: Any,
        domain: int,
        *,
        always: bool,
        valid_by: int | None = None,
    ) -> Leaf:
        native = scalar_type(each)
        if not becomes(native, target):
            raise _misfit(each, type_name(native), target)
        kind, leaf = _KINDS[each.type]
        slot = self._slot(domain)
        row |= {"kind": kind, "slot": slot, "domain": domain}
        names: tuple[tuple[int, str], ...] = ()
        if each.enum_type is not None:
            by_number = {v.number: v.name for v in reversed(list(each.enum_type.values))}
            names = tuple(sorted(by_number.items()))
            if each.enum_type.is_closed:
                row |= {"kind": kernel.CLOSED_ENUM_KIND, "first_number": len(self._numbers)}
                row["numbers"] = len(names)
                self._numbers += [number for number, _ in names]
        if leaf in ("bytes", "text"):
            leaf = "text" if target == pa.string() else "bytes"
        return Leaf(
            kind=leaf,
            slot=slot,
            domain=domain,
            type=target,
            names=names,
            valid_by=valid_by,
            always=always,
        )

    def _slot(self, domain: int) -> int:
        self.domains.append(domain)
        return len(self.domains) - 1

    def tables(self) -> tuple[Any, ...]:
        """The arrays of the kernel."""
        messages: list[tuple[int, int]] = []
        rows: list[list[int]] = []
        rivals: list[int] = []
        owned: list[tuple[int, int, int]] = []
        for place in self._messages:
            messages.append((len(rows), len(place.rows)))
            place_rows = sorted(place.rows, key=lambda row: row["number"])
            index = {row["number"]: len(rows) + i for i, row in enumerate(place_rows)}
            for members in place.oneofs.values():
                for row in members:
                    others = [index[other["number"]] for other in members if other is not row]
                    held = place.owned.get(row["number"], [])
                    row |= {"first_rival": len(rivals), "rivals": len(others)}
                    row |= {"first_own": len(owned), "owned": len(held)}
                    rivals += others
                    owned += held
            rows += [[row[name] for name in kernel.FIELD] for row in place_rows]
        return (
            np.array(messages, np.int64).reshape(-1, 2),
            np.array(rows, np.int64).reshape(-1, len(kernel.FIELD)),
            np.array(rivals, np.int64),
            np.array(owned, np.int64).reshape(-1, 3),
            np.array(self._numbers, np.int64),
        )


def _wire_of(kind: int) -> int:
    """The wire type of a kind."""
    fixed = {kernel.FIXED64_KIND: 1, kernel.FIXED32_KIND: 5, kernel.SFIXED32_KIND: 5}
    if kind == kernel.GROUP_KIND:
        return 3
    return fixed.get(kind, 2 if kind >= kernel.BYTES_KIND else 0)


def _misfit(each: FieldDescriptor, found: str, target: Any) -> MisfitSchema:
    return MisfitSchema(f"field {each.full_name} is {found}, its column {type_name(target)}")


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
        return _compile_protobuf(message, columns)

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
    """The place of a message in its file, and the number of bytes that name it."""
    try:
        count, at = read_varint(head, 0, INT_BITS)
        if not 0 < count < _INDEXES_MAX:
            return None, 0
        numbers = []
        for _ in range(count):
            number, at = read_varint(head, at, INT_BITS)
            numbers.append(number)
    except (IndexError, ValueError):
        return None, 0
    return tuple(numbers), at
