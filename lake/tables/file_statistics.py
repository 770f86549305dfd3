"""Statistics of a data file as Delta wants them: row count, smallest, largest and null count.

What an engine skips by them it never reads, so a bound that is too tight loses rows. Each bound
here holds for every reader: text is cut to a prefix and its upper bound raised, instants are
rounded outwards to the millisecond, and where no bound can be written (NaN, infinities, bytes,
decimals, booleans, arrays) there is none. (Delta protocol, "Per-file Statistics".)
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TEXT_PREFIX = 32
"""Characters of text that are kept in a bound, as in Delta's own writer."""

_LAST_CHARACTER = "\U0010ffff"

_Path = tuple[str, ...]


class FileStatistics:
    """What is known of the rows of a file, taken in pieces."""

    def __init__(self) -> None:
        self.record_count = 0
        self._columns: dict[_Path, _Column] = {}

    def add(self, rows: Any) -> None:
        """Take an Arrow table. All of them have the same schema."""
        for field in rows.schema:
            for path, column in _look(field, rows.column(field.name), (field.name,)):
                known = self._columns.get(path)
                self._columns[path] = column if known is None else known.with_more(column)
        self.record_count += rows.num_rows

    def text(self) -> str:
        """Return the `stats` of an add action, as JSON."""
        smallest: dict[str, Any] = {}
        largest: dict[str, Any] = {}
        nulls: dict[str, Any] = {}
        for path, column in self._columns.items():
            _put(nulls, path, column.nulls)
            if column.low is not None:
                _put(smallest, path, column.low)
            if column.high is not None:
                _put(largest, path, column.high)
        return json.dumps(
            {
                "numRecords": self.record_count,
                "minValues": smallest,
                "maxValues": largest,
                "nullCount": nulls,
            },
            ensure_ascii=False,
            allow_nan=False,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """Bounds as JSON values, whose order is that of what they stand for; None where there is none:
    for nothing but nulls, and where a value has no bound.
    """

    count: int
    nulls: int
    low: Any = None
    high: Any = None

    def with_more(self, more: "_Column") -> "_Column":
        held = [column for column in (self, more) if column.nulls < column.count]
        lows = [column.low for column in held]
        highs = [column.high for column in held]
        return _Column(
            count=self.count + more.count,
            nulls=self.nulls + more.nulls,
            low=None if None in lows else min(lows, default=None),
            high=None if None in highs else max(highs, default=None),
        )


def _look(field: Any, values: Any, path: _Path) -> Iterator[tuple[_Path, _Column]]:
    """Yield what is known of a column, or of the fields of a struct."""
    if pa.types.is_struct(field.type):
        for i, child in enumerate(field.type):
            # A field of a null struct is null: struct_field gives it the parent's nulls too.
            yield from _look(child, pc.struct_field(values, [i]), (*path, child.name))
        return
    nulls = values.null_count
    low, high = (None, None) if nulls == len(values) else _bounds(field.type, values)
    yield path, _Column(count=len(values), nulls=nulls, low=low, high=high)


def _put(target: dict[str, Any], path: _Path, value: Any) -> None:
    for name in path[:-1]:
        target = target.setdefault(name, {})
    target[path[-1]] = value


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
