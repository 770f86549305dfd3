"""Z-order: rows by a number in which the bits of several columns take turns.

Rows that are near in all of the columns have near numbers, so that a file with a run of them has
narrow bounds of each. A column counts by the rank of its values among those of a sample: widths and
distributions of values do not matter, nor do their types.

Source: Morton, "A Computer Oriented Geodetic Data Base" (1966); Delta's `ZORDER BY` ranks values in
the same way.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakehead.lake.tables.arrow_rows import one_array

_BITS = 63
_BITS_OF_COLUMN = 16

ZValues = npt.NDArray[np.int64]
"""Numbers of rows in Z-order, from 0 on."""


class ZOrder:
    """The Z-order of rows by some columns, as of a sample of the rows (an Arrow table)."""

    def __init__(self, sample: Any, names: Sequence[str]) -> None:
        self._names = tuple(names)[:_BITS]
        self._bits = max(min(_BITS_OF_COLUMN, _BITS // len(self._names)), 1)
        self._bounds = [_bounds(sample.column(name), 1 << self._bits) for name in self._names]

    def values(self, rows: Any) -> ZValues:
        """Return the numbers of the rows of an Arrow table. A null comes before all values."""
        ranks = [
            self._rank(rows.column(name), bounds)
            for name, bounds in zip(self._names, self._bounds, strict=True)
        ]
        if len(ranks) == 1:
            return ranks[0]
        found = np.zeros(rows.num_rows, np.int64)
        for bit in reversed(range(self._bits)):
            for rank in ranks:
                found = (found << 1) | ((rank >> bit) & 1)
        return found

    def _rank(self, column: Any, bounds: Any) -> ZValues:
        """Ranks over the whole range of a column's bits, or a column of two values would only
        count where all others are equal.
        """
        values = one_array(column)
        ranks = _ranks(values, bounds) + 1
        if values.null_count:
            ranks[np.asarray(values.is_null())] = 0
        return ranks * ((1 << self._bits) - 1) // (len(bounds) + 1)


def _bounds(column: Any, count: int) -> Any:
    """Values, in order, that divide those of a sample into nearly equal parts: at most
    `count` - 2.
    """
    values = one_array(column).drop_null()
    values = values.take(pc.sort_indices(values))
    if (most := count - 2) < len(values):
        values = values.take(pa.array(np.linspace(0, len(values) - 1, most).astype(np.int64)))
    return values.unique()


def _ranks(values: Any, bounds: Any) -> ZValues:
    """The number of bounds that each value reaches."""
    kind = values.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
        places: ZValues = np.searchsorted(bounds.to_numpy(), numbers, "right").astype(np.int64)
        return places
    if pa.types.is_timestamp(kind):
        return _ranks(values.cast(pa.int64()), bounds.cast(pa.int64()))
    if pa.types.is_date32(kind):
        return _ranks(values.cast(pa.int32()), bounds.cast(pa.int32()))
    encoded = values.dictionary_encode()
    both = pa.concat_arrays([bounds, encoded.dictionary])
    order = np.asarray(pc.sort_indices(both))  # stable, so a bound comes before its equals
    ranks = np.empty(len(both), np.int64)
    ranks[order] = np.cumsum(order < len(bounds))
    of_values = ranks[len(bounds) :]
    if not len(of_values):
        return np.zeros(len(values), np.int64)
    found: ZValues = of_values[np.asarray(encoded.indices.fill_null(0))]
    return found
