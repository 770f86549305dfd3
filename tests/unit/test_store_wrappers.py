"""What is put around a store: it counts as S3 bills, and it waits as long as it was told to."""

import asyncio
import contextlib
import random
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from lakehead.storage.errors import (
    LakeheadError,
    ObjectExists,
    ObjectNotFound,
    OutcomeUnknown,
    StoreRefused,
    StoreThrottled,
    StoreUnavailable,
)
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.object_store.counted import CountedStore
from lakehead.storage.object_store.faulty import FaultProfile, FaultyStore
from lakehead.storage.object_store.protocol import Buffer
from lakehead.storage.object_store.retrying import RetryingStore
from lakehead.storage.object_store.s3.limits import MULTIPART_SIZE_MIN, PART_SIZE
from lakehead.storage.object_store.s3.store import Deadlines
from tests.simulation.loop import LoopClock, simulate


class Failing(MemoryStore):
    """Raises the errors that it was given, one for each call, and then works."""

    def __init__(self, *errors: LakeheadError) -> None:
        super().__init__()
        self.errors = list(errors)
        self.asked_at: list[float] = []

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        self.asked_at.append(asyncio.get_running_loop().time())
        if self.errors:
            raise self.errors.pop(0)
        await super().create(key, pieces)


class Outage(MemoryStore):
    """Is unavailable until a moment."""

    def __init__(self, *, until: float) -> None:
        super().__init__()
        self.until = until
        self.asked_at: list[float] = []

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        self.asked_at.append(asyncio.get_running_loop().time())
        if self.asked_at[-1] < self.until:
            raise StoreUnavailable("gone")
        await super().create(key, pieces)


def wrapped(inner: MemoryStore, *, patient: bool = False) -> RetryingStore:
    store = RetryingStore(inner, rng=random.Random(1))
    store.is_patient = patient
    return store


def run(world: Coroutine[Any, Any, None]) -> None:
    simulate(lambda: world, seed=1, time_limit=1e6)


def test_a_command_gives_up_after_about_three_seconds() -> None:
    inner = Failing(*(StoreUnavailable("gone") for _ in range(99)))

    async def world() -> None:
        with pytest.raises(StoreUnavailable, match="gone"):
            await wrapped(inner).create("k", [b"x"])

    run(world())
    assert len(inner.asked_at) == 6
    assert 0.7 < inner.asked_at[-1] < 4


class Silent(MemoryStore):
    """Does not respond: each request ends at its time limit, which is twice that of the last."""

    def __init__(self) -> None:
        super().__init__()
        self.limit_s = 5.0

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        await asyncio.sleep(self.limit_s)
        self.limit_s *= 2
        raise StoreUnavailable("no response in time")


def test_a_command_gives_up_within_a_minute_where_the_store_does_not_respond() -> None:
    async def world() -> None:
        with pytest.raises(StoreUnavailable, match="no response in time"):
            await wrapped(Silent()).create("k", [b"x"])
        assert 30 < asyncio.get_running_loop().time() < 60

    run(world())


def test_a_call_that_has_failed_counts_as_waiting_until_it_succeeds() -> None:
    """A store that does not respond is found by the calls that wait, at any moment."""
    inner = Silent()
    store = wrapped(inner, patient=True)
    seen: list[int] = []

    async def look() -> None:
        while True:
            seen.append(store.stats.waiting)
            await asyncio.sleep(1)

    async def world() -> None:
        looking = asyncio.create_task(look())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(60):
                await store.create("k", [b"x"])
        looking.cancel()
        assert store.stats.waiting == 0

    run(world())
    assert set(seen[:5]) == {0}
    assert set(seen[6:60]) == {1}


def test_a_node_waits_for_as_long_as_it_takes_at_most_five_seconds_late() -> None:
    inner = Failing(*(StoreUnavailable("gone") for _ in range(500)))
    store = wrapped(inner, patient=True)

    async def world() -> None:
        await store.create("k", [b"x"])

    run(world())
    assert inner.objects == {"k": b"x"}
    pauses = [b - a for a, b in zip(inner.asked_at, inner.asked_at[1:], strict=False)]
    assert inner.asked_at[-1] > 1000
    assert max(pauses) <= 7.5
    assert len({round(pause, 6) for pause in pauses}) > 400, "no jitter"
    assert (store.stats.retries, store.stats.waiting) == (500, 0)
    assert store.stats.waited_s == pytest.approx(inner.asked_at[-1])


def test_the_end_of_an_outage_is_met_by_no_storm() -> None:
    """Of 64 calls that wait, never more than a few ask at the same moment, then or before."""
    inner = Outage(until=60.0)
    store = wrapped(inner, patient=True)

    async def world() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(64):
                group.create_task(store.create(f"k/{number}", [b"x"]))

    run(world())
    assert len(inner.objects) == 64
    later = sorted(at for at in inner.asked_at if at > 10.0)
    assert later[-1] < 60.0 + 7.5
    busiest = max(sum(at <= other < at + 0.05 for other in later) for at in later)
    assert busiest <= 8, f"{busiest} within 50 ms"
    assert len(later) < 64 * 20


def test_a_throttled_call_waits_longer_from_the_start() -> None:
    inner = Failing(StoreThrottled("slow down"), StoreThrottled("slow down"))
    store = wrapped(inner)

    async def world() -> None:
        await store.create("k", [b"x"])

    run(world())
    assert inner.asked_at[1] >= 0.25
    assert inner.asked_at[2] - inner.asked_at[1] >= 0.5
    assert store.stats.throttled == 2


@pytest.mark.parametrize("error", [StoreRefused("403"), OutcomeUnknown("?"), ObjectExists("k")])
def test_what_a_repetition_cannot_help_reaches_the_caller_at_once(error: LakeheadError) -> None:
    inner = Failing(error)

    async def world() -> None:
        with pytest.raises(type(error)):
            await wrapped(inner).create("k", [b"x"])

    run(world())
    assert len(inner.asked_at) == 1


def test_a_node_waits_a_refusal_out_since_policies_get_repaired() -> None:
    inner = Failing(*(StoreRefused("403") for _ in range(20)))

    async def world() -> None:
        await wrapped(inner, patient=True).create("k", [b"x"])

    run(world())
    assert inner.objects == {"k": b"x"}


def test_requests_are_counted_as_s3_bills_them() -> None:
    async def world() -> None:
        store = CountedStore(MemoryStore(), clock=LoopClock(asyncio.get_running_loop()))
        await store.create("small", [b"abc", b"de"])
        await store.create("large", [bytes(MULTIPART_SIZE_MIN + 1)])
        assert store.stats.put.calls == 2
        assert store.stats.put.requests == 1 + MULTIPART_SIZE_MIN // PART_SIZE + 1 + 2
        assert store.stats.put.bytes == MULTIPART_SIZE_MIN + 6
        await store.get("small")
        await store.get_range("large", 5, 100)
        await store.get_suffix("large", 7)
        assert (store.stats.get.requests, store.stats.get.bytes) == (3, 112)
        for number in range(2500):
            await store.create(f"many/{number:05d}", [b""])
        puts = store.stats.put.requests
        await store.list("many/")
        await store.list("none/")
        assert store.stats.list.requests == 3 + 1
        await store.delete([f"many/{number:05d}" for number in range(2500)])
        assert store.stats.delete.requests == 3
        assert await store.abort_uploads(before_ms=0) == 0
        expected = (puts + 5) * 0.005 / 1000 + 3 * 0.0004 / 1000
        assert store.stats.cost() == pytest.approx(expected)

    run(world())


def test_failures_are_told_apart_and_timed() -> None:
    async def world() -> None:
        loop = asyncio.get_running_loop()
        inner = MemoryStore()
        faulty = FaultyStore(inner, rng=random.Random(1), profile=FaultProfile(latency_s_max=2))
        store = CountedStore(faulty, clock=LoopClock(loop))
        await store.create("k", [b"x"])
        assert store.stats.put.latency.seconds == store.stats.put.seconds_max == loop.time() > 0
        with pytest.raises(ObjectExists):
            await store.create("k", [b"x"])
        with pytest.raises(ObjectNotFound):
            await store.get("absent")
        assert store.stats.lost == 1
        assert store.stats.put.failures == store.stats.get.failures == 0
        faulty.profile = FaultProfile(lost_response=1)
        with pytest.raises(OutcomeUnknown):
            await store.create("l", [b"x"])
        faulty.profile = FaultProfile(unavailable=1)
        with pytest.raises(StoreUnavailable):
            await store.get("k")
        assert store.stats.unknown == store.stats.put.failures == store.stats.get.failures == 1
        throttled = CountedStore(Failing(StoreThrottled("slow")), clock=LoopClock(loop))
        with pytest.raises(StoreThrottled):
            await throttled.create("k", [b"x"])
        assert throttled.stats.throttles == 1

    run(world())


def test_deadlines_stretch_while_they_are_missed_and_shrink_when_met() -> None:
    deadlines = Deadlines()
    usual = deadlines.read(2**20)
    assert usual == 5.5
    assert deadlines.write(20 * 2**20) == 20
    for _ in range(10):
        deadlines.missed()
    assert deadlines.read(2**20) == 16 * usual
    for _ in range(100):
        deadlines.met()
    assert deadlines.read(2**20) == usual
