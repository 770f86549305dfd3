"""Statistics of a data file as Delta wants them: row count, smallest, largest and null count.

What an engine skips by them it never reads, so a bound that is too tight loses rows. Each bound
here holds for every reader: text is cut to a prefix and its upper bound raised, instants are
rounded outwards to the millisecond, and where no bound can be written (NaN, infinities, bytes,
decimals, booleans, arrays) there is none. (Delta protocol, "Per-file Statistics".)
"""

import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TEXT_PREFIX = 32
"""Characters of text that are kept in a bound, as in Delta's own writer."""

_LAST_CHARACTER = "\U0010ffff"


def file_statistics(table: Any) -> str:
    """Return the `stats` of an add action, as JSON text, for the rows of a file."""
    smallest: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for field in table.schema:
        _collect(field, table.column(field.name), smallest, largest, nulls)
    return json.dumps(
        {
            "numRecords": table.num_rows,
            "minValues": smallest,
            "maxValues": largest,
            "nullCount": nulls,
        },
        ensure_ascii=False,
        allow_nan=False,
    )


def _collect(
    field: Any,
    column: Any,
    smallest: dict[str, Any],
    largest: dict[str, Any],
    nulls: dict[str, Any],
) -> None:
    if pa.types.is_struct(field.type):
        inner: tuple[dict[str, Any], ...] = ({}, {}, {})
        for i, child in enumerate(field.type):
            # A field of a null struct is null: struct_field gives it the parent's nulls too.
            _collect(child, pc.struct_field(column, [i]), *inner)
        for values, target in zip(inner, (smallest, largest, nulls), strict=True):
            if values:
                target[field.name] = values
        return
    nulls[field.name] = column.null_count
    if column.null_count == len(column):
        return
    low, high = _bounds(field.type, column)
    if low is not None:
        smallest[field.name] = low
    if high is not None:
        largest[field.name] = high


def _bounds(kind: Any, column: Any) -> tuple[Any, Any]:
    """Bounds as JSON values; None where there is none."""
    if pa.types.is_string(kind):
        low, high = _ends(column)
        return low[:TEXT_PREFIX], _raised(high)
    if pa.types.is_integer(kind):
        return _ends(column)
    if pa.types.is_date(kind):
        low, high = _ends(column.cast(pa.int32()))
        return _date(low), _date(high)
    if pa.types.is_timestamp(kind):
        low, high = _ends(column.cast(pa.int64()))
        return _instant(low // 1000), _instant(-(-high // 1000))
    if pa.types.is_floating(kind):
        if pc.any(pc.is_nan(column)).as_py():
            return None, None
        low, high = _ends(column)
        if not (math.isfinite(low) and math.isfinite(high)):
            return None, None
        return low, high
    return None, None


def _ends(column: Any) -> tuple[Any, Any]:
    ends = pc.min_max(column)
    return ends["min"].as_py(), ends["max"].as_py()


def _raised(text: str) -> str | None:
    """A short text that no text which begins like `text` exceeds."""
    if len(text) <= TEXT_PREFIX:
        return text
    prefix = text[:TEXT_PREFIX]
    return None if text[TEXT_PREFIX] == _LAST_CHARACTER else prefix + _LAST_CHARACTER


def _date(days: int) -> str | None:
    text = str(np.datetime64(days, "D"))
    return text if len(text) == 10 else None


def _instant(milliseconds: int) -> str | None:
    text = str(np.datetime64(milliseconds, "ms"))
    return f"{text}Z" if len(text) == 23 else None  # years 0001 to 9999
