"""Which slow puts are raced by a second one: never more than the budget, never against a store that
is slow as a whole.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lakehead.storage.wal.object.hedging import (
    Hedging,
    HedgingSettings,
    LatencyHistogram,
    RacedPut,
)
from tests.support.repetitions import examples

SIZE = 1000


def taught(hedging: Hedging, puts: int = 400, latency_s: float = 0.02) -> Hedging:
    """Let a store respond in time, again and again."""
    for _ in range(puts):
        put = hedging.started(SIZE)
        hedging.responded(put, latency_s)
        hedging.settled(put)
    return hedging


def hedged(hedging: Hedging, now: float = 0.0, size: int = SIZE) -> tuple[RacedPut, bool]:
    """Let one put be overdue, and late if that does not have it hedged."""
    put = hedging.started(size)
    return put, any(hedging.overdue(now, put) for _ in put.waits)


def due_s(hedging: Hedging, size: int = SIZE) -> float:
    """When the next put of a known size is overdue."""
    waits = hedging.started(size).waits
    assert len(waits) == 2
    return waits[0]


@settings(max_examples=examples(100))
@given(
    durations=st.lists(st.floats(0.0002, 100), min_size=1, max_size=300),
    share=st.floats(0.01, 1.0),
)
def test_a_quantile_is_that_of_the_durations_or_a_twelfth_more(
    durations: list[float], share: float
) -> None:
    histogram = LatencyHistogram()
    for duration in durations:
        histogram.add(duration)
    exact = next(d for n, d in enumerate(sorted(durations), 1) if n >= share * len(durations))
    [found] = histogram.quantiles([share])
    assert exact <= found * (1 + 1e-9)
    assert found <= exact * 1.0906


def test_old_durations_fade() -> None:
    histogram = LatencyHistogram()
    for _ in range(5000):
        histogram.add(0.02)
    for _ in range(2000):
        histogram.add(0.2)
    assert histogram.quantiles([0.5])[0] > 0.19
    assert histogram.total < 1000


def test_a_put_of_a_store_that_is_not_known_yet_is_late_after_a_tenth_of_a_second() -> None:
    hedging = Hedging(HedgingSettings())
    put = hedging.started(SIZE)
    assert put.waits == (0.1,)
    assert hedging.overdue(0.0, put), "a log that has just begun may race one put"
    hedging.settled(put)
    taught(hedging, 39)
    assert hedging.started(SIZE).waits == (0.1,)
    taught(hedging, 1)
    assert due_s(hedging) == pytest.approx(0.02, rel=0.1)


def test_a_put_larger_than_any_known_one_is_not_late_before_those() -> None:
    hedging = taught(Hedging(HedgingSettings()), latency_s=0.3)
    [late_s] = hedging.started(1 << 26).waits
    assert late_s == pytest.approx(0.6, rel=0.1)


def test_a_put_is_overdue_when_it_takes_longer_than_nearly_all_of_its_size() -> None:
    hedging = taught(Hedging(HedgingSettings()))
    for _ in range(100):
        put = hedging.started(1 << 23)
        hedging.responded(put, 0.3)
        hedging.settled(put)
    assert due_s(hedging) == pytest.approx(0.02, rel=0.1)
    assert due_s(hedging, 1 << 23) == pytest.approx(0.3, rel=0.1)
    assert due_s(hedging, 1 << 18) == pytest.approx(0.3, rel=0.1), "as the next larger ones"


@pytest.mark.parametrize("share", [0.01, 0.2])
def test_a_tail_does_not_move_what_is_overdue_beyond_twice_the_median(share: float) -> None:
    rng = random.Random(1)
    hedging = Hedging(HedgingSettings())
    for _ in range(3000):
        put = hedging.started(SIZE)
        hedging.responded(put, 0.5 if rng.random() < share else 0.02)
    assert due_s(hedging) == pytest.approx(0.02 if share < 0.03 else 0.04, rel=0.1)


def test_quick_stores_are_not_raced_over_a_few_milliseconds() -> None:
    assert due_s(taught(Hedging(HedgingSettings()), latency_s=0.001)) == 0.01


def test_a_share_of_zero_hedges_nothing() -> None:
    assert taught(Hedging(HedgingSettings(share=0.0))).started(SIZE).waits == ()


def test_puts_that_are_slow_by_little_leave_hedges_for_those_that_are_slow_by_far() -> None:
    """In every store a few of a hundred puts take a little longer than the others. They may not use
    the budget up.
    """
    hedging = taught(Hedging(HedgingSettings()))
    for _ in range(50):
        put = hedging.started(SIZE)
        was = hedging.overdue(0.0, put)
        hedging.settled(put)
        if was:
            hedging.ended(put)
        taught(hedging, 9)  # a tenth of all puts is slow by little, and the budget a twentieth
    slow = hedging.started(SIZE)
    assert [hedging.overdue(0.0, slow) for _ in slow.waits].count(True) == 1


def test_a_store_that_is_slow_as_a_whole_is_not_sent_more() -> None:
    """All puts of a store that hangs are overdue: the first few are hedged, the others are not."""
    hedging = taught(Hedging(HedgingSettings(share=1.0)))
    hanging = [hedged(hedging) for _ in range(20)]
    assert sum(was for _, was in hanging) <= 4
    for put, was_hedged in hanging:
        hedging.settled(put)
        if was_hedged:
            hedging.ended(put)
    assert not hedged(hedging)[1], "nor is one whose puts have been overdue of late"


def test_a_store_that_has_recovered_is_hedged_again() -> None:
    hedging = taught(Hedging(HedgingSettings(share=1.0)))
    for put, was_hedged in [hedged(hedging) for _ in range(20)]:
        hedging.settled(put)
        if was_hedged:
            hedging.ended(put)
    taught(hedging, 16)
    assert hedged(hedging)[1]


def test_no_hedge_for_ten_seconds_after_the_store_demanded_fewer_requests() -> None:
    hedging = taught(Hedging(HedgingSettings()))
    hedging.refused(100.0)
    put, was = hedged(hedging, 109.9)
    hedging.settled(put)
    assert not was
    assert hedged(hedging, 110.0)[1]


class AnyStore(RuleBasedStateMachine):
    """Puts of any sizes, overdue or not, in any order, against the stated bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = HedgingSettings(
            share=0.1,
            credit_puts_max=3,
            credit_bytes_start=500,
            credit_bytes_max=5000,
            raced_bytes_max=3000,
            kept_puts=1,
        )
        self.hedging = taught(Hedging(self.settings))
        self.now = 0.0
        self.refused_at = -100.0
        self.puts: list[RacedPut] = []
        self.late: list[RacedPut] = []
        self.begun = self.begun_bytes = self.hedges = self.hedged_bytes = 0
        self.begun, self.begun_bytes = 400, 400 * SIZE

    @rule(size=st.integers(64, 2000), count=st.integers(1, 30))
    def begin(self, size: int, count: int) -> None:
        for _ in range(count):
            self.puts.append(self.hedging.started(size))
            self.begun += 1
            self.begun_bytes += size

    @precondition(lambda self: self.in_time())
    @rule(data=st.data())
    def be_overdue(self, data: st.DataObject) -> None:
        put = data.draw(st.sampled_from(self.in_time()))
        if self.hedging.overdue(self.now, put):
            assert self.now >= self.refused_at + 10
            self.hedges += 1
            self.hedged_bytes += put.size
            self.late.append(put)

    def in_time(self) -> list[RacedPut]:
        """Those that may be overdue next, or late."""
        return [put for put in self.puts if not put.is_raced and put.lateness < 2]

    @precondition(lambda self: self.puts)
    @rule(data=st.data(), seconds=st.floats(0.001, 1))
    def settle(self, data: st.DataObject, seconds: float) -> None:
        put = data.draw(st.sampled_from(self.puts))
        self.puts.remove(put)
        self.hedging.settled(put)
        self.hedging.responded(put, seconds)

    @precondition(lambda self: any(put.is_settled for put in self.late))
    @rule(data=st.data())
    def end_late(self, data: st.DataObject) -> None:
        put = data.draw(st.sampled_from([put for put in self.late if put.is_settled]))
        self.late.remove(put)
        self.hedging.ended(put)

    @rule()
    def refuse(self) -> None:
        self.hedging.refused(self.now)
        self.refused_at = self.now

    @rule(seconds=st.floats(0.1, 20))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def within_the_budget(self) -> None:
        settings = self.settings
        first, first_bytes = settings.credit_puts_start, settings.credit_bytes_start
        assert self.hedges <= first + settings.share * self.begun + 1e-6
        assert self.hedged_bytes <= first_bytes + settings.share * self.begun_bytes + 1e-3

    @invariant()
    def few_bytes_are_held(self) -> None:
        assert sum(put.size for put in self.late) <= self.settings.raced_bytes_max


TestAnyStore = AnyStore.TestCase
TestAnyStore.settings = settings(max_examples=examples(100), deadline=None)
