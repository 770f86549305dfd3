"""Rates and throttle times are those of Kafka, limits those of its eight levels: a model written
straight from Kafka's sources agrees with ours on any sequence."""

from dataclasses import dataclass, field
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.broker.quota.entities import CLIENT_ID, USER, EntityClass, QuotaType, limit_of
from lakehead.broker.quota.rates import QuotaWindow, SampledRate, TokenBucket
from tests.support.repetitions import examples

WINDOWS = st.builds(QuotaWindow, st.integers(1, 12), st.sampled_from([0.5, 1.0, 2.0]))
STEPS = st.lists(
    st.tuples(
        # Times are whole 1/8 seconds, which floats hold exactly; some pauses are long.
        st.integers(0, 24) | st.integers(0, 400),
        st.integers(-50, 2000),
        st.booleans(),
    ),
    min_size=1,
    max_size=40,
)


@dataclass
class KafkaSample:
    start: float
    last: float
    value: float = 0.0


@dataclass
class KafkaRate:
    """SampledStat and Rate of Kafka, with a ring of samples that are reset in place."""

    window: QuotaWindow
    samples: list[KafkaSample] = field(default_factory=list)
    current: int = 0

    def record(self, value: float, now: float) -> None:
        if not self.samples:
            self.samples.append(KafkaSample(now, now))
        sample = self.samples[self.current]
        if now - sample.start >= self.window.sample_s:
            self.current = (self.current + 1) % (self.window.samples + 1)
            if self.current >= len(self.samples):
                self.samples.append(KafkaSample(now, now))
            sample = self.samples[self.current]
            sample.start, sample.last, sample.value = now, now, 0.0
        sample.value += value
        sample.last = now

    def measure(self, now: float) -> tuple[float, float]:
        """Return the sum and the length of the window."""
        for sample in self.samples:
            if now - sample.last >= self.window.samples * self.window.sample_s:
                sample.start, sample.last, sample.value = now, now, 0.0
        if not self.samples:
            self.samples.append(KafkaSample(now, now))
        elapsed = now - min(sample.start for sample in self.samples)
        full = int(elapsed / self.window.sample_s)
        if full < self.window.samples - 1:
            elapsed += (self.window.samples - 1 - full) * self.window.sample_s
        return sum(sample.value for sample in self.samples), max(elapsed, 0.001)


@settings(max_examples=examples(150), deadline=None)
@given(window=WINDOWS, steps=STEPS, limit=st.sampled_from([1.0, 64.0, 1e6, 1e-3]))
def test_rates_and_throttle_times_are_kafkas(
    window: QuotaWindow, steps: list[tuple[int, int, bool]], limit: float
) -> None:
    ours, kafkas, now = SampledRate(), KafkaRate(window), 100.0
    for pause, value, is_recorded in steps:
        now += pause / 8
        if is_recorded:
            ours.record(value, now, window)
            kafkas.record(value, now)
        total, length = kafkas.measure(now)
        assert ours.total(now, window) == total
        assert ours.window_s(now, window) == length
        rate = total / length
        assert ours.rate(now, window) == rate
        throttle = (rate - limit) / limit * length if rate > limit else 0.0
        assert ours.throttle_s(limit, now, window) == throttle


@settings(max_examples=examples(60), deadline=None)
@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=8),
    work_ms=st.integers(0, 100),
    limit=st.sampled_from([1000.0, 5000.0]),
)
def test_a_client_that_sends_as_fast_as_it_may_gets_its_limit(
    sizes: list[int], work_ms: int, limit: float
) -> None:
    """Its requests are up to a second's worth of its limit, as requests of sensible quotas are."""
    window, rate = QuotaWindow(), SampledRate()
    begin = now = 50.0
    sent = turn = 0
    while now < begin + 200:
        size = sizes[turn % len(sizes)]
        rate.record(size, now, window)
        sent += size
        now += max(rate.throttle_s(limit, now, window), work_ms / 1000, 1e-4)
        turn += 1
    may_send = sum(sizes) / len(sizes) / max(work_ms / 1000, 1e-4)
    expected = min(limit, may_send)
    assert sent / (now - begin) == pytest.approx(expected, rel=0.1)


@given(back=st.floats(0, 1e9))
def test_a_clock_that_steps_back_counts_as_standing_still(back: float) -> None:
    window = QuotaWindow()
    rate, bucket = SampledRate(), TokenBucket()
    rate.record(500, 1000.0, window)
    bucket.take(60, 5.0, 1000.0, window)
    rate.record(500, 1000.0 - back, window)
    assert rate.total(1000.0 - back, window) == 1000
    assert rate.throttle_s(50.0, 1000.0 - back, window) == 10.0
    assert bucket.tokens(5.0, 1000.0 - back, window) == -5.0


@settings(max_examples=examples(100), deadline=None)
@given(
    window=WINDOWS,
    steps=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 500)), max_size=40),
    limit=st.sampled_from([0.5, 5.0, 1000.0]),
)
def test_a_token_bucket_is_kafkas(
    window: QuotaWindow, steps: list[tuple[int, int]], limit: float
) -> None:
    bucket, now = TokenBucket(), 1000.0
    tokens, updated = 0.0, -1e12  # Kafka's begins empty at the epoch, long ago
    burst = window.samples * window.sample_s * limit
    for pause, amount in steps:
        now += pause / 8
        tokens = min(burst, tokens + limit * (now - updated))
        updated = now
        assert bucket.tokens(limit, now, window) == pytest.approx(tokens)
        if tokens >= 0:
            bucket.take(amount, limit, now, window)
            tokens = min(burst, tokens - amount)
            assert bucket.throttle_s(limit, now, window) == pytest.approx(max(0, -tokens / limit))


ENTITIES = [
    tuple(sorted(pairs.items()))
    for user, client in product(("ann", "bob", None, "-"), ("app", "web", None, "-"))
    if (pairs := {k: v for k, v in ((USER, user), (CLIENT_ID, client)) if v != "-"})
]


def kafkas_tags(quotas: dict[object, float], user: str, client: str) -> tuple[str, str]:
    """`quotaMetricTags` of Kafka's DefaultQuotaCallback for several levels of quotas."""
    if ((CLIENT_ID, client), (USER, user)) in quotas:
        return user, client
    if ((CLIENT_ID, None), (USER, user)) in quotas:
        return user, client
    if ((USER, user),) in quotas:
        return user, ""
    if ((CLIENT_ID, client), (USER, None)) in quotas:
        return user, client
    if ((CLIENT_ID, None), (USER, None)) in quotas:
        return user, client
    if ((USER, None),) in quotas:
        return user, ""
    return "", client


def kafkas_limit(quotas: dict[object, float], tags: tuple[str, str]) -> float | None:
    """`quotaLimit` of Kafka's DefaultQuotaCallback."""
    user, client = tags
    tried: list[object] = []
    if user and client:
        tried = [
            ((CLIENT_ID, name), (USER, owner)) for owner in (user, None) for name in (client, None)
        ]
    elif user:
        tried = [((USER, user),), ((USER, None),)]
    elif client:
        tried = [((CLIENT_ID, client),), ((CLIENT_ID, None),)]
    return next((quotas[entity] for entity in tried if entity in quotas), None)


@settings(max_examples=examples(150), deadline=None)
@given(
    values=st.dictionaries(st.sampled_from(ENTITIES), st.floats(1, 1e9)),
    others=st.dictionaries(st.sampled_from(ENTITIES), st.floats(1, 1e9)),
    user=st.sampled_from(["ann", "bob", "eve"]),
    client=st.sampled_from(["app", "web", "cli", ""]),
)
def test_the_limit_is_that_of_kafkas_eight_levels(
    values: dict[object, float], others: dict[object, float], user: str, client: str
) -> None:
    every = {
        entity: {
            name.value: of[entity]
            for name, of in ((QuotaType.FETCH, values), (QuotaType.PRODUCE, others))
            if entity in of
        }
        for entity in ENTITIES
    }
    quotas = {entity: given for entity, given in every.items() if given}
    tags = kafkas_tags(values, user, client)
    limit = limit_of(quotas, QuotaType.FETCH, user, client)
    assert (None if limit is None else limit.value) == kafkas_limit(values, tags)
    if limit is not None:
        assert (limit.user, limit.client_id) == tags
    assert limit_of(quotas, QuotaType.REQUEST, user, client) is None


def test_each_level_gives_way_to_the_one_before() -> None:
    order = [
        (((CLIENT_ID, "app"), (USER, "ann")), EntityClass.USER_CLIENT),
        (((CLIENT_ID, None), (USER, "ann")), EntityClass.USER_ANY_CLIENT),
        (((USER, "ann"),), EntityClass.USER),
        (((CLIENT_ID, "app"), (USER, None)), EntityClass.ANY_USER_CLIENT),
        (((CLIENT_ID, None), (USER, None)), EntityClass.ANY_USER_ANY_CLIENT),
        (((USER, None),), EntityClass.ANY_USER),
        (((CLIENT_ID, "app"),), EntityClass.CLIENT),
        (((CLIENT_ID, None),), EntityClass.ANY_CLIENT),
    ]
    for number, (_, level) in enumerate(order):
        quotas = {
            entity: {QuotaType.PRODUCE.value: float(place)}
            for place, (entity, _) in enumerate(order)
            if place >= number
        }
        limit = limit_of(quotas, QuotaType.PRODUCE, "ann", "app")
        assert limit is not None
        assert (limit.value, limit.level) == (float(number), level)
