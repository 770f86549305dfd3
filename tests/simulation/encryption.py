"""Encryption in a simulated world: the keys of its processes, and the plain bytes for its judges.

Of each process it is drawn whether it encrypts; all of them decrypt. Now and then the wrapping key
is changed. Draws are apart from the world's, so that one without encryption stays what it is.
"""

from __future__ import annotations

import random

from lakehead.storage.clock import Clock
from lakehead.storage.encryption.chunks import TRAILER_SIZE, ObjectCipher, Trailer, is_encrypted
from lakehead.storage.encryption.data_keys import DataKeys
from lakehead.storage.object_store.encrypted import EncryptedStore
from lakehead.storage.object_store.protocol import ObjectStore
from tests.support.encryption_keys import MemoryKeys


class WorldKeys:
    """The wrapping keys of a world."""

    def __init__(self, seed: int, clock: Clock) -> None:
        self._rng = random.Random(f"keys of {seed}")
        self._provider = MemoryKeys(self._rng)
        self._clock = clock
        self._by_process: dict[str, DataKeys] = {}

    def of(self, process: str) -> DataKeys:
        """Return the data keys of a process."""
        if process not in self._by_process:
            if self._rng.random() < 0.2:
                self._provider.rotate()
            self._by_process[process] = self._provider.data_keys(
                writes=self._rng.random() < 0.8,
                clock=self._clock,
                seed=self._rng.getrandbits(32),
            )
        return self._by_process[process]

    def plain(self, key: str, body: bytes) -> bytes:
        """Return the content of an object."""
        if not is_encrypted(body):
            return body
        trailer = Trailer.decode(key, body, len(body))
        target = bytearray(trailer.plain_size)
        cipher = ObjectCipher(key, trailer, self._provider.opened(trailer.key))
        cipher.decrypt_into(memoryview(body)[:-TRAILER_SIZE], 0, memoryview(target))
        return bytes(target)


def seen_by(store: ObjectStore, keys: WorldKeys | None, process: str) -> ObjectStore:
    """Return a store as a process sees it."""
    return store if keys is None else EncryptedStore(store, keys.of(process))
