"""Counts what goes to a store: requests as S3 bills them, bytes, failures and time."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from lakehead.storage.clock import Clock
from lakehead.storage.errors import (
    ObjectExists,
    OutcomeUnknown,
    StoreThrottled,
    StoreUnavailable,
)
from lakehead.storage.latency import LatencyHistogram
from lakehead.storage.object_store.protocol import (
    Buffer,
    ObjectMeta,
    ObjectStore,
    Owns,
    every_key,
    size_of,
)
from lakehead.storage.object_store.s3.limits import (
    DELETES_AT_ONCE,
    LISTED_AT_ONCE,
    MULTIPART_SIZE_MIN,
    PART_SIZE,
)

T = TypeVar("T")


@dataclass(slots=True)
class VerbStats:
    """Of one kind of call."""

    calls: int = 0
    requests: int = 0
    """Requests as S3 bills them: a list is one for each 1,000 keys, a large object one for each
    part and two more. The same is counted for a store in files, to show what it would cost.
    """
    bytes: int = 0
    """Of bodies that were written or read whole."""
    failures: int = 0
    """Refused, unreachable, timed out or unknown. An absent key or a lost race is none."""
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    seconds_max: float = 0.0


@dataclass(slots=True)
class StoreStats:
    """Of a store, since it was opened."""

    put: VerbStats = field(default_factory=VerbStats)
    get: VerbStats = field(default_factory=VerbStats)
    list: VerbStats = field(default_factory=VerbStats)
    delete: VerbStats = field(default_factory=VerbStats)
    throttles: int = 0
    """Responses that demanded fewer requests."""
    unknown: int = 0
    """Writes with an outcome that was unknown at first."""
    lost: int = 0
    """Puts of a key that was taken."""

    def cost(self, *, put_per_1000: float = 0.005, get_per_1000: float = 0.0004) -> float:
        """Return the price of the requests in dollars. Defaults: S3 standard, us-east-1; lists are
        billed like puts, deletes are free.
        """
        writes = self.put.requests + self.list.requests
        return (writes * put_per_1000 + self.get.requests * get_per_1000) / 1000


def put_requests(size: int) -> int:
    """Return how many requests a put of so many bytes takes."""
    return -(-size // PART_SIZE) + 2 if size >= MULTIPART_SIZE_MIN else 1


class CountedStore:
    """Wraps a store; `stats` grows. Belongs below `RetryingStore`, so that each attempt counts."""

    def __init__(self, inner: ObjectStore, *, clock: Clock) -> None:
        self.uri = inner.uri
        self.stats = StoreStats()
        self._inner = inner
        self._clock = clock

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        """See `ObjectStore.create`."""
        size = size_of(pieces)
        parts = put_requests(size)
        await self._count(
            self.stats.put, lambda: self._inner.create(key, pieces), lambda _: (parts, size)
        )

    async def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        return await self._count(
            self.stats.get, lambda: self._inner.get(key), lambda body: (1, len(body))
        )

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """See `ObjectStore.get_range`."""
        return await self._count(
            self.stats.get,
            lambda: self._inner.get_range(key, start, length),
            lambda body: (1, len(body)),
        )

    async def get_range_into(self, key: str, start: int, target: memoryview) -> None:
        """See `ObjectStore.get_range_into`."""
        await self._count(
            self.stats.get,
            lambda: self._inner.get_range_into(key, start, target),
            lambda _: (1, len(target)),
        )

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        """See `ObjectStore.get_suffix`."""
        return await self._count(
            self.stats.get,
            lambda: self._inner.get_suffix(key, length),
            lambda found: (1, len(found[0])),
        )

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Sequence[ObjectMeta]:
        """See `ObjectStore.list`."""
        return await self._count(
            self.stats.list,
            lambda: self._inner.list(prefix, start_after=start_after, limit=limit),
            lambda found: (max(1, -(-len(found) // LISTED_AT_ONCE)), 0),
        )

    async def delete(self, keys: Sequence[str]) -> None:
        """See `ObjectStore.delete`."""
        requests = -(-len(keys) // DELETES_AT_ONCE)
        await self._count(
            self.stats.delete, lambda: self._inner.delete(keys), lambda _: (requests, 0)
        )

    async def abort_uploads(self, *, before_ms: int, owns: Owns = every_key) -> int:
        """See `ObjectStore.abort_uploads`."""
        return await self._count(
            self.stats.list,
            lambda: self._inner.abort_uploads(before_ms=before_ms, owns=owns),
            lambda _: (1, 0),
        )

    async def close(self) -> None:
        """See `ObjectStore.close`."""
        await self._inner.close()

    async def _count(
        self,
        verb: VerbStats,
        call: Callable[[], Awaitable[T]],
        size_of: Callable[[T], tuple[int, int]],
    ) -> T:
        """Carry a call out. `size_of(result)`: its requests and bytes."""
        begun = self._clock.monotonic()
        requests = 1
        try:
            result = await call()
            requests, size = size_of(result)
            verb.bytes += size
            return result
        except (StoreUnavailable, OutcomeUnknown) as error:
            verb.failures += 1
            self.stats.throttles += isinstance(error, StoreThrottled)
            self.stats.unknown += isinstance(error, OutcomeUnknown)
            raise
        except ObjectExists:
            self.stats.lost += 1
            raise
        finally:
            seconds = self._clock.monotonic() - begun
            verb.calls += 1
            verb.requests += requests
            verb.latency.observe(seconds)
            verb.seconds_max = max(verb.seconds_max, seconds)
