"""Values of DATE and TIMESTAMP columns that are outside the years 1 to 9999 are faults.

That is what Spark says that these types hold, what Python's `datetime` does, and what the text of a
partition value has a form for. Parquet itself holds more, so that a table would take such a value,
and a query that meets it years later fails.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakehead.lake.tables.values.decoder import Decoded, Fault, ValueDecoder

FIRST_DAY, LAST_DAY = (int(np.datetime64(day).astype(int)) for day in ("0001-01-01", "9999-12-31"))
FIRST_US, LAST_US = FIRST_DAY * 86_400_000_000, (LAST_DAY + 1) * 86_400_000_000 - 1
"""Microseconds since 1970."""

_PER_US = {"s": 1_000_000, "ms": 1000, "us": 1}

Rows = npt.NDArray[np.bool_]


class WithinCalendar:
    """A decoder whose values are checked. See `ValueDecoder`."""

    def __init__(self, values: ValueDecoder) -> None:
        self._values = values

    def schema_of(self, batch: pa.RecordBatch) -> Any:
        """Return what the decoder does."""
        return self._values.schema_of(batch)

    def decode(
        self, batch: pa.RecordBatch, schema: Any, *, fault_count_max: int | None = None
    ) -> Decoded:
        """Return what the decoder does; values that are beyond the calendar are faults."""
        decoded = self._values.decode(batch, schema, fault_count_max=fault_count_max)
        if decoded.faults and fault_count_max is not None:
            return decoded
        return without(decoded, faults_beyond(decoded.columns, decoded.rows))


def faults_beyond(columns: Any, rows: Any) -> list[Fault]:
    """Return the faults of `columns`, a table whose rows come from `rows` of a batch."""
    faults: dict[int, Fault] = {}
    origins = None
    for field in columns.schema:
        if not _holds_time(field.type):
            continue
        beyond = rows_beyond(columns.column(field.name))
        if beyond is None:
            continue
        origins = rows.to_numpy() if origins is None else origins
        reason = f"field {field.name}: {_kind(field.type)} outside the years 1 to 9999"
        for row in origins[beyond].tolist():
            faults.setdefault(row, Fault(row=row, reason=reason, error="misfit"))
    return list(faults.values())


def without(decoded: Decoded, faults: list[Fault]) -> Decoded:
    """Return the values without the records of these faults, one for each record."""
    if not faults:
        return decoded
    known = {fault.row: fault for fault in (*faults, *decoded.faults)}
    places = np.array(sorted(fault.row for fault in faults), np.int64)
    kept = pa.array(~np.isin(decoded.rows.to_numpy(), places))
    return replace(
        decoded,
        columns=decoded.columns.filter(kept),
        rows=decoded.rows.filter(kept),
        faults=tuple(known[row] for row in sorted(known)),
    )


def faulty_times(batch: Any) -> list[Fault]:
    """Return the faults of records whose own time is beyond the calendar, or null for one that its
    column does not hold.
    """
    times = batch.column("timestamp")
    beyond = rows_beyond(times)
    missing = times.is_null().to_numpy(zero_copy_only=False) if times.null_count else None
    faults = {} if beyond is None else dict.fromkeys(np.flatnonzero(beyond).tolist(), "")
    for row in faults:
        faults[row] = f", {times[row].value // 1000} ms since 1970,"
    for row in () if missing is None else np.flatnonzero(missing).tolist():
        faults[row] = ""
    reason = "the record's time{} is outside the years 1 to 9999"
    return [
        Fault(row=row, reason=reason.format(which), error="misfit") for row, which in faults.items()
    ]


def rows_beyond(column: Any) -> Rows | None:
    """Return which rows of an array, or chunked array, hold a time outside the calendar; None for
    no row.
    """
    if not isinstance(column, pa.ChunkedArray):
        return _beyond(column)
    found = [_beyond(chunk) for chunk in column.chunks]
    if all(one is None for one in found):
        return None
    pieces = zip(found, column.chunks, strict=True)
    return np.concatenate([np.zeros(len(c), np.bool_) if one is None else one for one, c in pieces])


def _beyond(array: Any) -> Rows | None:
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return _values_beyond(array)
    if pa.types.is_struct(kind):
        fields = [
            _beyond(child)
            for child, field in zip(array.flatten(), kind, strict=True)
            if _holds_time(field.type)
        ]
        held = [rows for rows in fields if rows is not None]
        return np.logical_or.reduce(held) if held else None
    if pa.types.is_map(kind):
        return _any_of(array, pa.StructArray.from_arrays([array.keys, array.items], ["k", "v"]))
    if pa.types.is_list(kind):
        return _any_of(array, array.values)
    return None


def _any_of(array: Any, elements: Any) -> Rows | None:
    """The lists that hold one of the elements out of range."""
    if not _holds_time(elements.type) or (beyond := _beyond(elements)) is None:
        return None
    offsets = array.offsets.to_numpy()
    before = np.concatenate([[0], np.cumsum(beyond)])
    held = before[offsets[1:]] > before[offsets[:-1]]
    return held & array.is_valid().to_numpy(zero_copy_only=False) if held.any() else None


def _values_beyond(array: Any) -> Rows | None:
    if pa.types.is_date32(array.type):
        numbers, low, high = array.view(pa.int32()), FIRST_DAY, LAST_DAY
    else:
        size = _PER_US[array.type.unit]
        numbers, low, high = array.view(pa.int64()), FIRST_US // size, LAST_US // size
    ends = pc.min_max(numbers)
    smallest, largest = ends["min"].as_py(), ends["max"].as_py()
    if smallest is None or (low <= smallest and largest <= high):
        return None
    beyond = pc.or_(pc.less(numbers, low), pc.greater(numbers, high))
    rows: Rows = pc.fill_null(beyond, False).to_numpy(zero_copy_only=False)
    return rows


def _holds_time(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return any(_holds_time(field.type) for field in kind)
    if pa.types.is_map(kind):
        return _holds_time(kind.key_type) or _holds_time(kind.item_type)
    if pa.types.is_list(kind):
        return _holds_time(kind.value_type)
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date32(kind))


def _kind(kind: Any) -> str:
    if pa.types.is_date32(kind):
        return "a DATE"
    return "a TIMESTAMP" if pa.types.is_timestamp(kind) else "it has a DATE or TIMESTAMP"
