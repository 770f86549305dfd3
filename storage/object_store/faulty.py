"""A strict and hostile object store for tests: seeded faults before or after the effect, and
latency.

It behaves as S3 may on a bad day: 409 and 503 (nothing written), a timeout that leaves open if the
write happened, slow responses that overtake each other. Time and randomness are injected, so that a
seed is a schedule.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from lakehead.storage.errors import OutcomeUnknown, StoreUnavailable
from lakehead.storage.object_store.protocol import Buffer, ObjectMeta, ObjectStore, Owns, every_key


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultProfile:
    """Probabilities of each fault per call, and the longest delay in seconds."""

    unavailable: float = 0.0
    """409 or 503: the call had no effect."""
    lost_request: float = 0.0
    """A write times out and never happened."""
    lost_response: float = 0.0
    """A write times out after it happened."""
    latency_s_max: float = 0.0


class FaultyStore:
    """Wraps a store. `profile` may be replaced at any time (to heal it, say)."""

    def __init__(self, inner: ObjectStore, *, rng: random.Random, profile: FaultProfile) -> None:
        self.uri = inner.uri
        self.profile = profile
        self.faults = 0
        self._inner = inner
        self._rng = rng

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        """See `ObjectStore.create`."""
        await self._delay()
        if self._happens(self.profile.unavailable):
            raise StoreUnavailable(f"injected: 503 on put of {key}")
        if self._happens(self.profile.lost_request):
            raise OutcomeUnknown(f"injected: request lost on put of {key}")
        lost = self._happens(self.profile.lost_response)
        await self._inner.create(key, pieces)
        await self._delay()
        if lost:
            raise OutcomeUnknown(f"injected: response lost on put of {key}")

    async def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        await self._before_read(key)
        return await self._inner.get(key)

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """See `ObjectStore.get_range`."""
        await self._before_read(key)
        return await self._inner.get_range(key, start, length)

    async def get_range_into(self, key: str, start: int, target: memoryview) -> None:
        """See `ObjectStore.get_range_into`."""
        await self._before_read(key)
        await self._inner.get_range_into(key, start, target)

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        """See `ObjectStore.get_suffix`."""
        await self._before_read(key)
        return await self._inner.get_suffix(key, length)

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Sequence[ObjectMeta]:
        """See `ObjectStore.list`."""
        await self._before_read(prefix)
        return await self._inner.list(prefix, start_after=start_after, limit=limit)

    async def delete(self, keys: Sequence[str]) -> None:
        """See `ObjectStore.delete`: a failing one deletes some of the keys."""
        await self._delay()
        if self._happens(self.profile.unavailable):
            await self._inner.delete(keys[: len(keys) // 2])
            raise StoreUnavailable("injected: 503 on delete")
        await self._inner.delete(keys)

    async def abort_uploads(self, *, before_ms: int, owns: Owns = every_key) -> int:
        """See `ObjectStore.abort_uploads`."""
        await self._before_read("uploads")
        return await self._inner.abort_uploads(before_ms=before_ms, owns=owns)

    async def close(self) -> None:
        """See `ObjectStore.close`."""
        await self._inner.close()

    async def _before_read(self, what: str) -> None:
        await self._delay()
        if self._happens(self.profile.unavailable):
            raise StoreUnavailable(f"injected: 503 on read of {what}")

    async def _delay(self) -> None:
        await asyncio.sleep(self._rng.random() * self.profile.latency_s_max)

    def _happens(self, probability: float) -> bool:
        happens = self._rng.random() < probability
        self.faults += happens
        return happens
