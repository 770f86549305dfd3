"""Lag of groups over time, from the moment at which the console of a node was first opened.

A thread takes a sample of the groups that the node coordinates every `INTERVAL_S`, and keeps
`SAMPLES_MAX` of them for each topic of a group: a viewer gets the sum over the topics that it may
see. Memory is bounded: `SERIES_MAX` topics of groups, those with the largest lags.
"""

import heapq
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

import structlog

from lakehead.broker.observability.group_lag import partition_lags
from lakehead.broker.observability.observed_node import ObservedNode

_log = structlog.get_logger("broker.console")
INTERVAL_S = 10.0
SAMPLES_MAX = 360
SERIES_MAX = 2_000
_NONE = -1

Lags = Mapping[tuple[str, str], int]
"""Records that groups are behind, by group and topic."""


def lags_of_topics(node: ObservedNode) -> Lags:
    """Return the lag of each topic in each consumer group that this node coordinates. Any thread
    may call it.
    """
    found: Counter[tuple[str, str]] = Counter()
    for group, offsets in node.groups.committed():
        for one in partition_lags(node, offsets):
            found[group, one.topic] += one.records
    return found


class LagHistory:
    """The samples. `add` is called by one thread, `of_group` by any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times = array("q")
        self._series: dict[tuple[str, str], array[int]] = {}

    def add(self, time_ms: int, lags: Lags) -> None:
        """Keep a sample: the largest lags, and those that are kept already."""
        known = {key: lag for key, lag in lags.items() if key in self._series}
        fresh = ((lag, key) for key, lag in lags.items() if key not in known)
        places = max(SERIES_MAX - len(known), 0)
        kept = known | {key: lag for lag, key in heapq.nlargest(places, fresh)}
        with self._lock:
            self._times.append(time_ms)
            for key, lag in kept.items():
                series = self._series.get(key)
                if series is None:
                    series = array("q", [_NONE]) * (len(self._times) - 1)
                    self._series[key] = series
                series.append(lag)
            for key, series in list(self._series.items()):
                if len(series) < len(self._times):
                    series.append(_NONE)
                if len(self._times) > SAMPLES_MAX:
                    del series[0]
                if max(series) == _NONE:
                    del self._series[key]
            if len(self._times) > SAMPLES_MAX:
                del self._times[0]

    def of_group(
        self, group: str, is_seen: Callable[[Collection[str]], Iterable[str]]
    ) -> list[tuple[int, int]]:
        """Return (time in ms, lag in records) of a group over the topics that are seen, the oldest
        first; moments without a sample of it are left out.
        """
        with self._lock:
            times = list(self._times)
            series = {key[1]: list(one) for key, one in self._series.items() if key[0] == group}
        seen = [series[topic] for topic in is_seen(list(series))]
        found = []
        for time_ms, *lags in zip(times, *seen, strict=True):
            known = [lag for lag in lags if lag != _NONE]
            if known:
                found.append((time_ms, sum(known)))
        return found


class LagSampler:
    """Takes the samples, in a thread of its own, until `close`."""

    def __init__(
        self,
        history: LagHistory,
        sample: Callable[[], Lags],
        now_ms: Callable[[], int],
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._history = history
        self._sample = sample
        self._now_ms = now_ms
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lag-samples", daemon=True)

    def start(self) -> None:
        """Take the first sample, and go on."""
        self._thread.start()

    def close(self) -> None:
        """Take no more samples."""
        self._ended.set()

    def _run(self) -> None:
        while True:
            try:
                self._history.add(self._now_ms(), self._sample())
            except Exception as error:  # noqa: BLE001 - one sample never ends those after it
                _log.debug("lag_not_sampled", reason=repr(error))
            if self._ended.wait(self._interval_s):
                return
