"""JSON values to columns of a given schema, with bad values set aside one by one.

One kernel (`json_check`) says which values are one well-formed object each, a second
(`values.json_kernel`) reads their fields into columns. Neither parses anything twice, and both know
what is wrong by row.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from lakehead.lake.tables.values.framing import Values, places
from lakehead.lake.tables.values.groups import DecodedRows, decode_rows
from lakehead.lake.tables.values.json_program import JsonProgram, NotingProgram, compile_json


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonColumns:
    """Values as columns.

    `columns` has one row per good value, in order; `rows` says which values they were; a null value
    is a row of nulls. `faults` are (value index, why) of the bad ones, in order; `misfits` are
    those of them that are well-formed. `richer` are good values that have fields which the schema
    does not.
    """

    columns: Any  # pa.Table
    rows: Any  # pa.Array of int64
    faults: tuple[tuple[int, str], ...]
    misfits: frozenset[int] = frozenset()
    richer: Any = None  # int64


def json_columns(values: Any, schema: Any) -> JsonColumns:
    """Parse `values` (Arrow binary) as objects with the fields of `schema`.

    Fields that the schema does not have are left out, missing ones are null; types are not bent (a
    number is no string, 1.5 is no integer), but text becomes a DATE, TIMESTAMP or DECIMAL.

    Raises SettingsError for a type that JSON does not have.
    """
    return placed_columns(places(values), schema)


def placed_columns(found: Values, schema: Any) -> JsonColumns:
    """As `json_columns`, for values that lie in one buffer."""
    result = DecodedRows(schema)
    present = np.flatnonzero(found.starts >= 0)
    if len(present) < len(found):
        result.nulls(found.nulls)
    program = NotingProgram(_program(schema))
    group, faults = decode_rows(program, found, present, schema)
    if len(schema):
        result.add(group)
    for row, reason, error in faults:
        result.fault(row, reason, error)
    decoded = result.decoded()
    return JsonColumns(
        columns=decoded.columns,
        rows=decoded.rows,
        faults=tuple((fault.row, fault.reason) for fault in decoded.faults),
        misfits=frozenset(fault.row for fault in decoded.faults if fault.error == "misfit"),
        richer=group.left_out,
    )


@lru_cache(maxsize=64)
def _program(schema: Any) -> JsonProgram:
    return compile_json(schema)
