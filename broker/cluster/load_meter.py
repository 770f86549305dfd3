"""Measure the load of this node for balancing: bytes per second of each partition, and CPU.

Counters are read every `SAMPLE_S` seconds at most. Rates are smoothed over about ten seconds, so
that a burst moves nothing. While no counter moves, partitions are not looked at one by one: a node
may lead ten thousand that are idle.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from lakehead.broker.cluster.heartbeat import HOTTEST_MAX, NodeLoad
from lakehead.broker.partition.partition import TrafficTotal
from lakehead.storage.clock import Clock

SAMPLE_S = 2.0
_WINDOW_S = 10.0
_COST_WINDOW_S = 60.0
"""Uploads come every few seconds, each with several requests."""
_QUIET = 1.0
"""Bytes per second below which a stream that takes nothing any more is idle."""


class Traffic(NamedTuple):
    """The counters of a partition: bytes produced and fetched since it was opened here."""

    stream_id: int
    bytes_in: int
    bytes_out: int


class _Rate:
    """Bytes per second in and out of one stream."""

    __slots__ = ("bytes_in", "bytes_out", "is_known", "rate_in", "rate_out")

    def __init__(self, traffic: Traffic) -> None:
        self.bytes_in = traffic.bytes_in
        self.bytes_out = traffic.bytes_out
        self.rate_in = self.rate_out = 0.0
        self.is_known = False

    def sample(self, traffic: Traffic, elapsed_s: float, weight: float) -> None:
        rate_in = max(0, traffic.bytes_in - self.bytes_in) / elapsed_s
        rate_out = max(0, traffic.bytes_out - self.bytes_out) / elapsed_s
        share = weight if self.is_known else 1.0
        self.rate_in += share * (rate_in - self.rate_in)
        self.rate_out += share * (rate_out - self.rate_out)
        self.bytes_in, self.bytes_out = traffic.bytes_in, traffic.bytes_out
        self.is_known = True
        if rate_in == rate_out == 0 and self.rate_in + self.rate_out < _QUIET:
            self.rate_in = self.rate_out = 0.0


def _no_cost() -> float:
    return 0.0


class LoadMeter:
    """Measures one node. `traffic` yields the counters of its open partitions, and `total` counts
    for them all; `cpu_seconds` returns the CPU time of its process so far, `dollars` the price of
    its requests to the object store.
    """

    def __init__(
        self,
        traffic: Callable[[], Iterable[Traffic]],
        total: TrafficTotal,
        clock: Clock,
        cpu_seconds: Callable[[], float],
        dollars: Callable[[], float] = _no_cost,
    ) -> None:
        self._traffic = traffic
        self._total = total
        self._total_before = -1
        self._clock = clock
        self._cpu_seconds = cpu_seconds
        self._rates: dict[int, _Rate] = {}
        self._sampled_at = clock.monotonic()
        self._cpu_before = cpu_seconds()
        self._cpu = 0.0
        self._dollars = dollars
        self._dollars_before = dollars()
        self._dollars_an_hour = 0.0
        self._load = NodeLoad()

    def load(self) -> NodeLoad:
        """Return the newest measurement."""
        elapsed_s = self._clock.monotonic() - self._sampled_at
        if elapsed_s >= SAMPLE_S:
            self._sample(elapsed_s)
        return self._load

    def _sample(self, elapsed_s: float) -> None:
        weight = 1 - math.exp(-elapsed_s / _WINDOW_S)
        used = self._cpu_seconds()
        self._cpu += weight * ((used - self._cpu_before) / elapsed_s - self._cpu)
        self._cpu_before = used
        paid, paid_before = self._dollars(), self._dollars_before
        paid_weight = 1 - math.exp(-elapsed_s / _COST_WINDOW_S)
        hourly = (paid - paid_before) / elapsed_s * 3600
        self._dollars_an_hour += paid_weight * (hourly - self._dollars_an_hour)
        self._dollars_before = paid
        self._sampled_at += elapsed_s
        total, load = self._total.bytes, self._load
        if total == self._total_before and load.bytes_in == load.bytes_out == 0:
            self._load = msgspec.structs.replace(
                load, cpu=self._cpu, dollars_an_hour=self._dollars_an_hour
            )
            return
        self._total_before = total
        rates: dict[int, _Rate] = {}
        for traffic in self._traffic():
            rate = self._rates.get(traffic.stream_id)
            if rate is None:
                rate = _Rate(traffic)
            else:
                rate.sample(traffic, elapsed_s, weight)
            rates[traffic.stream_id] = rate
        self._rates = rates
        flows = [(rate.rate_in + rate.rate_out, stream_id) for stream_id, rate in rates.items()]
        busy = sorted((flow for flow in flows if flow[0] >= 1), reverse=True)
        self._load = NodeLoad(
            bytes_in=sum(rate.rate_in for rate in rates.values()),
            bytes_out=sum(rate.rate_out for rate in rates.values()),
            cpu=self._cpu,
            hottest=tuple((stream_id, flow) for flow, stream_id in busy[:HOTTEST_MAX]),
            dollars_an_hour=self._dollars_an_hour,
        )
