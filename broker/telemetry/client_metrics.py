"""The metrics that clients push, summed up over all clients for the metrics page.

A metric is shown by its name alone: a label for each client would let clients decide how many
series there are. Per client they are at the collector that pushes are forwarded to.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

NAMES_MAX = 1_000
"""Metrics that are shown; more are left out, and counted."""
WINDOW_S = 300.0
"""The largest values are those of the present period of this length, and of the one before."""
_NONE = float("-inf")


@dataclass(slots=True)
class Values:
    """Values of one metric that were pushed together."""

    count: int = 0
    total: float = 0.0
    largest: float = _NONE

    def add(self, value: float) -> None:
        """Add a value."""
        self.count += 1
        self.total += value
        self.largest = max(self.largest, value)


@dataclass(slots=True)
class PushedMetrics:
    """The metrics of a push, over all their attributes, by name."""

    increases: dict[str, float] = field(default_factory=dict)
    """Of counters, since the push before."""
    values: dict[str, Values] = field(default_factory=dict)
    """Of anything else that is a number."""
    left_out: int = 0
    """Metrics that were not subscribed to, have too long a name, or are histograms."""


@dataclass(frozen=True, slots=True)
class _Largest:
    """The largest value of a period, by its number, and of the one before."""

    period: int
    now: float
    before: float

    def with_value(self, value: float, period: int) -> "_Largest":
        if period == self.period:
            return _Largest(period, max(self.now, value), self.before)
        return _Largest(period, value, self.now if period == self.period + 1 else _NONE)

    def at(self, period: int) -> float:
        if period == self.period:
            return max(self.now, self.before)
        return self.now if period == self.period + 1 else _NONE


@dataclass(frozen=True, slots=True)
class ValueSums:
    """All values of a metric since the start of the node."""

    count: int
    total: float
    largest: _Largest


class ClientMetrics:
    """Sums since the start of the node, and the largest values of late. The metrics page reads them
    in a thread of its own, so sums are replaced and never changed.
    """

    def __init__(self) -> None:
        self._increases: dict[str, float] = {}
        self._values: dict[str, ValueSums] = {}
        self.left_out_total = 0
        """Metrics of pushes that are not shown."""

    @property
    def increases(self) -> Mapping[str, float]:
        """Sums of what counters of clients grew by, by metric."""
        return dict(self._increases)

    @property
    def values(self) -> Mapping[str, ValueSums]:
        """Sums of the values of other metrics, by metric."""
        return dict(self._values)

    def largest(self, now_s: float) -> Iterator[tuple[str, float]]:
        """Yield the largest value of each metric that had one of late."""
        for name, sums in self.values.items():
            largest = sums.largest.at(_period(now_s))
            if largest > _NONE:
                yield name, largest

    def add(self, pushed: PushedMetrics, now_s: float) -> None:
        """Add a push."""
        self.left_out_total += pushed.left_out
        for name, increase in pushed.increases.items():
            if self._has_place(name, self._increases):
                self._increases[name] = self._increases.get(name, 0.0) + increase
        period = _period(now_s)
        nothing = ValueSums(0, 0.0, _Largest(period, _NONE, _NONE))
        for name, values in pushed.values.items():
            if self._has_place(name, self._values):
                sums = self._values.get(name, nothing)
                self._values[name] = ValueSums(
                    sums.count + values.count,
                    sums.total + values.total,
                    sums.largest.with_value(values.largest, period),
                )

    def _has_place(self, name: str, known: Mapping[str, object]) -> bool:
        if name in known or len(self._increases) + len(self._values) < NAMES_MAX:
            return True
        self.left_out_total += 1
        return False


def _period(now_s: float) -> int:
    return int(now_s // WINDOW_S)
