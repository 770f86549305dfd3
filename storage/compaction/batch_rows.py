"""The batches of one item of an object, as rows of the table of `merge_kernels`."""

from typing import Any

import numpy as np

from lakehead.storage.compaction import merge_kernels as kernels
from lakehead.storage.compaction.reading import StoredBatch

_PRODUCER = (kernels.PRODUCER, kernels.NEXT, kernels.PRODUCER_EPOCH)


class BatchRows:
    """One item after the other, in the same memory."""

    def __init__(self) -> None:
        self.count = 0
        self.table: Any = np.empty((64, kernels.COLUMNS), np.int64)
        self.data: memoryview = memoryview(b"")
        self.bytes: Any = np.empty(0, np.uint8)
        """The same, for kernels."""

    def read(self, stream_id: int, data: memoryview) -> None:
        """Take the data blocks of an item. Raises ValueError where they hold no batches."""
        most = len(data) // kernels.HEADERS + 1
        if most > len(self.table):
            self.table = np.empty((most, kernels.COLUMNS), np.int64)
        self.data, self.bytes, self.count = data, np.frombuffer(data, np.uint8), 0
        fault, position, rows, _ = kernels.scan_blocks(self.bytes, stream_id, 0, 0, self.table, 0)
        if fault:
            raise ValueError(f"{kernels.FAULTS[fault]}: byte {position}")
        self.count = rows

    def stored(self, row: int) -> StoredBatch:
        """Return one batch."""
        start, end, epoch, next_offset = self.table[
            row, (kernels.START, kernels.END, kernels.EPOCH, kernels.NEXT)
        ].tolist()
        return StoredBatch(epoch, next_offset, self.data[start + kernels.RECORD_HEADER : end])

    @property
    def rows(self) -> range:
        """The numbers of the rows."""
        return range(self.count)

    def end_offset(self, row: int) -> int:
        """Return the end of a batch's offsets."""
        return int(self.table[row, kernels.NEXT])

    def epoch(self, row: int) -> int:
        """Return the stream epoch of a batch."""
        return int(self.table[row, kernels.EPOCH])

    def senders(self, first: int, end: int) -> frozenset[int]:
        """Return whose records stay in rows from `first` to `end`, which were cleaned."""
        some = self.table[first:end]
        return frozenset(some[some[:, kernels.RUN] >= 0, kernels.PRODUCER].tolist()) - {-1}

    def producers(self, first: int, end: int) -> list[tuple[int, int, int]]:
        """Return of rows from `first` to `end` each producer with the end offset and the epoch of
        its last batch.
        """
        found = self.table[first:end, _PRODUCER][::-1]
        ids, places = np.unique(found[:, 0], return_index=True)
        if not len(ids) or ids[-1] == -1:
            return []
        return [tuple(one) for one in found[places].tolist() if one[0] != -1]
