"""When a slow put is raced by a second one of the same bytes: a synchronous state machine over
events and times.

A put is *overdue* when it takes longer than 95 of 100 recent puts of about its size. It is hedged
then, if

- the budget allows it: hedges are at most a share of the puts, and their bytes of the bytes put;
- the store as a whole is not slow: of the recent puts few were overdue. A second request for each
  slow one would only add to a queue;
- the store has not demanded fewer requests of late.

Only first tries teach how long a put takes, those that lost their race included: a response that
no put waits for is still awaited. Otherwise the slow ones would be missing, and all would be slow.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

_STEPS = 8
"""Of the histogram, for each doubling: one is a twelfth wide."""
_SHORTEST_S = 1e-4
_BUCKETS = 21 * _STEPS
_FADE_AT = 1000
_RECENT = 16
_RECENT_OVERDUE_MAX = 4
_REST_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgingSettings:
    """Sizes in bytes, times in seconds."""

    share: float = 0.05
    """The most hedges, as a share of the puts, and of their bytes; 0: none."""
    quantile: float = 0.95
    """A put that takes longer than this share of the recent ones may be overdue."""
    delay_s_min: float = 0.01
    """No put is overdue before this time, which is not worth a request."""
    puts_min: int = 40
    """No put is overdue before this many puts of its size, or of a larger one, are known."""
    credit_puts_max: float = 10.0
    """The most hedges that may be saved up while none is needed."""
    credit_bytes_max: float = 16 * 1024 * 1024
    """The most bytes of hedges that may be saved up."""
    raced_bytes_max: int = 16 * 1024 * 1024
    """Bytes of the puts that have two tries on their way: the memory that late ones hold on to."""


class LatencyHistogram:
    """Durations of recent puts. All counts are halved now and then, so that old ones fade."""

    __slots__ = ("_counts", "_total")

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self._total = 0

    @property
    def total(self) -> int:
        """Puts, faded ones not included."""
        return self._total

    def add(self, seconds: float) -> None:
        """Count a put."""
        steps = math.log2(max(seconds, _SHORTEST_S) / _SHORTEST_S) * _STEPS
        self._counts[min(int(steps), _BUCKETS - 1)] += 1
        self._total += 1
        if self._total >= _FADE_AT:
            self._counts = [count // 2 for count in self._counts]
            self._total = sum(self._counts)

    def quantile(self, share: float) -> float:
        """Return seconds that `share` of the puts do not exceed: at most a twelfth too many."""
        wanted = share * self._total
        counted = 0
        for bucket, count in enumerate(self._counts):
            counted += count
            if count and counted >= wanted:
                return float(_SHORTEST_S * 2.0 ** ((bucket + 1) / _STEPS))
        return math.inf


class RacedPut:
    """One put, from the start of its first try to the end of its last. `due_s` are the seconds
    after which it is overdue; None: too little is known of the store.
    """

    __slots__ = ("due_s", "is_overdue", "is_raced", "is_settled", "size")

    def __init__(self, size: int, due_s: float | None) -> None:
        self.size = size
        self.due_s = due_s
        self.is_overdue = False
        self.is_raced = False
        self.is_settled = False


class Hedging:
    """Decides which puts are hedged. Times are seconds of one monotonic clock."""

    def __init__(self, settings: HedgingSettings) -> None:
        self.settings = settings
        self._by_size: dict[int, LatencyHistogram] = {}
        self._puts = 0.0  # what may be spent: hedges …
        self._bytes = 0.0  # … and bytes
        self._recent: deque[bool] = deque(maxlen=_RECENT)  # of settled puts: was it overdue?
        self._overdue = 0
        self._raced_bytes = 0
        self._rests_until = -math.inf

    def started(self, size: int) -> RacedPut:
        """Take note of a put whose first try starts."""
        settings = self.settings
        self._puts = min(self._puts + settings.share, settings.credit_puts_max)
        self._bytes = min(self._bytes + settings.share * size, settings.credit_bytes_max)
        return RacedPut(size, self._due_s(size) if settings.share else None)

    def overdue(self, now: float, put: RacedPut) -> bool:
        """Take note that a put's first try is overdue; return true if it is to be hedged now."""
        put.is_overdue = True
        self._overdue += 1
        settings = self.settings
        if (
            now < self._rests_until
            or self._overdue + sum(self._recent) > _RECENT_OVERDUE_MAX
            or self._puts < 1.0
            or self._bytes < put.size
            or self._raced_bytes + put.size > settings.raced_bytes_max
        ):
            return False
        self._puts -= 1.0
        self._bytes -= put.size
        self._raced_bytes += put.size
        put.is_raced = True
        return True

    def responded(self, put: RacedPut, latency_s: float) -> None:
        """Take note of the duration of a put's first try, which may have lost by now."""
        self._by_size.setdefault(_size_class(put.size), LatencyHistogram()).add(latency_s)

    def settled(self, put: RacedPut) -> None:
        """Take note that a put's outcome is known, or that its tries have failed."""
        if not put.is_settled:
            put.is_settled = True
            self._overdue -= put.is_overdue
            self._recent.append(put.is_overdue)

    def ended(self, put: RacedPut) -> None:
        """Take note that no try of a put that was hedged is on its way any more."""
        self._raced_bytes -= put.size

    def refused(self, now: float) -> None:
        """Take note that the store demanded fewer requests."""
        self._rests_until = now + _REST_S

    def _due_s(self, size: int) -> float | None:
        """Return when a put is overdue, by those of its size or, while they are few, larger
        ones.
        """
        settings, own = self.settings, _size_class(size)
        for size_class in sorted(self._by_size):
            histogram = self._by_size[size_class]
            if size_class >= own and histogram.total >= settings.puts_min:
                return max(histogram.quantile(settings.quantile), settings.delay_s_min)
        return None


def _size_class(size: int) -> int:
    """Return a number that sizes within a factor of four share."""
    return size.bit_length() // 2
