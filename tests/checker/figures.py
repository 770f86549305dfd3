"""What a run did, in numbers: throughput, delays, gaps, lag. Times are seconds since it began."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tests.checker.history import History, Outcome, Poll, Sent

BUCKET_S = 0.5
GAP_S = 1.0
"""From how long on a partition's pause is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A time without an acknowledgement in a partition."""

    partition: int
    begins: float
    ends: float

    @property
    def seconds(self) -> float:
        return self.ends - self.begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The numbers of a run."""

    seconds: float
    outcomes: dict[str, int]
    reasons: dict[str, int]
    """Why sends are info or failed, by text."""
    reads: int
    ends_told: int
    commits: int
    acknowledged: tuple[float, ...]
    """Records a second, for each half second."""
    delay_p50: float
    delay_p99: float
    lag_p50: float
    lag_p99: float
    """From a record's acknowledgement to a consumer's first sight of it."""
    lag_max: float
    gaps: tuple[Gap, ...]
    """Those of a second and more, the longest first."""


def figures(history: History, *, began: float, ended: float) -> Figures:
    """Compute them of a history that ran from `began` to `ended`."""
    answered = [send for send in history.sends.values() if send.outcome is Outcome.OK]
    buckets = Counter(int((send.ended - began) / BUCKET_S) for send in answered)
    count = int((ended - began) / BUCKET_S) + 1
    delays = sorted(send.ended - send.begun for send in answered)
    lags = sorted(_lags(history))
    return Figures(
        seconds=ended - began,
        outcomes=dict(Counter(send.outcome.value for send in history.sends.values())),
        reasons=dict(Counter(s.reason[:80] for s in history.sends.values() if s.reason)),
        reads=history.seen,
        ends_told=len(history.ends),
        commits=sum(map(len, history.commits.values())),
        acknowledged=tuple(buckets[index] / BUCKET_S for index in range(count)),
        delay_p50=quantile(delays, 0.5),
        delay_p99=quantile(delays, 0.99),
        lag_p50=quantile(lags, 0.5),
        lag_p99=quantile(lags, 0.99),
        lag_max=quantile(lags, 1.0),
        gaps=gaps(history, began=began, ended=ended),
    )


def gaps(history: History, *, began: float, ended: float) -> tuple[Gap, ...]:
    """Every pause of a partition of a second and more, the longest first."""
    times: dict[int, list[float]] = defaultdict(list)
    for send in history.sends.values():
        if send.outcome is Outcome.OK:
            times[send.partition].append(send.ended)
    found = [
        Gap(partition=partition, begins=before - began, ends=after - began)
        for partition, answered in times.items()
        for before, after in itertools.pairwise(sorted([began, *answered, ended]))
        if after - before >= GAP_S
    ]
    return tuple(sorted(found, key=lambda gap: -gap.seconds))


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the sorted values lie; 0 of none."""
    if not values:
        return 0.0
    return values[min(int(len(values) * share), len(values) - 1)]


def _lags(history: History) -> list[float]:
    first: dict[Sent, float] = {}
    for steps in history.readings.values():
        for step in steps:
            if isinstance(step, Poll):
                for read in step.reads:
                    first[read.sent] = min(step.ended, first.get(read.sent, step.ended))
    return [
        max(seen - history.sends[sent].ended, 0.0)
        for sent, seen in first.items()
        if sent in history.sends and history.sends[sent].outcome is Outcome.OK
    ]
