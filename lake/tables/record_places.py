"""The places of very many records, partition and offset, in eight bytes each."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

PLACE = ("_partition", "_offset")
"""The columns of a record's place: partition and offset."""


class RecordPlaces:
    """The places of rows that have `_partition` and `_offset`, each once."""

    def __init__(self, rows: Any) -> None:
        offsets = rows.column("_offset").to_numpy()
        self._offsets = {
            partition: np.unique(offsets[some]) for partition, some in _by_partition(rows)
        }

    def __len__(self) -> int:
        return sum(map(len, self._offsets.values()))

    def has(self, rows: Any) -> npt.NDArray[np.bool_]:
        """Return which rows are of one of these places, as a mask."""
        found = np.zeros(rows.num_rows, np.bool_)
        offsets = rows.column("_offset").to_numpy()
        for partition, some in _by_partition(rows):
            if (held := self._offsets.get(partition)) is not None:
                at = np.minimum(np.searchsorted(held, offsets[some]), len(held) - 1)
                found[some] = held[at] == offsets[some]
        return found


def among_places(rows: Any) -> Any:
    """Return a predicate (of `pyarrow.dataset`) that selects the rows of a table which are of one
    of these places, and perhaps some of another partition; files without such rows are not read.
    """
    partitions = pc.unique(rows.column("_partition").combine_chunks())
    offsets = rows.column("_offset").combine_chunks()
    first, last = (pa.scalar(n, pa.int64()) for n in pc.min_max(offsets).as_py().values())
    at = ds.field("_offset")
    within = (at >= first) & (at <= last)
    return within & at.isin(offsets) & ds.field("_partition").isin(partitions)


def _by_partition(rows: Any) -> Iterator[tuple[int, Any]]:
    """Yield each partition and which rows are of it."""
    partitions = rows.column("_partition").to_numpy()
    order = np.argsort(partitions, kind="stable")
    cuts = np.flatnonzero(np.diff(partitions[order])) + 1
    for some in np.split(order, cuts):
        if len(some):
            yield int(partitions[some[0]]), some
