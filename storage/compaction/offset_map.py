"""The newest offset of each key, in a bounded piece of memory.

An open hash table in three arrays: 24 bytes a slot, whatever the keys are. Keys are known by 128
bits of BLAKE2b, as Kafka's cleaner knows them by their MD5: two keys that agree in all of them do
not occur.
"""

from array import array
from hashlib import blake2b

from storage.object_store.protocol import Buffer

SLOT_SIZE = 24
_LOAD = 0.75
"""Share of the slots that is used: beyond it, looking up takes ever longer."""
_EMPTY = -1
_WORD = (1 << 64) - 1

Digest = int
"""128 bits that stand for a key."""


def digest_of(key: Buffer) -> Digest:
    """Return what stands for a key."""
    return int.from_bytes(blake2b(key, digest_size=16).digest(), "little")


class OffsetMap:
    """Offsets by key. `memory` in bytes; `capacity` is how many keys fit in it."""

    def __init__(self, memory: int) -> None:
        self._slots = max(16, memory // SLOT_SIZE)
        self.capacity = int(self._slots * _LOAD)
        self.count = 0
        """Keys in the map."""
        self._low = array("Q", bytes(8)) * self._slots
        self._high = array("Q", bytes(8)) * self._slots
        self._offsets = array("q", [_EMPTY]) * self._slots

    def put(self, digest: Digest, offset: int) -> None:
        """Set the newest offset of a key, unless a newer one is known. A new key needs room: see
        `capacity`.
        """
        slot = self._slot(digest)
        known = self._offsets[slot]
        if known == _EMPTY:
            assert self.count < self.capacity
            self.count += 1
            self._low[slot] = digest & _WORD
            self._high[slot] = digest >> 64
        if offset > known:
            self._offsets[slot] = offset

    def get(self, digest: Digest) -> int:
        """Return the newest offset of a key, -1 for one that is not here."""
        return self._offsets[self._slot(digest)]

    def _slot(self, digest: Digest) -> int:
        """Return where a key is, or would be."""
        low, high = digest & _WORD, digest >> 64
        offsets, lows, highs, slots = self._offsets, self._low, self._high, self._slots
        slot = low % slots
        while offsets[slot] != _EMPTY and (lows[slot] != low or highs[slot] != high):
            slot += 1
            if slot == slots:
                slot = 0
        return slot
