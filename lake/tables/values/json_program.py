"""A schema compiled for JSON: the tables that read objects, and the columns that come of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lake.tables.ddl import type_name
from lake.tables.values import json_kernel as kernel
from lake.tables.values.shape import Items, Leaf, LeafKind, Record, Shape
from storage.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonProgram:
    """What `json_kernel` runs, and the shape of what it fills."""

    nodes: Any  # int64, one row each
    fields: Any
    names: Any  # uint8
    paths: tuple[str, ...]  # of each node, with its type
    domains: tuple[int, ...]
    domain_count: int
    shape: Record

    @property
    def tables(self) -> tuple[Any, ...]:
        """The arrays of the kernel."""
        return self.nodes, self.fields, self.names

    def fault_text(self, fault: int) -> str:
        """A fault of the kernel in words."""
        path = self.paths[fault >> 4]
        if fault & 15 == kernel.TWICE:
            return f"field {path.partition(' ')[0]} comes twice"
        return f"field {path.replace(' ', ': no ', 1)}"


def compile_json(schema: Any) -> JsonProgram:
    """Compile the columns of a table. Raises SettingsError for a type that JSON does not have."""
    compiler = _Compiler()
    shape = compiler.root(schema)
    return JsonProgram(
        nodes=np.array(compiler.nodes, np.int64).reshape(-1, 5),
        fields=np.array(compiler.fields, np.int64).reshape(-1, 3),
        names=np.frombuffer(bytes(compiler.names) or b"\0", np.uint8),
        paths=tuple(compiler.paths),
        domains=tuple(compiler.domains),
        domain_count=compiler.domain_count,
        shape=shape,
    )


class _Compiler:
    """Walks the tree of columns; the fields of an object lie side by side."""

    def __init__(self) -> None:
        self.nodes: list[list[int]] = []
        self.fields: list[tuple[int, int, int]] = []
        self.names = bytearray()
        self.paths: list[str] = []
        self.domains: list[int] = []
        self.domain_count = 1

    def root(self, schema: Any) -> Record:
        """The object that a value is."""
        node = self._node(kernel.OBJECT_KIND, -1, 0, "value", "object")
        return self._object(node, -1, 0, pa.struct(list(schema)), "")

    def _object(self, node: int, slot: int, domain: int, kind: Any, path: str) -> Record:
        fields = [kind.field(i) for i in range(kind.num_fields)]
        first = len(self.fields)
        self.fields += [(0, 0, 0)] * len(fields)
        self.nodes[node][3:] = [first, len(fields)]
        shapes = []
        for i, field in enumerate(fields):
            name = field.name.encode()
            at = len(self.names)
            self.names += name
            inner = f"{path}.{field.name}" if path else field.name
            self.fields[first + i] = (at, len(name), len(self.nodes))
            shapes.append(self._value(field.type, domain, inner))
        return Record(slot=slot, domain=domain, type=kind, fields=tuple(shapes))

    def _value(self, kind: Any, domain: int, path: str) -> Shape:
        slot = len(self.domains)
        self.domains.append(domain)
        if pa.types.is_struct(kind):
            node = self._node(kernel.OBJECT_KIND, slot, domain, path, type_name(kind))
            return self._object(node, slot, domain, kind, path)
        if pa.types.is_list(kind):
            node = self._node(kernel.ARRAY_KIND, slot, domain, path, type_name(kind))
            items = self.domain_count
            self.domain_count += 1
            self.nodes[node][3:] = [items, len(self.nodes)]
            item = self._value(kind.value_type, items, f"{path}[]")
            return Items(slot=slot, domain=domain, items=items, type=kind, item=item)
        operation, leaf = _scalar(kind, path)
        node = self._node(operation, slot, domain, path, type_name(kind))
        if operation == kernel.INTEGER_KIND:
            limits = np.iinfo(kind.to_pandas_dtype())
            self.nodes[node][3:] = [int(limits.min), int(limits.max)]
        return Leaf(kind=leaf, slot=slot, domain=domain, type=kind)

    def _node(self, kind: int, slot: int, domain: int, path: str, name: str) -> int:
        self.nodes.append([kind, slot, domain, 0, 0])
        self.paths.append(f"{path} {name}")
        return len(self.nodes) - 1


def _scalar(kind: Any, path: str) -> tuple[int, LeafKind]:
    if pa.types.is_integer(kind):
        return kernel.INTEGER_KIND, "integer"
    if pa.types.is_floating(kind):
        return kernel.DOUBLE_KIND, "number"
    if pa.types.is_boolean(kind):
        return kernel.BOOLEAN_KIND, "boolean"
    if pa.types.is_string(kind):
        return kernel.TEXT_KIND, "text"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return kernel.TEXT_KIND, "parsed"
    if pa.types.is_decimal(kind):
        return kernel.NUMERAL_KIND, "parsed"
    raise SettingsError(
        f"column {path} cannot be {type_name(kind)}: JSON has no BINARY, and an object is a STRUCT"
    )
