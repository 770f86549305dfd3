"""Between which values the keys of changes lie, as SQL: what a MERGE reads no file outside of.

Engines compare it with the statistics of files. It holds for every row of the table that a change
can meet, so it changes nothing but what is read; where a bound has no literal that every engine
reads alike, there is none.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_RANGES_MAX = 16
_GAP_MIN = 1 / 64
"""How much of all that lies between the ends a gap is to leave out, to be worth a condition."""
_TEXT_MAX = 200
_FIRST_DAY, _LAST_DAY = (
    int(np.datetime64(day).astype(int)) for day in ("0001-01-01", "9999-12-31")
)


def within_ranges(source: Any, names: Sequence[str], columns: Sequence[str]) -> str:
    """Return a condition that all rows of `source` meet, about its columns `names`, each called as
    in `columns`; empty if there is nothing to say.
    """
    conditions = []
    for name, column in zip(names, columns, strict=True):
        ranges = _ranges(source.column(name))
        if ranges:
            told = " OR ".join(f"{column} BETWEEN {low} AND {high}" for low, high in ranges)
            conditions.append(f"({told})")
    return " AND ".join(conditions)


def _ranges(values: Any) -> list[tuple[str, str]]:
    values = values.drop_null()
    if not len(values):
        return []
    kind = values.type
    if pa.types.is_integer(kind):
        return [(str(low), str(high)) for low, high in _runs(values)]
    if pa.types.is_date32(kind):
        return _days(_runs(values.cast(pa.int32())))
    if pa.types.is_string(kind):
        ends = pc.min_max(values)
        low, high = ends["min"].as_py(), ends["max"].as_py()
        return [(f"'{low}'", f"'{high}'")] if _is_plain(low) and _is_plain(high) else []
    return []


def _runs(values: Any) -> list[tuple[int, int]]:
    """The smallest and largest of each run of numbers, where wide gaps are between runs."""
    distinct = np.unique(np.asarray(values))
    steps = np.diff(distinct.astype(np.float64))  # of 64 bits, the difference may have more
    widest = np.argsort(steps)[len(steps) - min(len(steps), _RANGES_MAX - 1) :]
    ends = np.sort(widest[steps[widest] >= max(steps.sum() * _GAP_MIN, 2)])
    lows = distinct[np.concatenate([[0], ends + 1])]
    highs = distinct[np.concatenate([ends, [len(distinct) - 1]])]
    if lows[0] == np.iinfo(np.int64).min:  # no literal: it is read as minus a number too large
        return []
    return [(int(low), int(high)) for low, high in zip(lows, highs, strict=True)]


def _days(runs: list[tuple[int, int]]) -> list[tuple[str, str]]:
    if runs and not _FIRST_DAY <= runs[0][0] <= runs[-1][1] <= _LAST_DAY:
        return []
    days = [np.array(run, "M8[D]") for run in runs]
    return [(f"DATE '{low}'", f"DATE '{high}'") for low, high in days]


def _is_plain(text: str) -> bool:
    """Whether a literal means the same to all engines."""
    return len(text) <= _TEXT_MAX and text.isprintable() and not {"'", "\\"} & set(text)
