"""A schema compiled for JSON: the tables that read objects, and the columns that come of them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lakehead.lake.tables.ddl import VARIANT, type_name
from lakehead.lake.tables.values import json_kernel as kernel
from lakehead.lake.tables.values.cells import ROWS, SIZE_BITS, Cells
from lakehead.lake.tables.values.decoder import ErrorClass
from lakehead.lake.tables.values.json_kernel import check_values, fault_text
from lakehead.lake.tables.values.shape import Items, Leaf, LeafKind, Record, Shape
from lakehead.storage.errors import SettingsError

ITEM = "[]"
"""The step of a path from a list to its items."""

_HELD = {'"': "text", "{": "an object", "[": "an array", "t": "a boolean", "f": "a boolean"}
"""Kind of a JSON value, by its first byte; a number by any other."""

_ROWS_AT_LEAST = 16
"""Rows that are read in the general way together, where a value is not plain; doubled as long as
others are not either.
"""

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The form in JSON of a column of `type`, where it is not the type's own: bytes, and the
    unscaled number of a decimal, in base64; a date or an instant as an integer, of which `numerator
    / denominator` is one of the column's units. Of VARIANT: any value, whose JSON the column has.
    """

    type: Any
    numerator: int = 1
    denominator: int = 1


Forms = Mapping[Path, Written]
"""Forms of columns that are not their types' own, by path."""


def fitting_forms(forms: Forms, schema: Any) -> Forms:
    """Return those of `forms` by which the columns of `schema` can be read."""
    fitting = {}
    for path, form in forms.items():
        kind = _at(pa.struct(list(schema)), path)
        if kind is not None and _fits(form.type, kind):
            fitting[path] = form
    return fitting


def _at(kind: Any, path: Path) -> Any:
    for step in path:
        if step == ITEM and pa.types.is_list(kind):
            kind = kind.value_type
        elif pa.types.is_struct(kind) and kind.get_field_index(step) >= 0:
            kind = kind.field(kind.get_field_index(step)).type
        else:
            return None
    return kind


def _fits(written: Any, kind: Any) -> bool:
    if pa.types.is_decimal(written) and pa.types.is_decimal(kind):
        whole = kind.precision - kind.scale
        return bool(kind.scale >= written.scale and whole + written.scale > 0)
    return bool(written == kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonProgram:
    """The program that `json_kernel` runs, and the shape of the cells that it fills."""

    nodes: Any  # int64, one row each
    fields: Any
    names: Any  # uint8, and eight bytes more
    paths: tuple[tuple[str, str], ...]  # of each node, and its type
    domains: tuple[int, ...]
    domain_count: int
    shape: Record
    is_flat: bool
    """True if all columns are scalars, of names without an escape in JSON."""

    @property
    def tables(self) -> tuple[Any, ...]:
        """The arrays of the kernel."""
        return self.nodes, self.fields, self.names

    @property
    def column_error(self) -> ErrorClass:
        """Well-formed values: text that is not a date does not fit its column."""
        return "misfit"

    def read(self, data: Any, starts: Any, ends: Any, cells: Cells) -> tuple[Any, Any]:
        """Fill `cells` with objects; return a fault for each, and 1 for each good one that has
        fields which no column is for.
        """
        codes = np.zeros(len(starts), np.int64)
        more = np.zeros(len(starts), np.uint8)
        cells.side = np.empty(len(data), np.uint8)
        row = side_at = 0
        block = _ROWS_AT_LEAST
        while row < len(starts):
            if self.is_flat:
                after = kernel.read_plain(data, starts, ends, row, self.tables, cells)
                block = block * 2 if after - row < block else _ROWS_AT_LEAST
                row = after
                if row == len(starts):
                    break
            else:
                block = len(starts)
            some = slice(row, row + block)
            checked = check_values(data, starts[some], ends[some])
            formed = np.flatnonzero(checked == 0)
            found, unknown, side_at = kernel.decode_objects(
                data, starts[some][formed], self.tables, cells, side_at
            )
            codes[some] = -checked
            codes[row + formed], more[row + formed] = found, unknown
            row += block
        return codes, more[codes == 0]

    def fault(self, code: int) -> tuple[str, ErrorClass]:
        """A fault of `run` in words, and its class."""
        if code < 0:
            return fault_text(-code), "malformed"
        path, kind = self.paths[code >> 12]
        if code & 15 == kernel.TWICE:
            return f"field {path} is repeated", "misfit"
        held = _HELD.get(chr(code >> 4 & 0xFF), "a number")
        return f"field {path}: {held} that is not {kind}", "misfit"


class WholeValues:
    """A program of one column, which has each object whole: as VARIANT, or as its JSON."""

    domains: tuple[int, ...] = (ROWS,)
    domain_count: int = 1
    column_error: ErrorClass = "misfit"

    def __init__(self, schema: Any) -> None:
        kind = schema.field(0).type
        leaf: LeafKind = "variant" if kind == VARIANT else "text"
        field = Leaf(kind=leaf, slot=0, domain=ROWS, type=kind)
        self.shape = Record(slot=-1, domain=ROWS, type=pa.struct(list(schema)), fields=(field,))

    def run(self, data: Any, starts: Any, ends: Any, cells: Cells) -> Any:
        """Fill `cells` with the places of objects; return a fault for each value."""
        faults = check_values(data, starts, ends)
        is_good = faults == 0
        places = (starts << SIZE_BITS | (ends - starts))[is_good]
        cells.held[ROWS] = len(places)
        first = cells.base[0]
        cells.values[first : first + len(places)] = places
        cells.valid[first : first + len(places)] = 1
        return faults

    def left_out(self, rows: Any) -> Any:
        """Return none of `rows`: the column has all fields."""
        return rows[:0]

    def fault(self, code: int) -> tuple[str, ErrorClass]:
        """A fault of `run` in words, and its class."""
        return fault_text(code), "malformed"


class NotingProgram:
    """A program that notes which of the values it last read have more fields than columns."""

    def __init__(self, program: JsonProgram) -> None:
        self._program = program
        self.domains: tuple[int, ...] = program.domains
        self.domain_count: int = program.domain_count
        self.shape: Record = program.shape
        self.column_error: ErrorClass = program.column_error
        self._more: Any = None

    def run(self, data: Any, starts: Any, ends: Any, cells: Cells) -> Any:
        """Fill `cells` with objects; return a fault for each."""
        codes, self._more = self._program.read(data, starts, ends, cells)
        return codes

    def left_out(self, rows: Any) -> Any:
        """Those of `rows` that have more fields than columns."""
        return rows[self._more != 0]

    def fault(self, code: int) -> tuple[str, ErrorClass]:
        """A fault of `run` in words, and its class."""
        return self._program.fault(code)


def compile_json(
    schema: Any, forms: Forms | None = None, *, noted: Sequence[str] | None = None
) -> JsonProgram:
    """Compile the columns of a table, written as their types say or as `forms` does. Fields that no
    column is for are noted anywhere, or inside the columns `noted`.

    Raises SettingsError for a type that JSON does not have.
    """
    compiler = _Compiler(forms or {}, noted)
    shape = compiler.root(schema)
    return JsonProgram(
        nodes=np.array(compiler.nodes, np.int64).reshape(-1, 6),
        fields=np.array(compiler.fields, np.int64).reshape(-1, 3),
        names=np.frombuffer(bytes(compiler.names) + bytes(8), np.uint8),
        paths=tuple(compiler.paths),
        domains=tuple(compiler.domains),
        domain_count=compiler.domain_count,
        shape=shape,
        is_flat=all(isinstance(field, Leaf) for field in shape.fields)
        and all(node[0] != kernel.VARIANT_KIND for node in compiler.nodes)
        and not re.search(rb'[\x00-\x1f"\\]', bytes(compiler.names)),
    )


class _Compiler:
    """Walks the tree of columns; the fields of an object lie side by side."""

    def __init__(self, forms: Forms, noted: Sequence[str] | None) -> None:
        self._forms = forms
        self._noted = noted
        self.nodes: list[list[int]] = []
        self.fields: list[tuple[int, int, int]] = []
        self.names = bytearray()
        self.paths: list[tuple[str, str]] = []
        self.domains: list[int] = []
        self.domain_count = 1

    def root(self, schema: Any) -> Record:
        """The object that a value is."""
        node = self._node(kernel.OBJECT_KIND, -1, 0, ("value",), "object")
        return self._object(node, -1, 0, pa.struct(list(schema)), ())

    def _object(self, node: int, slot: int, domain: int, kind: Any, path: Path) -> Record:
        fields = [kind.field(i) for i in range(kind.num_fields)]
        first = len(self.fields)
        self.fields += [(0, 0, 0)] * len(fields)
        self.nodes[node][3:5] = [first, len(fields)]
        shapes = []
        for i, field in enumerate(fields):
            name = field.name.encode()
            at = len(self.names)
            self.names += name
            self.fields[first + i] = (at, len(name), len(self.nodes))
            shapes.append(self._value(field.type, domain, (*path, field.name)))
        return Record(slot=slot, domain=domain, type=kind, fields=tuple(shapes))

    def _value(self, kind: Any, domain: int, path: Path) -> Shape:
        slot = len(self.domains)
        self.domains.append(domain)
        if kind == VARIANT:
            self._node(kernel.VARIANT_KIND, slot, domain, path, type_name(kind))
            return Leaf(kind="variant", slot=slot, domain=domain, type=kind)
        if pa.types.is_struct(kind):
            node = self._node(kernel.OBJECT_KIND, slot, domain, path, type_name(kind))
            return self._object(node, slot, domain, kind, path)
        if pa.types.is_list(kind):
            node = self._node(kernel.ARRAY_KIND, slot, domain, path, type_name(kind))
            items = self.domain_count
            self.domain_count += 1
            self.nodes[node][3:5] = [items, len(self.nodes)]
            item = self._value(kind.value_type, items, (*path, ITEM))
            return Items(slot=slot, domain=domain, items=items, type=kind, item=item)
        form = self._forms.get(path)
        if form is not None:
            return self._formed(form, kind, slot, domain, path)
        operation, leaf = _scalar(kind, path)
        node = self._node(operation, slot, domain, path, type_name(kind))
        if operation == kernel.INTEGER_KIND:
            limits = np.iinfo(kind.to_pandas_dtype())
            self.nodes[node][3:5] = [int(limits.min), int(limits.max)]
        return Leaf(kind=leaf, slot=slot, domain=domain, type=kind)

    def _formed(self, form: Written, kind: Any, slot: int, domain: int, path: Path) -> Leaf:
        """A column that is written in a form of its own."""
        if form.type == VARIANT:
            self._node(kernel.VARIANT_KIND, slot, domain, path, type_name(kind))
            return Leaf(kind="text", slot=slot, domain=domain, type=kind)
        if pa.types.is_binary(form.type) or pa.types.is_decimal(form.type):
            self._node(kernel.TEXT_KIND, slot, domain, path, type_name(kind))
            native = None
            if pa.types.is_decimal(kind):
                # As many digits before the point as the column has, so that the rest always fits.
                scale = form.type.scale
                native = pa.decimal128(kind.precision - kind.scale + scale, scale)
            return Leaf(kind="base64", slot=slot, domain=domain, type=kind, native=native)
        node = self._node(kernel.INTEGER_KIND, slot, domain, path, "BIGINT")
        limits = np.iinfo(np.int32 if pa.types.is_date32(kind) else np.int64)
        self.nodes[node][3:5] = [int(limits.min), int(limits.max)]
        return Leaf(
            kind="integer",
            slot=slot,
            domain=domain,
            type=kind,
            numerator=form.numerator,
            denominator=form.denominator,
        )

    def _node(self, kind: int, slot: int, domain: int, path: Path, name: str) -> int:
        is_noted = self._noted is None or (slot >= 0 and path[0] in self._noted)
        self.nodes.append([kind, slot, domain, 0, 0, int(is_noted)])
        self.paths.append((_shown(path), name))
        return len(self.nodes) - 1


def _shown(path: Path) -> str:
    return ".".join(path).replace(f".{ITEM}", ITEM)


def _scalar(kind: Any, path: Path) -> tuple[int, LeafKind]:
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
        f"column {_shown(path)} cannot be {type_name(kind)}: JSON has no BINARY, and an object is "
        "a STRUCT"
    )
