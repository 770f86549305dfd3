"""Measured rates: Kafka's sampled rate (`Rate` of a `SampledStat`) and its token bucket (KIP-599).

Times are monotonic seconds, and given by the caller. A time before the last one is taken for it.
"""

from typing import NamedTuple

RATE_WINDOW_MIN_S = 0.001


class QuotaWindow(NamedTuple):
    """`samples` samples of `sample_s` seconds each (`quota.window.num`,
    `quota.window.size.seconds`); the last of them is the one that is being filled.
    """

    samples: int = 11
    sample_s: float = 1.0

    @property
    def length_s(self) -> float:
        """The length of the whole window in seconds."""
        return self.samples * self.sample_s


class _Sample:
    __slots__ = ("last", "start", "value")

    def __init__(self, now: float) -> None:
        self.begin(now)

    def begin(self, now: float) -> None:
        self.start = now
        self.last = now
        self.value = 0.0


class SampledRate:
    """Units per second over a window of samples.

    A sample begins when something is recorded, and counts until its last record is older than the
    window. The rate is the sum over the time since the first sample began, which counts as at least
    all samples but one: a burst at the start is not taken for a high rate. Samples stay in place
    and begin again, as Kafka's do, so that throttle times are the same to the millisecond.
    """

    __slots__ = ("_current", "_last", "_samples")

    def __init__(self) -> None:
        self._samples: list[_Sample] = []
        self._current = 0
        self._last = 0.0

    def record(self, value: float, now: float, window: QuotaWindow) -> None:
        """Add an amount; a negative one takes back what was added."""
        now = self._advance(now)
        samples = self._samples
        if not samples:
            samples.append(_Sample(now))
        sample = samples[self._current]
        if now - sample.start >= window.sample_s:
            self._current = (self._current + 1) % (window.samples + 1)
            if self._current == len(samples):
                samples.append(_Sample(now))
            sample = samples[self._current]
            sample.begin(now)
        sample.value += value
        sample.last = now

    def total(self, now: float, window: QuotaWindow) -> float:
        """Return the sum of the samples that count."""
        return self._measured(now, window)[0]

    def window_s(self, now: float, window: QuotaWindow) -> float:
        """Return the length of the time that the rate is measured over, in seconds."""
        return self._measured(now, window)[1]

    def rate(self, now: float, window: QuotaWindow) -> float:
        """Return units per second."""
        total, length_s = self._measured(now, window)
        return total / length_s

    def throttle_s(self, limit: float, now: float, window: QuotaWindow) -> float:
        """Return the seconds by which the window must be longer for the rate to be at a limit: with
        rate O over a window W that is (O - limit) / limit * W. 0 if the rate is not above.
        """
        total, length_s = self._measured(now, window)
        rate = total / length_s
        return (rate - limit) / limit * length_s if rate > limit else 0.0

    def _measured(self, now: float, window: QuotaWindow) -> tuple[float, float]:
        now = self._advance(now)
        self._expire(now, window)
        samples = self._samples
        elapsed = now - min([sample.start for sample in samples])
        missing = window.samples - 1 - int(elapsed / window.sample_s)
        if missing > 0:
            elapsed += missing * window.sample_s
        return sum([sample.value for sample in samples]), max(elapsed, RATE_WINDOW_MIN_S)

    def _advance(self, now: float) -> float:
        self._last = max(self._last, now)
        return self._last

    def _expire(self, now: float, window: QuotaWindow) -> None:
        length_s = window.length_s
        if not self._samples:
            self._samples.append(_Sample(now))
        for sample in self._samples:
            if now - sample.last >= length_s:
                sample.begin(now)


class TokenBucket:
    """Tokens that refill at a rate, up to those of a whole window. A caller may take more than
    there are, and waits then until the debt is refilled.
    """

    __slots__ = ("_last", "_tokens")

    def __init__(self) -> None:
        self._tokens: float | None = None
        self._last = 0.0

    def tokens(self, limit: float, now: float, window: QuotaWindow) -> float:
        """Return the tokens that are left, negative in debt. A new bucket is full."""
        burst = limit * window.length_s
        now = max(self._last, now)
        tokens = burst if self._tokens is None else self._tokens + limit * (now - self._last)
        self._tokens, self._last = min(burst, tokens), now
        return self._tokens

    def take(self, amount: float, limit: float, now: float, window: QuotaWindow) -> None:
        """Take tokens, also into debt."""
        self._tokens = self.tokens(limit, now, window) - amount

    def throttle_s(self, limit: float, now: float, window: QuotaWindow) -> float:
        """Return the seconds until a debt is refilled; 0 without one."""
        return max(0.0, -self.tokens(limit, now, window) / limit)
