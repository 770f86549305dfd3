"""When a group commit starts: a synchronous state machine over events and times.

Three estimators, all fed by finished puts:

- *Slots* (`InFlightLimit`): the number of puts that are worth having in flight. By Little's law, a
  store of base latency B serves `limit` puts at once without queueing as long as each takes about
  B, so after each put the limit is scaled by `tolerance * B / latency` (at most 1, at least a half)
  and grows by its square root: it climbs while the store responds quickly, and settles where more
  puts only queue. B is the least latency of recent puts of about the same size, since a large put
  takes longer for a reason that is not a queue. A refusal halves the limit.
- *Linger*: puts of small groups start at least a quick put's time apart, since a put costs money,
  and work on both sides, whatever its size. That adds half of that time to the average append. The
  first append of a group waits a moment for company: producers whose batches one put acknowledged
  send again together, and without it the first of them would go alone and the others a put later.
- *Cost guard* (`CostGuard`): a token bucket of puts, filled at the rate that a monthly budget buys.
  It holds an hour's worth for bursts; below half, the linger grows towards the spacing that the
  budget affords for ever. A group of full size never waits for it: its price is in the data.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from dataclasses import dataclass

_MONTH_S = 30 * 24 * 3600.0
_BURST_S = 3600.0
_WINDOW_S = 30.0
_TOLERANCE = 2.0
_SMOOTHING = 0.1
_GATHER_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingSettings:
    """Sizes in bytes, times in seconds, money in dollars."""

    object_size: int = 1024 * 1024
    """A group of this size starts without lingering …"""
    object_size_max: int = 8 * 1024 * 1024
    """… and while no slot is free it grows to this, unless one record alone is longer."""
    linger_s: float = 0.001
    """The least time between the starts of two small puts, and the most that an append waits for
    company after a pause …"""
    linger_max_s: float = 0.25
    """… and the most between two starts, unless the budget wants more."""
    in_flight_max: int = 32
    """The most puts in flight, whatever the store could take."""
    in_flight_start: int = 4
    """Puts in flight before anything is known of the store."""
    budget: float = 400.0
    """Dollars a month that puts may cost this node, if they go on like now; 0: no limit."""
    put_price: float = 0.005
    """Dollars for 1,000 puts."""


class RecentLeast:
    """The least of what was added in the last 30 s: a monotone queue of candidates."""

    def __init__(self) -> None:
        self._candidates: deque[tuple[float, float]] = deque()

    def add(self, now: float, value: float) -> float:
        """Add a value and return the least one."""
        candidates = self._candidates
        while candidates and candidates[-1][1] >= value:
            candidates.pop()
        candidates.append((now, value))
        while candidates[0][0] < now - _WINDOW_S:
            candidates.popleft()
        return candidates[0][1]


class InFlightLimit:
    """The number of puts that may be in flight, by their duration."""

    def __init__(self, start: int, most: int) -> None:
        self._limit = float(min(start, most))
        self._most = float(most)
        self._least: defaultdict[int, RecentLeast] = defaultdict(RecentLeast)

    @property
    def value(self) -> int:
        """Puts."""
        return int(self._limit)

    def finished(self, now: float, latency_s: float, size: int, in_flight: int) -> None:
        """Take a put into account that began when `in_flight` were, itself included."""
        base = self._least[size.bit_length()].add(now, latency_s)
        if in_flight * 2 < self._limit:
            return  # the limit did not bind: nothing is learned about it
        gradient = max(0.5, min(1.0, _TOLERANCE * base / latency_s)) if latency_s > 0 else 1.0
        wanted = self._limit * gradient + math.sqrt(self._limit)
        self._limit += (min(wanted, self._most) - self._limit) * _SMOOTHING
        self._limit = max(1.0, self._limit)

    def refused(self) -> None:
        """Take note that the store demands less."""
        self._limit = max(1.0, self._limit / 2)


class CostGuard:
    """The least interval between puts that keeps the bill within a budget."""

    def __init__(self, budget: float, put_price: float, now: float) -> None:
        limited = budget > 0 and put_price > 0
        self._rate = budget / put_price * 1000 / _MONTH_S if limited else math.inf
        self._burst = self._rate * _BURST_S
        self._tokens = self._burst
        self._at = now

    def spacing(self, now: float) -> float:
        """Return the least seconds between two puts that the budget allows at present."""
        if math.isinf(self._rate):
            return 0.0
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        return max(0.0, 1.0 - 2.0 * self._tokens / self._burst) / self._rate

    def took(self) -> None:
        """Count one put."""
        if not math.isinf(self._rate):
            self._tokens = max(0.0, self._tokens - 1.0)


class Batching:
    """Decides when the next group starts. Times are seconds of one monotonic clock."""

    def __init__(self, settings: BatchingSettings, now: float) -> None:
        self.settings = settings
        self.in_flight = 0
        self.latency_s = 0.0
        """Smoothed; 0 before the first put."""
        self._limit = InFlightLimit(settings.in_flight_start, settings.in_flight_max)
        self._cost = CostGuard(settings.budget, settings.put_price, now)
        self._last_start = -math.inf
        self._least = RecentLeast()
        self._quick_s = 0.0

    @property
    def in_flight_limit(self) -> int:
        """Puts that may be in flight now."""
        return self._limit.value

    @property
    def has_slot(self) -> bool:
        """Return true if a put may start as far as slots go."""
        return self.in_flight < self._limit.value

    def linger_s(self, now: float) -> float:
        """Return how far apart the puts of small groups start."""
        settings = self.settings
        wanted = max(settings.linger_s, min(self._quick_s, settings.linger_max_s))
        return max(wanted, self._cost.spacing(now))

    def start_at(self, size: int, began: float, now: float) -> float:
        """Return from when on a group of `size` bytes may start, given a slot; its first append was
        at `began`.
        """
        if size >= self.settings.object_size:
            return now
        company = min(self._quick_s * _GATHER_SHARE, self.settings.linger_s)
        return max(self._last_start + self.linger_s(now), began + company)

    def started(self, now: float) -> int:
        """Take note of a put that starts; return how many are in flight with it."""
        self.in_flight += 1
        self._last_start = now
        self._cost.took()
        return self.in_flight

    def repeated(self) -> None:
        """Take note of a put that is tried again: it costs like any other."""
        self._cost.took()

    def finished(self, now: float, latency_s: float, size: int, in_flight: int) -> None:
        """Take note of a put whose last try took `latency_s`; `in_flight` is as `started` said."""
        self.latency_s += (latency_s - self.latency_s) * (_SMOOTHING if self.latency_s else 1.0)
        self._quick_s = self._least.add(now, latency_s)
        self._limit.finished(now, latency_s, size, in_flight)
        self.in_flight -= 1

    def refused(self) -> None:
        """Take note that the store demanded fewer requests."""
        self._limit.refused()
