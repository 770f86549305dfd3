"""The first pass: what is newest of each key, and how transactions ended, in what is not compacted.

Keys of a transaction count once its commit is seen; until then they wait, in the same bound of
memory. What is compacted ends before the first batch whose transaction has no end here.
"""

import random
from dataclasses import dataclass, field

import numpy as np

from lakehead.storage.compaction import record_kernels as kernels
from lakehead.storage.compaction.batch_filter import inflated
from lakehead.storage.compaction.batch_rows import BatchRows
from lakehead.storage.compaction.offset_map import OffsetMap, Rows
from lakehead.storage.compaction.reading import StoredBatch
from lakehead.storage.format.control_batch import read_marker
from lakehead.storage.format.record_batch import NO_PRODUCER_ID, BatchHeader, read_header
from lakehead.storage.format.record_check import RecordChecker

OFFSET_MAX = 2**63 - 1


@dataclass(slots=True)
class _Open:
    """A transaction without an end: its first offset, and what its records would supersede."""

    first_offset: int
    keys: list[Rows] = field(default_factory=list)


class DirtyScan:
    """What a pass over batches of so many `offsets` has found. `memory` in bytes bounds the map of
    keys; records from `keys_until` on supersede nothing.
    """

    def __init__(
        self, memory: int, rng: random.Random, *, offsets: int, keys_until: int = OFFSET_MAX
    ) -> None:
        self.newest = OffsetMap(memory, rng, keys_max=offsets)
        self.end_offset = -1
        """The end of what was scanned."""
        self.is_full = False
        self.unreadable = 0
        """Batches that hold no records that can be read; they stay as they are."""
        self.last_batches: dict[int, int] = {}
        """The end offset of the last batch with records of each producer."""
        self.last_markers: dict[int, int] = {}
        """The end offset of each producer's last marker."""
        self._aborted: dict[int, list[tuple[int, int]]] = {}
        self._open: dict[int, _Open] = {}
        self._waiting = 0
        self._keys_until = keys_until
        self._checker = RecordChecker()

    @property
    def stable_offset(self) -> int:
        """The end of what was scanned and whose transactions have ended."""
        return min((one.first_offset for one in self._open.values()), default=self.end_offset)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a batch belongs to a transaction that was aborted, as far as was scanned."""
        if not header.is_transactional or header.is_control:
            return False
        spans = self._aborted.get(header.producer_id, ())
        return any(first <= header.base_offset < marker for first, marker in spans)

    def add_all(self, batches: BatchRows, end_offset: int = OFFSET_MAX) -> bool:
        """Scan the next batches, up to an offset. False when it is reached, or the map has no room:
        nothing that follows was scanned.
        """
        row = 0
        while row < batches.count:
            first, row = (
                row,
                self.newest.note(
                    batches,
                    row,
                    end_offset=end_offset,
                    keys_until=self._keys_until,
                    waiting=self._waiting,
                ),
            )
            if row > first:
                for producer_id, end, _ in batches.producers(first, row):
                    self.last_batches[producer_id] = end
                self.end_offset = batches.end_offset(row - 1)
            if row < batches.count:
                stored = batches.stored(row)
                if stored.end_offset > end_offset or not self.add(stored):
                    return False
                row += 1
        return True

    def add(self, stored: StoredBatch) -> bool:
        """Scan the next batch. False when the map has no room for its keys: nothing of it, and
        nothing that follows, was scanned. A batch that nothing can read needs none, however many
        records its header counts.
        """
        header = read_header(stored.payload)
        room = self.newest.capacity - self.newest.count - self._waiting
        is_readable = True
        if header.record_count > room:
            is_readable = self._is_readable(header, stored.payload)
            if is_readable:
                self.is_full = True
                return False
        if header.is_control:
            self.last_markers[header.producer_id] = stored.end_offset
            self._end_transaction(header, stored.payload)
        elif header.record_count > 0:
            self._add_records(header, stored, is_readable=is_readable)
        self.end_offset = stored.end_offset
        return True

    def _end_transaction(self, header: BatchHeader, payload: memoryview) -> None:
        try:
            marker = read_marker(payload)
        except ValueError:
            self.unreadable += 1
            return
        ended = self._open.pop(header.producer_id, None) if marker is not None else None
        if ended is None or marker is None:
            return
        self._waiting -= sum(map(len, ended.keys))
        if marker.is_commit:
            for rows in ended.keys:
                self.newest.put(rows, self._keys_until)
        else:
            spans = self._aborted.setdefault(header.producer_id, [])
            spans.append((ended.first_offset, header.base_offset))

    def _is_readable(self, header: BatchHeader, payload: memoryview) -> bool:
        found = self._checker.check(header, payload)
        return found is None or not found.is_whole

    def _add_records(self, header: BatchHeader, stored: StoredBatch, *, is_readable: bool) -> None:
        if header.producer_id != NO_PRODUCER_ID:
            self.last_batches[header.producer_id] = stored.end_offset
        waiting = None
        if header.is_transactional:
            waiting = self._open.setdefault(header.producer_id, _Open(header.base_offset))
        try:
            rows = (
                self.newest.rows(header, inflated(header, stored.payload)) if is_readable else None
            )
        except ValueError:
            rows = None
        if rows is None:
            self.unreadable += 1
            return
        if waiting is None:
            self.newest.put(rows, self._keys_until)
            return
        keyed = rows[rows[:, kernels.FLAGS] & kernels.HAS_KEY != 0, : kernels.KEY_COLUMNS]
        waiting.keys.append(np.ascontiguousarray(keyed))
        self._waiting += len(keyed)
