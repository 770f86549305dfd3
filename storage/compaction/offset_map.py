"""The newest offset of each key, in a bounded piece of memory.

An open hash table: 24 bytes a slot, whatever the keys are, and no more slots than there may be
keys. Keys are known by 128 bits of a hash
with a secret, as Kafka's cleaner knows them by their MD5: two keys that agree in all of them do not
occur. Its memory is taken as it is used.
"""

import random
from typing import Any, NamedTuple

import numpy as np

from lakehead.storage.compaction import record_kernels as kernels
from lakehead.storage.compaction.batch_merging import Span
from lakehead.storage.compaction.batches import Arena, BatchRows, zeros
from lakehead.storage.compaction.kernels import seal
from lakehead.storage.format.record_batch import BatchHeader
from lakehead.storage.object_store.protocol import Buffer

SLOT_SIZE = 24
_LOAD = 0.75
"""Share of the slots that is used: beyond it, looking up takes ever longer."""
_SLOTS_MAX = 1 << 32
"""As many as half of a hash distinguishes."""
_SECRET_BITS = 63
_ROWS_MIN = 1024
_FAULTS = {
    1: "a record's length is not a varint",
    2: "a record reaches beyond its batch",
    3: "a record is cut short",
    4: "a record is outside its batch",
    5: "a record's time is out of range",
    6: "a key reaches beyond its record",
}

Rows = Any
"""A two-dimensional array: see `record_kernels`."""


class CleanRules(NamedTuple):
    """The rules of the second pass: see `record_kernels`."""

    end_offset: int
    start_offset: int
    now_ms: int
    horizon_ms: int
    expired_ms: int


_CLEAN = [
    kernels.END_OFFSET,
    kernels.START_OFFSET,
    kernels.NOW,
    kernels.HORIZON,
    kernels.EXPIRED,
]


class Cleaned(NamedTuple):
    """The result for batches up to a row: the remaining batches, and whether any differs from
    before.
    """

    row: int
    left: list[Span]
    is_changed: bool


class OffsetMap:
    """Offsets by key. `memory` in bytes; `capacity` is how many keys fit in it. There are no more
    than `keys_max`.
    """

    def __init__(self, memory: int, rng: random.Random, *, keys_max: int = 1 << 62) -> None:
        slots = max(16, min(memory // SLOT_SIZE, int(keys_max / _LOAD) + 1, _SLOTS_MAX))
        self.capacity = int(slots * _LOAD)
        self.count = 0
        """Keys in the map."""
        self._table = zeros((slots, 3))
        self._secret = rng.getrandbits(_SECRET_BITS), rng.getrandbits(_SECRET_BITS)
        self._rows = np.empty((_ROWS_MIN, kernels.COLUMNS), dtype=np.int64)
        self._rules = np.zeros(kernels.RULES_SIZE, np.int64)
        self._rules[[kernels.LOW, kernels.HIGH]] = self._secret
        self._state = np.zeros(kernels.STATE_SIZE, np.int64)
        self._spans = np.empty((64, kernels.SPAN_COLUMNS), np.int64)

    def rows(self, header: BatchHeader, data: Buffer) -> Rows:
        """Return a row for each record of a batch, of which `data` is inflated; good until the next
        call. Raises ValueError for a malformed batch.
        """
        count = header.record_count
        if count * kernels.SIZE_MIN > len(data):
            raise ValueError("more records than bytes")
        if count > len(self._rows):
            self._rows = np.empty((max(count, 2 * len(self._rows)), kernels.COLUMNS), np.int64)
        fault = kernels.parse(
            np.frombuffer(data, dtype=np.uint8),
            0,
            len(data),
            count,
            header.base_offset,
            header.last_offset_delta,
            header.base_timestamp,
            *self._secret,
            self._rows,
        )
        if fault:
            raise ValueError(_FAULTS[fault])
        return self._rows[:count]

    def digest(self, key: bytes) -> tuple[int, int]:
        """Return the 128 bits that stand for a key in `rows`, as two numbers."""
        data = np.frombuffer(key, dtype=np.uint8)
        low, high = kernels.digest(data, 0, len(key), *self._secret)
        return int(low), int(high)

    def put(self, rows: Rows, keys_until: int) -> None:
        """Note the offset of each row with a key, below `keys_until`, unless a newer one is known.
        New keys need room: see `capacity`.
        """
        assert self.count + len(rows) <= self.capacity
        self.count = kernels.put(rows, len(rows), keys_until, self._table, self.count)

    def mark(self, rows: Rows, start_offset: int, *, is_over: bool) -> tuple[int, int, int, int]:
        """Mark the rows of which no newer one is known, from `start_offset` on, and without
        tombstones if that is over for them; return how many they are, how many of them tombstones,
        their newest timestamp, and their bytes.
        """
        marked: tuple[int, int, int, int] = kernels.mark(
            rows, len(rows), start_offset, int(is_over), self._table
        )
        return marked

    def note(
        self, batches: BatchRows, first: int, *, end_offset: int, keys_until: int, waiting: int
    ) -> int:
        """Put the records of plain batches, from row `first` on, that end at `end_offset` or below.
        Returns the first row that is another's affair: it is not plain, malformed, or there is no
        room for it and for `waiting` keys.
        """
        rules, state = self._rules, self._state
        rules[kernels.END_OFFSET], rules[kernels.KEYS_UNTIL] = end_offset, keys_until
        rules[kernels.MOST], state[kernels.USED] = self.capacity - waiting, self.count
        row: int = kernels.note_batches(
            *(batches.bytes, batches.table, first, batches.count),
            *(rules, self._rows, self._table, state),
        )
        self.count = int(state[kernels.USED])
        return row

    def clean(
        self, batches: BatchRows, first: int, rules: CleanRules, producers: Any, arena: Arena
    ) -> Cleaned:
        """Find what is left of plain batches, from row `first` on: in their own memory where
        nothing changes, else in that of `arena`. It ends at the first row that is another's affair:
        it is not plain, malformed, or is to stay without records. `producers`: a table of the
        end of each one's last batch, by id.
        """
        self._rules[_CLEAN] = rules
        if batches.count > len(self._spans):
            self._spans = np.empty((batches.count, kernels.SPAN_COLUMNS), np.int64)
        state, spans, row, left = self._state, self._spans, first, list[Span]()
        state[kernels.CHANGED] = 0
        while True:
            out = arena.free
            state[[kernels.OUT_AT, kernels.SPANS]] = 0
            row = kernels.clean_batches(
                *(batches.bytes, batches.table, row, batches.count, self._rules),
                *(self._rows, self._table, producers, out, spans, state),
            )
            end = int(state[kernels.OUT_AT])
            seal(out, 0, end)
            arena.free = out[end:]
            for is_made, start, stop, *said in spans[: state[kernels.SPANS]].tolist():
                data = out.data if is_made else batches.data
                left.append(Span._make((*said, data[start:stop])))
            if not state[kernels.LACKS]:
                return Cleaned(row, left, bool(state[kernels.CHANGED]))
            arena.new(int(state[kernels.LACKS]))
