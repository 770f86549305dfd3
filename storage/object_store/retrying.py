"""Retries what a store refused without effect: with backoff and jitter, for as long as it takes
once a node runs. The one place that does: the clients below it repeat nothing.

Only what certainly had no effect is repeated here. A write of unknown outcome is its caller's to
settle. Each call has one request on its way, and waits longer after each failure: however many
calls are waiting, a store that comes back is met by at most one request from each of them, spread
over the jitter.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lakehead.storage.backoff import Backoff
from lakehead.storage.errors import (
    KeyUnavailable,
    NotEncrypted,
    StoreRefused,
    StoreThrottled,
    StoreUnavailable,
)
from lakehead.storage.event_logger import event_logger
from lakehead.storage.object_store.protocol import Buffer, ObjectMeta, ObjectStore, Owns, every_key

T = TypeVar("T")

_log = event_logger("storage.object_store")

_PAUSE_S = 0.05
_PAUSE_THROTTLED_S = 0.5
"""After "slow down": the fewer requests that it demands, at once."""
_PAUSE_MAX_S = 5.0
"""The longest a node is late after an outage of any length."""
_ATTEMPTS = 6
"""Of a command: about three seconds of refusals are waited out."""
_SILENT_ATTEMPTS, _SILENT_S = 3, 20.0
"""Of a command whose store does not respond: attempts have longer and longer time limits."""


@dataclass(slots=True)
class RetryStats:
    """Retries since the start. `waiting`: calls that have failed, and are repeated now: also while
    an attempt is under way, which takes the longest where a store does not respond.
    """

    retries: int = 0
    throttled: int = 0
    waiting: int = 0
    waited_s: float = 0.0


class RetryingStore:
    """Wraps a store. Gives up after a few attempts until `is_patient` is set; from then on never.

    So a command or a node that starts fails with the store's own error, and a node that serves
    waits the trouble out.
    """

    def __init__(self, inner: ObjectStore, *, rng: random.Random) -> None:
        self.uri = inner.uri
        self.is_patient = False
        self.stats = RetryStats()
        self._inner = inner
        self._rng = rng

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        """See `ObjectStore.create`. OutcomeUnknown is not retried."""
        await self.repeat(key, lambda: self._inner.create(key, pieces))

    async def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        return await self.repeat(key, lambda: self._inner.get(key))

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """See `ObjectStore.get_range`."""
        return await self.repeat(
            key, lambda: self._inner.get_range(key, start, length), waits_for_key=False
        )

    async def get_range_into(self, key: str, start: int, target: memoryview) -> None:
        """See `ObjectStore.get_range_into`."""
        await self.repeat(
            key, lambda: self._inner.get_range_into(key, start, target), waits_for_key=False
        )

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        """See `ObjectStore.get_suffix`."""
        return await self.repeat(
            key, lambda: self._inner.get_suffix(key, length), waits_for_key=False
        )

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Sequence[ObjectMeta]:
        """See `ObjectStore.list`."""
        return await self.repeat(
            prefix, lambda: self._inner.list(prefix, start_after=start_after, limit=limit)
        )

    async def delete(self, keys: Sequence[str]) -> None:
        """See `ObjectStore.delete`."""
        await self.repeat(", ".join(keys[:3]), lambda: self._inner.delete(keys))

    async def abort_uploads(self, *, before_ms: int, owns: Owns = every_key) -> int:
        """See `ObjectStore.abort_uploads`."""
        return await self.repeat(
            "uploads", lambda: self._inner.abort_uploads(before_ms=before_ms, owns=owns)
        )

    async def close(self) -> None:
        """See `ObjectStore.close`."""
        await self._inner.close()

    async def repeat(
        self, what: str, call: Callable[[], Awaitable[T]], *, waits_for_key: bool = True
    ) -> T:
        """Carry `call` out as the calls above are: again after StoreUnavailable.

        Reads of parts of an object do not wait for a key that decrypts it: readers of one object
        whose key is gone would use up the memory of all cold reads.
        """
        backoff = Backoff(self._rng, first_s=_PAUSE_S, most_s=_PAUSE_MAX_S)
        begun = asyncio.get_running_loop().time()
        attempt = 1
        try:
            while True:
                try:
                    return await call()
                except StoreUnavailable as error:
                    if isinstance(error, (KeyUnavailable, NotEncrypted)) and not waits_for_key:
                        raise
                    elapsed_s = asyncio.get_running_loop().time() - begun
                    if not self.is_patient and _is_lost(error, attempt, elapsed_s):
                        raise
                    if attempt & (attempt - 1) == 0:  # in a long outage, less and less is said
                        _log.warning(
                            "store_unavailable", what=what, error=str(error), attempt=attempt
                        )
                    if isinstance(error, StoreThrottled):
                        self.stats.throttled += 1
                        backoff.at_least(_PAUSE_THROTTLED_S)
                self.stats.waiting += attempt == 1
                attempt += 1
                await self._pause(backoff.next_s())
        finally:
            self.stats.waiting -= attempt > 1

    async def _pause(self, seconds: float) -> None:
        self.stats.retries += 1
        self.stats.waited_s += seconds
        await asyncio.sleep(seconds)


def _is_lost(error: StoreUnavailable, attempt: int, elapsed_s: float) -> bool:
    """Return true if a command gives up after this attempt."""
    is_silent = attempt >= _SILENT_ATTEMPTS and elapsed_s >= _SILENT_S
    return attempt >= _ATTEMPTS or is_silent or isinstance(error, StoreRefused)
