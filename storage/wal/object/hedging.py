"""When a slow put is raced by a second one of the same bytes: a synchronous state machine over
events and times.

A put is *overdue* when it takes longer than 97 of 100 recent puts of about its size, or twice as
long as their median, and *late* after that time once more. It is hedged at one of the two moments,
if

- the budget allows it: hedges are at most a share of the puts, and their bytes of the bytes put;
- the store as a whole is not slow: of the recent puts few were as overdue, or as late. A second
  request for each slow one would only add to a queue;
- the store has not demanded fewer requests of late.

Of every hundred puts a few take a little longer than the others, in every store. A part of
the budget is therefore kept for late ones: those that are slow by far find it spent otherwise.

Only first tries teach how long a put takes, those that lost their race included: a response that
no put waits for is still awaited. Otherwise the slow ones would be missing, and all would be slow.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

_STEPS = 8
"""Of the histogram, for each doubling: one is a twelfth wide."""
_SHORTEST_S = 1e-4
_BUCKETS = 21 * _STEPS
_FADE_AT = 1000
_RECENT = 16
_PUTS_PER_DUE = 8
_RECENT_LATE_MAX = 4
_OVERDUE, _LATE = 1, 2
_REST_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgingSettings:
    """Sizes in bytes, times in seconds."""

    share: float = 0.05
    """The most hedges, as a share of the puts, and of their bytes; 0: none."""
    quantile: float = 0.97
    """A put that takes longer than this share of the recent ones is overdue …"""
    medians: float = 2.0
    """… and one that takes so many times their median."""
    delay_s_min: float = 0.01
    """No put is overdue before this time, which is not worth a request."""
    puts_min: int = 40
    """Until this many puts of its size, or of a larger one, are known, a put is late …"""
    first_late_s: float = 0.1
    """… after this time."""
    credit_puts_start: float = 1.0
    """Hedges of a log that has just begun."""
    credit_puts_max: float = 10.0
    """The most hedges that may be saved up while none is needed."""
    credit_bytes_start: float = 1024 * 1024
    """Bytes of hedges of a log that has just begun."""
    credit_bytes_max: float = 16 * 1024 * 1024
    """The most bytes of hedges that may be saved up."""
    kept_puts: float = 4.0
    """Hedges that are kept for late puts, and bytes of as many."""
    raced_bytes_max: int = 16 * 1024 * 1024
    """Bytes of the puts that have two tries on their way: the memory that late ones hold on to."""


class LatencyHistogram:
    """Durations of recent puts. All counts are halved now and then, so that old ones fade."""

    __slots__ = ("_counts", "_total", "due_s", "puts_until_due")

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self._total = 0
        self.due_s = math.inf
        """When a put is overdue: what was found last …"""
        self.puts_until_due = 0
        """… which serves so many further puts."""

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

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """Return seconds that each of `shares`, ascending, of the puts do not exceed: at most a
        twelfth too many.
        """
        found: list[float] = []
        ends = list(accumulate(self._counts))
        for share in shares:
            bucket = bisect_left(ends, share * self._total)
            found.append(float(_SHORTEST_S * 2.0 ** ((bucket + 1) / _STEPS)))
        return found


class RacedPut:
    """One put, from the start of its first try to the end of its last. `waits` are the seconds
    until it is overdue and from then until it is late; of a store that is not known yet the latter
    alone. Empty: it is never raced.
    """

    __slots__ = ("is_raced", "is_settled", "lateness", "size", "waits")

    def __init__(self, size: int, waits: Sequence[float]) -> None:
        self.size = size
        self.waits = waits
        self.lateness = 0 if len(waits) > 1 else _OVERDUE
        """In time, overdue, or late."""
        self.is_raced = False
        self.is_settled = False


class Hedging:
    """Decides which puts are hedged. Times are seconds of one monotonic clock."""

    def __init__(self, settings: HedgingSettings) -> None:
        self.settings = settings
        self._by_size: dict[int, LatencyHistogram] = {}
        self._puts = settings.credit_puts_start  # what may be spent: hedges …
        self._bytes = settings.credit_bytes_start  # … and bytes
        self._recent: deque[int] = deque(maxlen=_RECENT)  # the lateness of settled puts
        self._under_way: list[RacedPut] = []  # those that are overdue or late
        self._raced_bytes = 0
        self._rests_until = -math.inf

    def started(self, size: int) -> RacedPut:
        """Take note of a put whose first try starts."""
        settings = self.settings
        if not settings.share:
            return RacedPut(size, ())
        self._puts = min(self._puts + settings.share, settings.credit_puts_max)
        self._bytes = min(self._bytes + settings.share * size, settings.credit_bytes_max)
        return RacedPut(size, self._waits(size))

    def overdue(self, now: float, put: RacedPut) -> bool:
        """Take note that the first try of a put is overdue, or, at the second call, late; return
        true if it is to be hedged now.
        """
        if put not in self._under_way:
            self._under_way.append(put)
        put.lateness += 1
        settings = self.settings
        kept = 0.0 if put.lateness == _LATE else settings.kept_puts
        as_late = sum(one.lateness >= put.lateness for one in self._under_way)
        as_late += sum(lateness >= put.lateness for lateness in self._recent)
        raced = sum(one.is_raced for one in self._under_way)
        if (
            now < self._rests_until
            or max(as_late, raced + 1) > _RECENT_LATE_MAX
            or self._puts < 1.0 + kept
            or self._bytes < put.size + min(kept * put.size, settings.credit_bytes_max / 2)
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
            if put in self._under_way:
                self._under_way.remove(put)
                self._recent.append(put.lateness)
            else:
                self._recent.append(0)

    def ended(self, put: RacedPut) -> None:
        """Take note that no try of a put that was hedged is on its way any more."""
        self._raced_bytes -= put.size

    def refused(self, now: float) -> None:
        """Take note that the store demanded fewer requests."""
        self._rests_until = now + _REST_S

    def _waits(self, size: int) -> Sequence[float]:
        """Return when a put is overdue and late, by those of its size or, while they are few,
        larger ones.
        """
        settings, own = self.settings, _size_class(size)
        longest_s = 0.0
        for size_class in sorted(self._by_size):
            histogram = self._by_size[size_class]
            if histogram.total < settings.puts_min:
                continue
            due_s = self._due_s(histogram)
            if size_class >= own:
                return due_s, due_s
            longest_s = due_s
        return (max(settings.first_late_s, 2 * longest_s),)

    def _due_s(self, histogram: LatencyHistogram) -> float:
        if histogram.puts_until_due == 0:
            settings = self.settings
            median_s, quantile_s = histogram.quantiles((0.5, settings.quantile))
            due_s = min(quantile_s, settings.medians * median_s)
            histogram.due_s = max(due_s, settings.delay_s_min)
            histogram.puts_until_due = _PUTS_PER_DUE
        histogram.puts_until_due -= 1
        return histogram.due_s


def _size_class(size: int) -> int:
    """Return a number that sizes within a factor of four share."""
    return size.bit_length() // 2
