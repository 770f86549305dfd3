"""The newest offset of each key, in a bounded piece of memory.

An open hash table: 24 bytes a slot, whatever the keys are, and no more slots than there may be
keys. Keys are known by 128 bits of a hash
with a secret, as Kafka's cleaner knows them by their MD5: two keys that agree in all of them do not
occur. Its memory is taken as it is used.
"""

import random
from typing import Any

import numpy as np

from storage.compaction import record_kernels as kernels
from storage.compaction.arena import zeros
from storage.format.record_batch import BatchHeader
from storage.object_store.protocol import Buffer

SLOT_SIZE = 24
_LOAD = 0.75
"""Share of the slots that is used: beyond it, looking up takes ever longer."""
_SLOTS_MAX = 1 << 32
"""As many as half of a hash tells apart."""
_SECRET_BITS = 63
_ROWS_MIN = 1024

Rows = Any
"""A two-dimensional array: see `record_kernels`."""


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
            count,
            header.base_offset,
            header.last_offset_delta,
            header.base_timestamp,
            *self._secret,
            self._rows,
        )
        if fault:
            raise ValueError(kernels.FAULTS[fault])
        return self._rows[:count]

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
