"""Slots, linger and the cost guard of the object WAL, in simulated worlds of stores and loads."""

import heapq
import itertools
import math

import pytest

from lakehead.storage.wal.object.batching import (
    Batching,
    BatchingSettings,
    CostGuard,
    InFlightLimit,
)

FREE = BatchingSettings(budget=0)
MONTH_S = 30 * 24 * 3600


class Load:
    """A steady load of bytes on a store of a base latency and a bandwidth shared by its puts."""

    def __init__(
        self, batching: Batching, *, bytes_per_s: float, latency_s: float, bandwidth: float
    ) -> None:
        self.batching = batching
        self.puts = 0
        self.put_bytes = 0
        self.waits: list[float] = []
        self.in_flight_most = 0
        self._rate = bytes_per_s
        self._latency_s = latency_s
        self._bandwidth = bandwidth
        self._pipe_free_at = 0.0
        self._ends: list[tuple[float, float, int, int]] = []
        self._gathered = 0.0
        self._gathered_since = 0.0

    def run(self, start: float, seconds: float) -> None:
        now, step = start, 0.0005
        while now < start + seconds:
            now += step
            if self._gathered < 4 << 20:  # else producers wait
                if not self._gathered:
                    self._gathered_since = now
                self._gathered += self._rate * step
            while self._ends and self._ends[0][0] <= now:
                end, began, size, in_flight = heapq.heappop(self._ends)
                self.batching.finished(end, end - began, size, in_flight)
            size = int(self._gathered)
            if not size or not self.batching.has_slot:
                continue
            if self.batching.start_at(size, self._gathered_since, now) <= now:
                self._put(now, min(size, self.batching.settings.object_size_max))

    def _put(self, now: float, size: int) -> None:
        in_flight = self.batching.started(now)
        self.in_flight_most = max(self.in_flight_most, in_flight)
        self._pipe_free_at = max(self._pipe_free_at, now) + size / self._bandwidth
        end = self._pipe_free_at + self._latency_s
        heapq.heappush(self._ends, (end, now, size, in_flight))
        self.waits.append(end - self._gathered_since)
        self.puts += 1
        self.put_bytes += size
        self._gathered = max(0.0, self._gathered - size)
        self._gathered_since = now


def load(
    settings: BatchingSettings = FREE,
    *,
    bytes_per_s: float = 20e6,
    latency_s: float = 0.02,
    bandwidth: float = 1e9,
    seconds: float = 10.0,
) -> Load:
    found = Load(
        Batching(settings, 0.0), bytes_per_s=bytes_per_s, latency_s=latency_s, bandwidth=bandwidth
    )
    found.run(0.0, seconds)
    return found


def test_the_first_append_after_a_pause_waits_a_moment_for_company() -> None:
    batching = Batching(FREE, 0.0)
    assert batching.start_at(100, 0.0, 0.0) <= 0.0
    in_flight = batching.started(0.0)
    batching.finished(0.02, 0.02, 100, in_flight)
    assert batching.start_at(100, 0.001, 0.001) == pytest.approx(0.02)
    assert batching.start_at(100, 5.0, 5.0) == pytest.approx(5.0 + FREE.linger_s)
    batching.finished(5.001, 0.001, 100, batching.started(5.0))
    assert batching.start_at(100, 6.0, 6.0) == pytest.approx(6.0005), "half of a quick put"


@pytest.mark.parametrize("latency_s", [0.001, 0.02, 0.1, 1.0])
def test_the_linger_follows_the_stores_latency_within_its_bounds(latency_s: float) -> None:
    found = load(latency_s=latency_s)
    assert found.batching.linger_s(10.0) == pytest.approx(
        min(max(latency_s, FREE.linger_s), FREE.linger_max_s), rel=0.5
    )
    wait = sum(found.waits) / len(found.waits)
    assert wait < 2.1 * latency_s + 4 * FREE.linger_s


def test_slots_grow_until_the_bandwidth_is_full_and_not_much_further() -> None:
    wide = load(bytes_per_s=1e9, latency_s=0.05, bandwidth=400e6)
    narrow = load(bytes_per_s=1e9, latency_s=0.05, bandwidth=40e6)
    assert wide.put_bytes / 10 > 300e6, "four slots would carry a fraction of it"
    assert narrow.put_bytes / 10 > 30e6
    assert narrow.batching.in_flight_limit < wide.batching.in_flight_limit
    assert wide.in_flight_most <= FREE.in_flight_max


def test_throughput_grows_with_the_slots_that_are_allowed() -> None:
    speeds = [
        load(
            BatchingSettings(budget=0, in_flight_max=most, object_size_max=1 << 20),
            bytes_per_s=1e9,
            latency_s=0.1,
            bandwidth=1e9,
        ).put_bytes
        for most in (1, 2, 4, 8)
    ]
    for fewer, more in itertools.pairwise(speeds):
        assert more > 1.7 * fewer


def test_an_idle_limit_learns_nothing_and_a_refusal_halves_it() -> None:
    limit = InFlightLimit(16, 32)
    for second in range(100):
        limit.finished(second, 10.0, 1000, in_flight=1)
    assert limit.value == 16
    limit.refused()
    assert limit.value == 8
    for _ in range(10):
        limit.refused()
    assert limit.value == 1


def test_a_store_that_became_slower_for_good_is_not_taken_for_a_queue_for_ever() -> None:
    limit = InFlightLimit(8, 32)
    for tick in range(100):
        limit.finished(tick * 0.1, 0.01, 1000, in_flight=8)
    grown = limit.value
    for tick in range(100):
        limit.finished(10 + tick * 0.1, 0.1, 1000, in_flight=limit.value)
    shrunk = limit.value
    for tick in range(600):
        limit.finished(20 + tick * 0.1, 0.1, 1000, in_flight=limit.value)
    assert shrunk < grown
    assert limit.value > shrunk


def test_puts_in_a_month_stay_within_the_budget() -> None:
    """A trickle around the clock: small groups, each of which would be a put of its own."""
    settings = BatchingSettings(budget=20.0)
    batching, now, puts = Batching(settings, 0.0), 0.0, 0
    hours = 24.0
    while now < hours * 3600:
        start = max(now + 0.005, batching.start_at(500, now, now))
        now = start
        puts += 1
        batching.finished(now, 0.005, 500, batching.started(now))
    bill = puts * (MONTH_S / (hours * 3600)) / 1000 * settings.put_price
    hour = 1 / hours * settings.budget  # the burst that a day may begin with, held to a month
    assert bill < settings.budget + hour * 1.1
    assert bill > settings.budget * 0.9, "nor is it stingy"


def test_a_burst_after_a_quiet_time_is_not_slowed_down() -> None:
    guard = CostGuard(100.0, 0.005, 0.0)
    rate = 100.0 / 0.005 * 1000 / MONTH_S
    for second in range(600):
        assert guard.spacing(second) == 0.0
        guard.took()
    for _ in range(int(rate * 3600)):
        guard.took()
    assert guard.spacing(601.0) == pytest.approx(1 / rate, rel=0.01)
    assert guard.spacing(601.0 + 3600) == 0.0


def test_full_groups_never_wait_for_money() -> None:
    settings = BatchingSettings(budget=0.01)
    batching = Batching(settings, 0.0)
    for _ in range(100):
        batching.started(0.0)
        batching.finished(0.0, 0.01, 1, 1)
    assert batching.start_at(settings.object_size, 1.0, 1.0) == 1.0
    assert batching.start_at(1000, 1.0, 1.0) > 2.0


def test_without_a_budget_or_a_price_there_is_no_guard() -> None:
    for settings in (BatchingSettings(budget=0), BatchingSettings(put_price=0)):
        batching = Batching(settings, 0.0)
        for _ in range(100_000):
            batching.started(0.0)
        assert batching.linger_s(0.0) == settings.linger_s
        assert not math.isnan(batching.start_at(1, 0.0, 0.0))
