"""Values by the schema they were written with: each group decoded by its program, rows in order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from lakehead.lake.tables.values.arrow_columns import ArrowColumns
from lakehead.lake.tables.values.cells import Cells
from lakehead.lake.tables.values.decoder import NO_SCHEMA, Decoded, ErrorClass, Fault
from lakehead.lake.tables.values.evolution import evolve, merged
from lakehead.lake.tables.values.framing import Values
from lakehead.lake.tables.values.shape import Record


class Program(Protocol):
    """A compiled schema."""

    @property
    def domains(self) -> tuple[int, ...]:
        """The domain of each slot."""

    @property
    def domain_count(self) -> int:
        """Number of domains."""

    @property
    def shape(self) -> Record:
        """The columns that come of it."""

    @property
    def column_error(self) -> ErrorClass:
        """The class of faults that only whole columns show."""

    def run(self, data: Any, starts: Any, ends: Any, cells: Cells) -> Any:
        """Fill `cells`; return a fault for each value, 0 = good. Must not look beyond `ends`."""

    def left_out(self, rows: Any) -> Any:
        """Those of `rows`, of the good values of the last run, whose values have fields which no
        column is for, or their schema has; None: no row.
        """

    def fault(self, code: int) -> tuple[str, ErrorClass]:
        """A fault of `run` in words, and its class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows of a batch whose values one program made columns of. `left_out` are those whose values
    have fields which no column is for, None: no row.
    """

    rows: Any  # int64, ascending
    columns: Any  # pa.Table
    left_out: Any = None  # int64


RowFault = tuple[int, str, ErrorClass]
"""A row that is a fault, its reason, and the class of the error."""


def decode_rows(
    program: Program, values: Values, rows: Any, schema: Any
) -> tuple[Group, list[RowFault]]:
    """Decode the values of `rows`; return those that are good, and what is wrong with others."""
    faults: list[RowFault] = []
    while True:
        cells = Cells(program.domains, program.domain_count, len(rows))
        codes = program.run(values.data, values.starts[rows], values.ends[rows], cells)
        bad = np.flatnonzero(codes)
        faults += [(int(rows[i]), *program.fault(int(codes[i]))) for i in bad]
        good = rows[codes == 0] if len(bad) else rows
        builder = ArrowColumns(values.data, cells)
        fields = zip(program.shape.fields, schema.names, strict=True)
        columns = [builder.build(field, name) for field, name in fields]
        if not builder.faults:
            table = pa.Table.from_arrays(columns, schema=schema)
            return Group(rows=good, columns=table, left_out=program.left_out(good)), faults
        # Seen only in whole columns: once more, without their rows.
        error = program.column_error
        faults += [(int(good[i]), reason, error) for i, reason in builder.faults.items()]
        rows = np.delete(good, list(builder.faults))


class FoundSchemas:
    """Fields of one batch's values that the requested schema does not have."""

    def __init__(self, requested: Any) -> None:
        self.schema: Any = None
        """Of all of them, None: nothing (see `Decoded.found`)."""
        self._requested = requested
        self._held: list[tuple[Any, Any]] = []

    def add(self, rows: Any, columns: Any) -> None:
        """The values of `rows` have `columns`: noted if that is more than the requested schema."""
        if evolve(self._requested, columns).is_needed:
            self.schema = columns if self.schema is None else merged(self.schema, columns)
            self._held.append((rows, columns))

    def by_row(self) -> Mapping[int, Any]:
        """Return what each value has (see `FoundByRow`)."""
        return {row: columns for rows, columns in self._held for row in rows.tolist()}


class DecodedRows:
    """Gathers groups and faults of one batch into the result of a decoder."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._groups: list[Group] = []
        self._faults: list[Fault] = []
        self.found = FoundSchemas(schema)

    def add(self, group: Group) -> None:
        """Rows that became columns."""
        if len(group.rows):
            self._groups.append(group)

    def fault(self, row: int, reason: str, error: ErrorClass, schema_id: int = NO_SCHEMA) -> None:
        """A row that cannot be one."""
        self._faults.append(Fault(row=row, reason=reason, error=error, schema_id=schema_id))

    def fault_all(
        self, rows: Any, reason: str, error: ErrorClass, schema_id: int = NO_SCHEMA
    ) -> None:
        """Rows that cannot be any, all for one reason."""
        for row in rows.tolist():
            self.fault(row, reason, error, schema_id)

    def nulls(self, rows: Any) -> None:
        """Null values: rows of nulls."""
        arrays = [pa.nulls(len(rows), field.type) for field in self._schema]
        self.add(Group(rows=rows, columns=pa.Table.from_arrays(arrays, schema=self._schema)))

    def decoded(self) -> Decoded:
        """The result."""
        groups = self._groups
        if not groups:
            columns, rows = self._schema.empty_table(), np.zeros(0, np.int64)
        elif len(groups) == 1:
            columns, rows = groups[0].columns, groups[0].rows
        else:
            rows = np.concatenate([group.rows for group in groups])
            order = np.argsort(rows, kind="stable")
            columns = pa.concat_tables([group.columns for group in groups])
            columns, rows = columns.take(int64_array(order)), rows[order]
        left_out = [group.left_out for group in groups if group.left_out is not None]
        return Decoded(
            columns=columns,
            rows=int64_array(rows),
            faults=tuple(sorted(self._faults, key=lambda fault: fault.row)),
            found=self.found.schema,
            left_out=np.concatenate(left_out) if left_out else None,
            found_by_row=self.found.by_row,
        )


def placed(decoded: Decoded, rows: Any) -> Decoded:
    """Return what some rows (numpy int64, ascending) of a batch were decoded to, by their places in
    the batch.
    """
    taken = rows[np.asarray(decoded.rows, np.int64)]

    def found_by_row() -> Mapping[int, Any]:
        return {int(rows[row]): found for row, found in decoded.found_by_row().items()}

    return replace(
        decoded,
        rows=int64_array(taken),
        faults=tuple(replace(fault, row=int(rows[fault.row])) for fault in decoded.faults),
        left_out=None if decoded.left_out is None else rows[decoded.left_out],
        found_by_row=found_by_row,
    )


def int64_array(numbers: Any) -> Any:
    """An Arrow array over numpy's memory (`pa.array` would import pandas)."""
    numbers = np.ascontiguousarray(numbers, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def by_value(numbers: Any, rows: Any) -> Sequence[tuple[int, Any]]:
    """`rows` by the number that each has in `numbers`."""
    found = numbers[rows]
    if len(found) and (found == found[0]).all():
        return [(int(found[0]), rows)]
    return [(int(number), rows[found == number]) for number in np.unique(found)]
