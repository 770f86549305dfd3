"""The measured rates of clients, by the names that share a limit: bounded, however many come."""

from collections.abc import Callable, Hashable
from hashlib import blake2b
from typing import Generic, TypeVar

SENSORS_MAX = 10_000
"""Rates of one type that are kept. Beyond it the one that was used longest ago is forgotten, which
gives its client a fresh window.
"""
IDLE_S = 3600.0
"""Time after which a rate without records is forgotten (Kafka's
`InactiveSensorExpirationTimeSeconds`).
"""
NAME_MAX = 128
"""A longer name is kept as its digest: a client id may have 32 KB."""

S = TypeVar("S")


class _Kept(Generic[S]):
    __slots__ = ("sensor", "used_at")

    def __init__(self, sensor: S) -> None:
        self.sensor = sensor
        self.used_at = 0.0


class Sensors(Generic[S]):
    """Sensors of one type by key, in the order of their last use."""

    def __init__(self, make: Callable[[], S], most: int = SENSORS_MAX) -> None:
        self._make = make
        self._most = most
        self._kept: dict[Hashable, _Kept[S]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, now: float) -> S:
        """Return the sensor of a key, made if it is new; `now` is monotonic seconds."""
        every = self._kept
        kept = every.pop(key, None)
        if kept is None:
            kept = _Kept(self._make())
            self._expire(now)
            if len(every) >= self._most:
                del every[next(iter(every))]
        kept.used_at = max(kept.used_at, now)
        every[key] = kept
        return kept.sensor

    def _expire(self, now: float) -> None:
        """Forget two that are idle at most: more than come new."""
        every = self._kept
        for _ in range(2):
            oldest = next(iter(every), None)
            if oldest is None or now - every[oldest].used_at < IDLE_S:
                return
            del every[oldest]


def short_name(name: str) -> str | bytes:
    """Return a name as keys have it."""
    if len(name) <= NAME_MAX:
        return name
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=32).digest()
