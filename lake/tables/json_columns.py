"""JSON values to columns of a given schema, with bad values set aside one by one.

One kernel (`json_check`) says which values are one well-formed object each, a second
(`values.json_kernel`) reads their fields into columns. Neither parses anything twice, and both know
what is wrong by row.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from lake.tables.json_check import check_values, fault_text
from lake.tables.values.arrow_columns import ArrowColumns
from lake.tables.values.cells import Cells
from lake.tables.values.framing import Values, places
from lake.tables.values.groups import DecodedRows, Group
from lake.tables.values.json_kernel import decode_objects
from lake.tables.values.json_program import JsonProgram, compile_json


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
    found = places(values)
    result = DecodedRows(schema)
    present = np.flatnonzero(found.starts >= 0)
    if len(present) < len(found):
        result.nulls(found.nulls)
    bad, codes = _check(found)
    if bad:
        for row in present[codes[present] != 0].tolist():
            result.fault(row, fault_text(int(codes[row])), "malformed")
        present = present[codes[present] == 0]
    richer = _decode(_program(schema), found, present, schema, result)
    decoded = result.decoded()
    return JsonColumns(
        columns=decoded.columns,
        rows=decoded.rows,
        faults=tuple((fault.row, fault.reason) for fault in decoded.faults),
        misfits=frozenset(fault.row for fault in decoded.faults if fault.error == "misfit"),
        richer=richer,
    )


@lru_cache(maxsize=64)
def _program(schema: Any) -> JsonProgram:
    return compile_json(schema)


def _check(values: Values) -> tuple[int, Any]:
    """How many values are bad, and a fault for each; those of nulls mean nothing."""
    if not len(values):
        return 0, np.zeros(0, np.int64)
    return check_values(values.data, values.bounds, 0, len(values))


def _decode(
    program: JsonProgram, values: Values, rows: Any, schema: Any, result: DecodedRows
) -> Any:
    """Add the well-formed values of `rows` that fit; returns those with more fields."""
    side = np.empty(len(values.data), np.uint8)
    while True:
        cells = Cells(program.domains, program.domain_count, len(rows))
        starts = values.starts[rows]
        codes, more = decode_objects(values.data, starts, program.tables, side, cells)
        for i in np.flatnonzero(codes).tolist():
            result.fault(int(rows[i]), program.fault_text(int(codes[i])), "misfit")
        good = rows[codes == 0]
        builder = ArrowColumns(values.data, cells, side)
        columns = [builder.build(field) for field in program.shape.fields]
        if not builder.faults:
            break
        for i, reason in builder.faults.items():
            result.fault(int(good[i]), reason, "misfit")
        rows = np.delete(good, list(builder.faults))
    if columns:
        result.add(Group(rows=good, columns=pa.Table.from_arrays(columns, schema=schema)))
    return good[more[codes == 0] != 0]
