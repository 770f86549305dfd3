"""Histograms of latencies, as Prometheus keeps them: how many of each range, and their sum."""

from bisect import bisect_left
from collections.abc import Iterator

from lakehead.storage.clock import Clock

LATENCY_BUCKETS_S = (
    *(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
)
"""Upper bounds of the buckets in seconds; one without a bound is above them. From a group commit on
a local disk to the timeout of a request.
"""


class LatencyHistogram:
    """The latencies of one kind of operation. Written on the event loop; any thread may read."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * (len(LATENCY_BUCKETS_S) + 1)
        """Operations of each bucket, the last of which has no bound."""
        self.seconds: float = 0.0
        """Sum of all latencies."""

    def observe(self, seconds: float) -> None:
        """Count an operation that took so long."""
        self.counts[bisect_left(LATENCY_BUCKETS_S, seconds)] += 1
        self.seconds += seconds

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """Yield the bound of each bucket as Prometheus writes it, and how many operations took no
        longer.
        """
        total = 0
        for bound, count in zip((*map(str, LATENCY_BUCKETS_S), "+Inf"), self.counts, strict=True):
            total += count
            yield bound, total


class Timing:
    """One operation, which begins when this is made."""

    __slots__ = ("_began", "_clock", "_histogram")

    def __init__(self, histogram: LatencyHistogram, clock: Clock) -> None:
        self._histogram = histogram
        self._clock = clock
        self._began = clock.monotonic()

    def note(self, event: str) -> None:
        """Take note of something that happens now; nothing is kept of it here."""

    def stop(self) -> None:
        """Count the operation: it ends now."""
        self._histogram.observe(self.passed_s())

    def passed_s(self) -> float:
        """Return the seconds since the operation began."""
        return self._clock.monotonic() - self._began
