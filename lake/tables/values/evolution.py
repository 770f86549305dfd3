"""Evolution of a table's schema by its values: safe changes, and conflicts.

A change is safe if it leaves every existing row as it was for every reader: a new column (null in
the rows of before), a wider number, an order of fields that changed, a field that went missing
(null from now on). All columns are nullable, so nothing needs relaxing. Everything else is a
conflict.

Adding a column is a change of metadata alone. A wider number is not: data files keep the narrow
type, which readers of a table without Delta's type widening may refuse, and delta-rs has no such
table. `widened` says that the older files must be rewritten.
"""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakehead.lake.tables.ddl import is_struct, type_name

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_WRITTEN_INTEGERS = (pa.int32(), pa.int64())
_FLOATS = (pa.float32(), pa.float64())
_TEXTS = (pa.string(), pa.binary())


@dataclass(frozen=True, slots=True, kw_only=True)
class Widening:
    """A column (`a.b.element` for what is inside) and its types before and after."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.path} from {type_name(self.before)} to {type_name(self.after)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A column whose values are of a type that its table's can never become; or, with `beside`, one
    that no table has beside its column of that name, which differs in case only.
    """

    path: str
    table: Any
    values: Any
    beside: str = ""

    def __str__(self) -> str:
        if self.beside:
            return f"field {self.path}: the table has column {self.beside}, another case of it"
        return f"{self.path} is {type_name(self.table)}, but values are {type_name(self.values)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """The evolved schema of a table. With conflicts, `schema` holds all fields without one."""

    schema: Any  # pa.Schema
    added: tuple[str, ...] = ()
    widened: tuple[Widening, ...] = ()
    conflicts: tuple[Conflict, ...] = ()

    @property
    def is_needed(self) -> bool:
        """True if the table's schema does not hold what values have."""
        return bool(self.added or self.widened or self.conflicts)


def evolve(table: Any, found: Any) -> Evolution:
    """Return what the schema `table` must become to hold values that have the schema `found`.

    Columns keep their places; new ones follow. Names that differ in case alone are a conflict.
    """
    rules = _Rules()
    fields = rules.fields(list(table), list(found), "")
    return Evolution(
        schema=pa.schema(fields, metadata=table.metadata),
        added=tuple(rules.added),
        widened=tuple(rules.widened),
        conflicts=tuple(rules.conflicts),
    )


def name_conflict(table: Any, found: Any) -> Conflict | None:
    """Return a field of the schema `found` that would be left out of a table with the schema
    `table`, because its name differs from a column's in case only; None: there is none.
    """
    return next((one for one in evolve(table, found).conflicts if one.beside), None)


def holds(table: Any, values: Any) -> bool:
    """Return whether a column of type `table` holds every value of type `values`
    without a change.
    """
    if table == values:
        return True
    rules = _Rules()
    rules.kind(table, values, "")
    return not (rules.added or rules.widened or rules.conflicts)


def becomes(native: Any, target: Any) -> bool:
    """Return whether a column of type `target` takes the writer's type: Avro's promotions, and
    decimals that lose nothing.
    """
    if native == target or (native in _TEXTS and target in _TEXTS):
        return True
    if native in _WRITTEN_INTEGERS:
        return target in _FLOATS or (native, target) == _WRITTEN_INTEGERS
    if native == pa.float32():
        return bool(target == pa.float64())
    if pa.types.is_decimal(native) and pa.types.is_decimal(target):
        whole = native.precision - native.scale
        return bool(target.scale >= native.scale and target.precision - target.scale >= whole)
    return False


def extended(table: Any, found: Any) -> Any:
    """The schema `table` with the columns that `found` has beside it, also those inside structs;
    what both have stays as it is in `table`.
    """
    return pa.schema(_extended(list(table), list(found)))


def _extended(table: list[Any], found: list[Any]) -> list[Any]:
    others = {field.name: field.type for field in found}
    known = {field.name.lower() for field in table}
    held = [field.with_type(_more(field.type, others.get(field.name))) for field in table]
    return [*held, *(field for field in found if field.name.lower() not in known)]


def _more(table: Any, found: Any) -> Any:
    if found is None:
        return table
    if is_struct(table) and is_struct(found):
        return pa.struct(_extended(_children(table), _children(found)))
    if pa.types.is_list(table) and pa.types.is_list(found):
        return pa.list_(_more(table.value_type, found.value_type))
    return table


def merged(first: Any, second: Any) -> Any:
    """The schema that holds values of both schemas, as far as there is one."""
    return evolve(first, second).schema


class _Rules:
    """Walks two schemas side by side."""

    def __init__(self) -> None:
        self.added: list[str] = []
        self.widened: list[Widening] = []
        self.conflicts: list[Conflict] = []

    def fields(self, table: list[Any], found: list[Any], path: str) -> list[Any]:
        by_name = {field.name: field for field in found}
        known = {field.name.lower(): field for field in table}
        result = []
        for field in table:
            other = by_name.get(field.name)
            if other is not None:
                field = field.with_type(
                    self.kind(field.type, other.type, _joined(path, field.name))
                )
            result.append(field)
        for field in found:
            same = known.get(field.name.lower())
            if same is None:
                known[field.name.lower()] = field
                self.added.append(_joined(path, field.name))
                result.append(field.with_nullable(True))
            elif same.name != field.name:
                self.conflicts.append(
                    Conflict(
                        path=_joined(path, field.name),
                        table=same.type,
                        values=field.type,
                        beside=same.name,
                    )
                )
        return result

    def kind(self, table: Any, found: Any, path: str) -> Any:
        """The type that a column of type `table` becomes."""
        if table == found or pa.types.is_null(found):
            return table
        if is_struct(table) and is_struct(found):
            return pa.struct(self.fields(_children(table), _children(found), path))
        if pa.types.is_list(table) and pa.types.is_list(found):
            return pa.list_(self.kind(table.value_type, found.value_type, f"{path}.element"))
        if pa.types.is_map(table) and pa.types.is_map(found) and table.key_type == found.key_type:
            return pa.map_(
                table.key_type, self.kind(table.item_type, found.item_type, f"{path}.value")
            )
        wider = _wider(table, found)
        if wider is None:
            self.conflicts.append(Conflict(path=path, table=table, values=found))
            return table
        if wider != table:
            self.widened.append(Widening(path=path, before=table, after=wider))
        return wider


def _wider(table: Any, found: Any) -> Any:
    """The type that holds all values of both, None if there is none (Delta's type widening)."""
    if table in _INTEGERS and found in _INTEGERS:
        return max(table, found, key=_INTEGERS.index)
    if table in _FLOATS and found in _FLOATS:
        return pa.float64()
    for one, other in ((table, found), (found, table)):
        # A double holds an INT exactly, and not a BIGINT.
        if one == pa.float64() and other in _INTEGERS[:3]:
            return pa.float64()
    if pa.types.is_decimal(table) and pa.types.is_decimal(found):
        scale = max(table.scale, found.scale)
        whole = max(table.precision - table.scale, found.precision - found.scale)
        return pa.decimal128(whole + scale, scale) if whole + scale <= 38 else None
    return None


def _children(kind: Any) -> list[Any]:
    return [kind.field(i) for i in range(kind.num_fields)]


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
