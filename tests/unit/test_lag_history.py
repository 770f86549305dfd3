"""Lag of groups over time, as consoles keep it."""

from collections.abc import Collection, Iterable

from lakehead.broker.console.lag_history import (
    SAMPLES_MAX,
    SERIES_MAX,
    LagHistory,
    Lags,
    LagSampler,
)
from tests.support.waiting import wait_until


def every(topics: Collection[str]) -> Iterable[str]:
    return topics


def test_a_viewer_gets_the_lag_of_the_topics_that_it_sees() -> None:
    history = LagHistory()
    history.add(1, {("g", "open"): 5, ("g", "secret"): 100, ("other", "open"): 9})
    history.add(2, {("g", "open"): 7})
    history.add(3, {("g", "open"): 0, ("g", "secret"): 50})
    assert history.of_group("g", every) == [(1, 105), (2, 7), (3, 50)]
    assert history.of_group("g", lambda topics: [one for one in topics if one == "open"]) == [
        (1, 5),
        (2, 7),
        (3, 0),
    ]
    assert history.of_group("g", lambda _: []) == []
    assert history.of_group("none", every) == []


def test_a_sample_that_fails_ends_no_other() -> None:
    history, calls = LagHistory(), iter(range(100))

    def sample() -> Lags:
        if next(calls) == 0:
            raise KeyError("a partition that has gone")
        return {("g", "t"): 7}

    sampler = LagSampler(history, sample, lambda: 5, interval_s=0.01)
    sampler.start()
    assert wait_until(lambda: bool(history.of_group("g", every)), 30.0)
    sampler.close()
    assert history.of_group("g", every)[0] == (5, 7)


def test_samples_and_series_are_bounded() -> None:
    history = LagHistory()
    for time_ms in range(SAMPLES_MAX + 10):
        history.add(time_ms, {("g", "t"): time_ms} if time_ms < SAMPLES_MAX else {})
    found = history.of_group("g", every)
    assert found[0] == (10, 10)
    assert found[-1] == (SAMPLES_MAX - 1, SAMPLES_MAX - 1)
    for time_ms in range(SAMPLES_MAX):
        history.add(SAMPLES_MAX + 10 + time_ms, {})
    assert history.of_group("g", every) == [], "a group that is gone is forgotten"
    history.add(9_999, {(f"g{number}", "t"): number for number in range(SERIES_MAX + 5)})
    assert history.of_group("g4", every) == [], "the largest lags are kept"
    assert history.of_group(f"g{SERIES_MAX + 4}", every) == [(9_999, SERIES_MAX + 4)]
