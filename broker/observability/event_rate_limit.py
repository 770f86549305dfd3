"""A bound on events that clients cause: one that fails does so as often as it likes.

An event that is the same as one before is written once a minute, and of one owner (a principal, an
address) `_BURST` at once and `_RATE_S` a second. The next event counts those between.
"""

from collections import OrderedDict
from typing import Any

from lakehead.storage.clock import Clock

INTERVAL_S = 60.0
"""Time after which the same event is written again."""
_BURST, _RATE_S = 50, 5.0
_KEYS_MAX, _OWNERS_MAX = 8_192, 1_024


class _Bucket:
    """Tokens of one owner."""

    __slots__ = ("at", "left", "suppressed")

    def __init__(self, now: float) -> None:
        self.at = now
        self.left = float(_BURST)
        self.suppressed = 0


class EventRateLimit:
    """Decides which events are written."""

    def __init__(self, clock: Clock) -> None:
        self.suppressed_total = 0
        """Events that were not written, because there were too many like them."""
        self._clock = clock
        self._seen: OrderedDict[tuple[Any, ...], list[float]] = OrderedDict()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def admit(self, key: tuple[Any, ...], owner: str) -> int | None:
        """Return how many events like this were not written since the last one; None if this one
        is not written either. Events with the same `key` are the same.
        """
        now = self._clock.monotonic()
        seen = self._seen.get(key)
        if seen is not None and now - seen[0] < INTERVAL_S:
            seen[1] += 1
            self.suppressed_total += 1
            return None
        bucket = self._bucket(owner, now)
        if bucket.left < 1:
            bucket.suppressed += 1
            self.suppressed_total += 1
            return None
        bucket.left -= 1
        repeated = bucket.suppressed + (0 if seen is None else int(seen[1]))
        bucket.suppressed = 0
        self._seen[key] = [now, 0]
        self._seen.move_to_end(key)
        if len(self._seen) > _KEYS_MAX:
            self._seen.popitem(last=False)
        return repeated

    def _bucket(self, owner: str, now: float) -> _Bucket:
        bucket = self._buckets.get(owner)
        if bucket is None:
            bucket = self._buckets[owner] = _Bucket(now)
            if len(self._buckets) > _OWNERS_MAX:
                self._buckets.popitem(last=False)
        bucket.left = min(float(_BURST), bucket.left + (now - bucket.at) * _RATE_S)
        bucket.at = now
        return bucket
