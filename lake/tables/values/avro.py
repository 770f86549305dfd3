"""Avro values: schemas as Arrow columns, compiled to programs that read values, and the framing.

A node judges Avro schemas too, by `lakehead.lake.declaration.avro_types`.

The writer's schema describes the bytes, and the table's columns are the fields that are kept, by
name; all others are read and dropped. The reader's schema, if there is one, gives a field that the
writer's schema lacks its default, else null; its aliases are names in the writer's schema.

With a registry each value names its writer's schema by id, in the frame of Confluent's serializer;
a declared schema is then the reader's, and its columns, defaults and aliases hold for all values.
Without a registry a declared schema is the writer's of every value, and no value is framed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lakehead.lake.declaration import avro_types
from lakehead.lake.declaration.avro_types import (
    SINGLE_VALUE,
    AvroSchema,
    TypeNode,
    is_null,
    is_record,
    wider_type,
)
from lakehead.lake.tables.ddl import arrow_type, type_name
from lakehead.lake.tables.registry import RegisteredSchema, SchemaRegistry
from lakehead.lake.tables.values import avro_kernel as kernel
from lakehead.lake.tables.values.by_schema import (
    Format,
    Place,
    ValuesBySchema,
    Writer,
    declared_writer,
    one_part,
)
from lakehead.lake.tables.values.cells import Cells
from lakehead.lake.tables.values.decoder import ErrorClass, MisfitSchema, UnusableSchema, ValueSpec
from lakehead.lake.tables.values.evolution import becomes
from lakehead.lake.tables.values.shape import (
    Constant,
    FirstOf,
    Items,
    Leaf,
    LeafKind,
    Record,
    Shape,
)
from lakehead.storage.errors import SettingsError


def read_schema(text: str, references: Sequence[str] = ()) -> AvroSchema:
    """Parse a schema that may use the types of `references`, each after those it uses itself.

    Raises UnusableSchema that says why.
    """
    try:
        return avro_types.read_schema(text, references)
    except SettingsError as error:
        raise UnusableSchema(str(error)) from None


def avro_columns(schema: AvroSchema) -> Any:
    """Return the Arrow schema of a schema's values. Raises UnusableSchema."""
    try:
        found = avro_types.column_types(schema)
    except SettingsError as error:
        raise UnusableSchema(str(error)) from None
    return pa.schema([pa.field(name, arrow_type(kind)) for name, kind in found.items()])


def _arrow_scalar(node: Any) -> Any:
    """The Arrow type of a resolved type without parts."""
    return arrow_type(avro_types.scalar_type(node))


def default_value(schema: AvroSchema, field: dict[str, Any], kind: Any) -> Any:
    """Return the default of a reader's field as Python holds a value of the Arrow type `kind`.

    Raises UnusableSchema if it is not a value of the field's type.
    """
    try:
        value = avro_types.default_value(schema, field)
        pa.scalar(value, kind)
    except SettingsError as error:
        raise UnusableSchema(str(error)) from None
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise UnusableSchema(f"the default of field {field['name']}: {reason}") from None
    return value


_SCALARS = {
    "boolean": (kernel.BOOLEAN_OP, "boolean"),
    "int": (kernel.INT_OP, "integer"),
    "long": (kernel.LONG_OP, "integer"),
    "float": (kernel.FLOAT_OP, "float32"),
    "double": (kernel.DOUBLE_OP, "float64"),
    "bytes": (kernel.BYTES_OP, "bytes"),
    "string": (kernel.BYTES_OP, "text"),
    "fixed": (kernel.FIXED_OP, "bytes"),
    "enum": (kernel.ENUM_OP, "enum"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroProgram:
    """The program that `avro_kernel` runs, and the shape of the cells that it fills."""

    operations: Any  # int64, one row each
    jumps: Any  # int64
    domains: tuple[int, ...]  # of each slot
    domain_count: int
    shape: Record
    forgets: bool

    def run(self, data: Any, starts: Any, ends: Any, cells: Cells) -> Any:
        """Fill `cells` with datums; return a fault for each."""
        return kernel.decode_datums(data, starts, ends, self.operations, self.jumps, cells)

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


@dataclass(frozen=True, slots=True)
class Reader:
    """A type of the reader's schema, beside the writer's of the same place."""

    schema: AvroSchema
    node: TypeNode

    def fields(self) -> list[dict[str, Any]]:
        node = self.schema.resolve(self.node)
        if isinstance(node, list):
            records = [each for each in map(self.schema.resolve, node) if not is_null(each)]
            node = records[0] if len(records) == 1 else {"type": "null"}
        return list(node["fields"]) if is_record(node) else []

    def part(self, name: str) -> "Reader | None":
        """The items of an array, the values of a map."""
        node = self.schema.resolve(self.node)
        if isinstance(node, list):
            others = [each for each in map(self.schema.resolve, node) if not is_null(each)]
            node = others[0] if len(others) == 1 else {"type": "null"}
        return Reader(self.schema, node[name]) if name in node else None


def compile_avro(writer: AvroSchema, columns: Any, reader: AvroSchema | None = None) -> AvroProgram:
    """Compile a writer's schema to the Arrow schema `columns`.

    `writer` has passed `avro_columns`. Raises MisfitSchema if a field of it cannot be its column.
    """
    compiler = _Compiler(writer)
    shape = compiler.values(columns, reader)
    return AvroProgram(
        operations=np.array(compiler.operations, np.int64),
        jumps=np.array(compiler.jumps, np.int64),
        domains=tuple(compiler.domains),
        domain_count=compiler.domain_count,
        shape=shape,
        forgets=compiler.forgets,
    )


class _Compiler:
    """Walks the writer's schema in the order of its bytes and emits operations."""

    def __init__(self, writer: AvroSchema) -> None:
        self._writer = writer
        self.operations: list[tuple[int, int, int, int, int, int]] = []
        self.jumps: list[int] = []
        self.domains: list[int] = []
        self.domain_count = 1
        self.forgets = False
        self._level = 0
        self._path: list[str] = []

    # ------------------------------------------------------------------------------- the values

    def values(self, columns: Any, reader: AvroSchema | None) -> Record:
        """A whole value: a record, a record or null, or the one column of anything else."""
        writer = self._writer
        target = pa.struct(list(columns))
        if writer.record() is None:
            fields = [{"name": SINGLE_VALUE, "type": writer.root}]
            shape = self._fields(fields, target, 0, None, -1)
        else:
            seen = None if reader is None else Reader(reader, reader.root)
            node = writer.resolve(writer.root)
            if isinstance(node, list):
                shape = self._nullable_root(node, target, seen)
            else:
                shape = self._fields(node["fields"], target, 0, seen, -1)
        self._emit(kernel.END_OP)
        return shape

    def _nullable_root(self, branches: list[Any], target: Any, reader: Reader | None) -> Record:
        start, jumps = self._union_start(len(branches))
        shape = None
        for i, branch in enumerate(map(self._writer.resolve, branches)):
            if not is_null(branch):
                self.jumps[jumps + i] = start + 1
                shape = self._fields(branch["fields"], target, 0, reader, -1)
        assert shape is not None, "one branch is the record"
        self._land(branches, jumps)
        return shape

    def _value(
        self, node: TypeNode, target: Any, domain: int, reader: Reader | None
    ) -> Shape | None:
        """Emit what reads a type; `target` None: and forgets it."""
        node = self._writer.resolve(node)
        if isinstance(node, list):
            return self._union(node, target, domain, reader)
        if is_null(node):
            return None if target is None else Constant(domain=domain, type=target)
        if is_record(node):
            if target is not None and not pa.types.is_struct(target):
                raise self._misfit("a record", target)
            slot = self._present(domain, target)
            return self._fields(node["fields"], target, domain, reader, slot)
        if node["type"] in ("array", "map"):
            return self._items(node, target, domain, reader)
        return self._scalar(node, target, domain)

    # ------------------------------------------------------------------------------- by type

    def _fields(
        self,
        fields: Sequence[dict[str, Any]],
        target: Any,
        domain: int,
        reader: Reader | None,
        slot: int,
    ) -> Record:
        """Emit a record's fields in the writer's order; the shape has the target's."""
        kept = {} if target is None else {f.name: f.type for f in map(target.field, _range(target))}
        requested = {field["name"]: field for field in ([] if reader is None else reader.fields())}
        names = _column_names(fields, kept, requested)
        shapes: dict[str, Shape] = {}
        for field in fields:
            name = names.get(field["name"], "")
            inner = requested.get(name)
            part = None if reader is None or inner is None else Reader(reader.schema, inner["type"])
            self._path.append(field["name"])
            shape = self._value(field["type"], kept.get(name), domain, part)
            self._path.pop()
            if shape is not None and name in kept:
                shapes[name] = shape
            self.forgets |= target is not None and name not in kept
        for name, kind in kept.items():
            if name not in shapes:
                value = None
                if reader is not None and "default" in requested.get(name, ()):
                    value = default_value(reader.schema, requested[name], kind)
                shapes[name] = Constant(domain=domain, type=kind, value=value)
        ordered = tuple(shapes[name] for name in kept)
        return Record(slot=slot, domain=domain, type=target, fields=ordered)

    def _items(self, node: Any, target: Any, domain: int, reader: Reader | None) -> Shape | None:
        is_map = node["type"] == "map"
        part = "values" if is_map else "items"
        if target is not None and not (pa.types.is_map if is_map else pa.types.is_list)(target):
            raise self._misfit("a map" if is_map else "an array", target)
        slot, items = -1, -1
        if target is not None:
            slot, items = self._slot(domain), self.domain_count
            self.domain_count += 1
        start = self._emit(kernel.LIST_OP, slot, domain, items, self._level)
        self._level += 1
        shape: Shape | None
        inner = None if reader is None else reader.part(part)
        if is_map:
            key_type = None if target is None else pa.string()
            item_type = None if target is None else target.item_type
            key = self._scalar({"type": "string"}, key_type, items)
            value = self._value(node[part], item_type, items, inner)
            shape = None
            if target is not None:
                assert key is not None, "kept"
                assert value is not None, "kept"
                entry = pa.struct([target.key_field, target.item_field])
                shape = Record(slot=-1, domain=items, type=entry, fields=(key, value))
        else:
            item_type = None if target is None else target.value_type
            shape = self._value(node[part], item_type, items, inner)
        self._level -= 1
        self._emit(kernel.NEXT_OP, slot, domain, items, self._level, start)
        self._patch(start, len(self.operations))
        if shape is None:
            return None
        return Items(slot=slot, domain=domain, items=items, type=target, item=shape)

    def _union(
        self, branches: list[Any], target: Any, domain: int, reader: Reader | None
    ) -> Shape | None:
        others = [each for each in map(self._writer.resolve, branches) if not is_null(each)]
        start, jumps = self._union_start(len(branches))
        shape: Shape | None = None if target is None else Constant(domain=domain, type=target)
        if len(others) == 1:
            where = [is_null(each) for each in map(self._writer.resolve, branches)].index(False)
            self.jumps[jumps + where] = start + 1
            shape = self._value(others[0], target, domain, reader)
        elif others:
            shape = self._members(branches, target, domain, jumps)
        self._land(branches, jumps)
        return shape

    def _members(self, branches: list[Any], target: Any, domain: int, jumps: int) -> Shape | None:
        """A union of several types: a struct of members, or the wider one of two numbers."""
        resolved = [self._writer.resolve(each) for each in branches]
        plain = [n for n in resolved if not is_null(n)]
        if wider_type(plain) is not None:
            return self._either(resolved, target, domain, jumps)
        if target is not None and not pa.types.is_struct(target):
            raise self._misfit("a union of several types", target)
        slot = -1 if target is None else self._slot(domain)
        shapes: dict[str, Shape] = {}
        ends = []
        for i, node in enumerate(resolved):
            if is_null(node):
                continue
            self.jumps[jumps + i] = len(self.operations)
            name = f"member{plain.index(node)}"
            at = -1 if target is None else target.get_field_index(name)
            if slot >= 0:
                self._emit(kernel.PRESENT_OP, slot, domain)
            kind = None if at < 0 else target.field(at).type
            member = self._value(node, kind, domain, None)
            if member is not None:
                shapes[name] = member
            ends.append(self._emit(kernel.JUMP_OP))
        for end in ends:
            self._patch(end, len(self.operations), field=3)
        if target is None:
            return None
        fields = tuple(
            shapes.get(field.name, Constant(domain=domain, type=field.type))
            for field in map(target.field, _range(target))
        )
        return Record(slot=slot, domain=domain, type=target, fields=fields)

    def _either(self, resolved: list[Any], target: Any, domain: int, jumps: int) -> Shape | None:
        """A union of two numbers, of which one holds the other."""
        leaves, ends = [], []
        for i, node in enumerate(resolved):
            if not is_null(node):
                self.jumps[jumps + i] = len(self.operations)
                leaves.append(self._scalar(node, target, domain))
                ends.append(self._emit(kernel.JUMP_OP))
        for end in ends:
            self._patch(end, len(self.operations), field=3)
        options = tuple(leaf for leaf in leaves if leaf is not None)
        return FirstOf(domain=domain, type=target, options=options) if options else None

    def _scalar(self, node: Any, target: Any, domain: int) -> Leaf | None:
        operation, kind = _SCALARS[node["type"]]
        amount = node["size"] if node["type"] == "fixed" else len(node.get("symbols", ()))
        if target is None:
            self._emit(operation, a=amount)
            return None
        native = _arrow_scalar(node)
        if not becomes(native, target):
            raise self._misfit(type_name(native), target)
        slot = self._slot(domain)
        self._emit(operation, slot, domain, amount)
        logical = node.get("logicalType", "")
        return Leaf(
            kind=_leaf_kind(kind, native, target, node),
            slot=slot,
            domain=domain,
            type=target,
            native=native,
            numerator=1000 if logical.endswith("timestamp-millis") else 1,
            denominator=1000 if logical.endswith("timestamp-nanos") else 1,
            names=tuple(enumerate(node.get("symbols", ()))),
        )

    # ------------------------------------------------------------------------------- emitting

    def _present(self, domain: int, target: Any) -> int:
        if target is None:
            return -1
        slot = self._slot(domain)
        self._emit(kernel.PRESENT_OP, slot, domain)
        return slot

    def _union_start(self, count: int) -> tuple[int, int]:
        """Emit a union with `count` branches still to land; its operation and first jump."""
        jumps = len(self.jumps)
        self.jumps += [-1] * count
        return self._emit(kernel.UNION_OP, a=jumps, b=count), jumps

    def _land(self, branches: Sequence[Any], jumps: int) -> None:
        """Branches that read nothing go on here."""
        for i in range(jumps, jumps + len(branches)):
            if self.jumps[i] < 0:
                self.jumps[i] = len(self.operations)

    def _slot(self, domain: int) -> int:
        self.domains.append(domain)
        return len(self.domains) - 1

    def _emit(
        self, operation: int, slot: int = -1, domain: int = 0, a: int = 0, b: int = 0, c: int = 0
    ) -> int:
        self.operations.append((operation, slot, domain, a, b, c))
        return len(self.operations) - 1

    def _patch(self, at: int, to: int, *, field: int = 5) -> None:
        held = list(self.operations[at])
        held[field] = to
        self.operations[at] = (held[0], held[1], held[2], held[3], held[4], held[5])

    def _misfit(self, found: str, target: Any) -> MisfitSchema:
        path = ".".join(self._path) or "value"
        return MisfitSchema(f"field {path} is {found}, its column {type_name(target)}")


def _range(target: Any) -> range:
    return range(target.num_fields)


def _column_names(
    fields: Sequence[dict[str, Any]], kept: dict[str, Any], requested: dict[str, Any]
) -> dict[str, str]:
    """The column of each of the writer's fields: of its own name, or of an alias of it."""
    names = {field["name"]: field["name"] for field in fields if field["name"] in kept}
    for name, wanted in requested.items():
        if name in kept and name not in names:
            for alias in wanted.get("aliases", ()):
                if any(field["name"] == alias for field in fields):
                    names[alias] = name
                    break
    return names


def _leaf_kind(kind: str, native: Any, target: Any, node: Any) -> LeafKind:
    if pa.types.is_decimal(native):
        return "decimal"
    if node["type"] == "fixed" and native == pa.string():
        return "uuid"
    if kind in ("bytes", "text"):
        return "text" if target == pa.string() else "bytes"
    return kind  # type: ignore[return-value] # the table above holds no others


def avro_values(spec: ValueSpec, registry: SchemaRegistry | None) -> ValuesBySchema:
    """Return the decoder of one Avro datum for each value. Raises SettingsError."""
    if not spec.schema and registry is None:
        raise SettingsError("Avro values need a schema registry's URL or a schema")
    declared: Writer | None = None
    reader: AvroSchema | None = None
    if spec.schema:
        declared = declared_writer(lambda: _writer(read_schema(spec.schema), None))
        reader = read_schema(spec.schema)

    def read(registered: RegisteredSchema, _place: Place) -> Writer:
        return avro_writer(registered, reader)

    return ValuesBySchema(Format(readers={"AVRO": read}, parts=one_part), registry, declared)


def avro_writer(registered: RegisteredSchema, reader: AvroSchema | None = None) -> Writer:
    """Return the writer of a registered schema. Raises UnusableSchema."""
    texts = [reference.text for reference in registered.references]
    return _writer(read_schema(registered.text, texts), reader)


def _writer(schema: AvroSchema, reader: AvroSchema | None) -> Writer:
    def compiled(columns: object) -> AvroProgram:
        return compile_avro(schema, columns, reader)

    return Writer(columns=avro_columns(schema), compiled=compiled)
