"""Records of a topic as change rows of its table by upsert: what each does, and to which row."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehead.lake.tables.ddl import type_name
from lakehead.lake.tables.upsert import AT, change_schema
from lakehead.lake.tables.values.changes import OP, SEQ
from lakehead.lake.tables.values.decoder import Fault
from lakehead.storage.errors import SettingsError

_PUTS = pa.array(["c", "r", "u"])


class Changes(NamedTuple):
    """Change rows (`upsert.change_schema`), and the records that name no row of the table."""

    rows: Any  # pa.Table
    faults: tuple[Fault, ...]


def check_keys(value_schema: Any, keys: Sequence[str], *, is_nested: bool) -> None:
    """Raise SettingsError unless these columns can tell a table's rows apart."""
    if keys and is_nested:
        raise SettingsError(
            "lakehead.table.keys names columns, and values lie in one: set "
            "lakehead.table.layout=flat, or leave the keys out"
        )
    for name in keys:
        if name not in value_schema.names:
            raise SettingsError(
                f"lakehead.table.keys: values have no field {name!r}; they have "
                f"{', '.join(value_schema.names)}"
            )
        kind = value_schema.field(name).type
        if pa.types.is_nested(kind):
            raise SettingsError(
                f"lakehead.table.keys: {name} is {type_name(kind)}, which is no key"
            )


def as_changes(
    columns: Mapping[str, Any],
    records: Any,
    origins: Any,
    table_schema: Any,
    keys: Sequence[str],
) -> Changes:
    """Return what records do to a table.

    `columns` are those of their rows, with `_op`, `_seq` and `_source_ts` where the values are
    change events; else a null value is a delete. `origins` are the rows of the batch they are from.
    """
    if OP in columns:
        told = columns[OP]
        ops = pc.if_else(pc.is_in(told, _PUTS), "u", told)
        sequence = columns[SEQ]
        at = pc.coalesce(columns["_source_ts"], columns["_timestamp"])
    else:
        ops = pc.if_else(pc.is_null(records.column("value")), "d", "u")
        zeros = np.zeros(records.num_rows, np.int32)
        sequence = pa.Array.from_buffers(pa.int32(), len(zeros), [None, pa.py_buffer(zeros)])
        at = columns["_timestamp"]
    schema = change_schema(table_schema)
    made = {**columns, OP: ops, SEQ: sequence, AT: at}
    rows = pa.Table.from_arrays([made[name] for name in schema.names], schema=schema)
    named = _named(rows, ops, keys)
    if pc.all(named).as_py() in (True, None):
        return Changes(rows, ())
    lacking = np.flatnonzero(~np.asarray(named))
    what = f"no {', '.join(keys)}" if keys else "no key"
    faults = tuple(
        Fault(row=origins[int(row)].as_py(), reason=f"{what}: it names no row", error="misfit")
        for row in lacking
    )
    return Changes(rows.filter(named), faults)


def _named(rows: Any, ops: Any, keys: Sequence[str]) -> Any:
    """Which changes say whose row they are: by columns, or by the record's key; a delete by
    either; a truncate need not.
    """
    has_key = pc.is_valid(rows.column("_key"))
    by_columns = pa.scalar(bool(keys))
    is_void = pa.scalar(True)
    for name in keys:
        has = pc.is_valid(rows.column(name))
        by_columns = pc.and_(by_columns, has)
        is_void = pc.and_(is_void, pc.invert(has))
    named = pc.or_(by_columns, pc.equal(ops, "t"))
    by_key = pc.and_(has_key, pc.and_(pc.equal(ops, "d"), is_void)) if keys else has_key
    named = pc.or_(named, by_key)
    if isinstance(named, pa.ChunkedArray):
        return named.combine_chunks()
    return named
