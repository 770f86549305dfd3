"""A slow put of the object WAL is raced by a second one of the same bytes: the log's use of the two
responses, in whatever order they come and whatever befell the object between them.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace

import pytest

from lakehead.storage.errors import Fenced, StoreThrottled
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.object_store.protocol import Buffer
from lakehead.storage.wal import ObjectWal
from lakehead.storage.wal.object import wal_key
from lakehead.storage.wal.object.hedging import HedgingSettings
from lakehead.storage.wal.protocol import WalFloor
from tests.simulation.loop import simulate
from tests.support.object_wal_tools import QUICK, HeldStore, make_wal, numbers, offsets, seal, turns
from tests.support.wal_tools import Listener

HEDGED = replace(
    QUICK, put_timeout_s=5.0, hedging=HedgingSettings(share=1.0, puts_min=1, kept_puts=0)
)
KNOWN = 1
"""Puts that the log sends before the tests': it knows by them how long one takes."""
OVERDUE_S = 0.02
FIRST, SECOND = 0, 1
Scene = Callable[["Held"], Coroutine[None, None, None]]


class Held:
    """A log whose puts are held; its first one has gone through at once."""

    def __init__(self) -> None:
        self.store = HeldStore(MemoryStore())
        self.objects = self.store.inner.objects
        self.listener = Listener()
        self.wal: ObjectWal = make_wal(self.store, HEDGED)
        self.ends: list[int] = []

    async def begin(self) -> None:
        await self.wal.seal(WalFloor(0, 0), before=0)
        await self.wal.start(epoch=0, listener=self.listener)
        for _ in range(KNOWN):
            await self.append()
            self.store.settle(len(self.ends) - 1)
            await turns()
        assert self.released == KNOWN

    async def append(self) -> None:
        number = len(self.ends)
        self.ends.append(self.wal.append(1, 0, number, 1, b"r%d" % number))
        await turns()

    async def hedged(self, number: int = KNOWN) -> None:
        """Append until this number's put is on its way twice."""
        while len(self.ends) <= number:
            await self.append()
        await asyncio.sleep(OVERDUE_S)
        assert self.store.numbers().count(number) == 2

    async def settle(self, number: int, which: int, **how: bool) -> None:
        self.store.settle(number, which=which, **how)
        await turns()

    def land(self, number: int) -> None:
        """Let a number's put land; its response is still on its way."""
        key = wal_key(0, 0, number)
        self.objects[key] = next(body for name, body, _ in self.store.held.values() if name == key)

    async def trim(self) -> WalFloor:
        """Commit and trim all that was released, as the engine does; return the floor."""
        floor = self.wal.floor_at(self.wal.released_position)
        await self.wal.trim(self.wal.released_position)
        await turns()
        return floor

    @property
    def released(self) -> int:
        """Records that are acknowledged."""
        position = self.listener.positions[-1] if self.listener.positions else 0
        return sum(end <= position for end in self.ends)


def scene(play: Scene) -> Callable[[], None]:
    """Make a test of what happens to a log in virtual time."""

    def test() -> None:
        async def world() -> None:
            held = Held()
            await held.begin()
            await play(held)

        simulate(world, seed=0)

    test.__doc__ = play.__doc__
    return test


@scene
async def test_a_slow_put_is_raced_by_the_same_bytes_and_the_quicker_one_counts(held: Held) -> None:
    await held.hedged()
    bodies = {(key, body) for key, body, _ in held.store.held.values()}
    assert len(bodies) == 1
    await held.settle(KNOWN, SECOND)
    assert held.released == KNOWN + 1
    assert (held.wal.stats.hedges, held.wal.stats.hedges_won) == (1, 1)
    assert held.wal.stats.puts == KNOWN + 2, "both are counted, and paid"
    await held.settle(KNOWN, FIRST)
    assert held.released == KNOWN + 1
    assert held.wal.stats.put_retries == 0


@scene
async def test_a_put_in_time_is_not_raced(held: Held) -> None:
    await held.append()
    await asyncio.sleep(0.009)
    await held.settle(KNOWN, FIRST)
    await asyncio.sleep(1)
    assert held.store.numbers() == []
    assert held.wal.stats.hedges == 0


@scene
async def test_a_put_whose_response_alone_is_late_is_found_by_a_look(held: Held) -> None:
    await held.append()
    held.land(KNOWN)
    await asyncio.sleep(OVERDUE_S)
    assert held.released == KNOWN + 1
    assert held.store.numbers() == [KNOWN, KNOWN], "no response has come"
    await held.settle(KNOWN, SECOND)
    await held.settle(KNOWN, FIRST)
    assert held.listener.errors == []


@scene
async def test_a_look_at_an_object_that_is_spoilt_on_its_way_ends_no_log(held: Held) -> None:
    await held.append()
    held.land(KNOWN)
    key = wal_key(0, 0, KNOWN)
    whole = held.objects[key]
    held.objects[key] = whole[:-1] + bytes([whole[-1] ^ 1])
    await held.hedged()
    held.objects[key] = whole
    await held.settle(KNOWN, FIRST)
    assert held.listener.errors == []
    assert held.released == KNOWN + 1


@scene
async def test_a_hedge_that_finds_the_first_puts_object_need_not_wait_for_its_response(
    held: Held,
) -> None:
    await held.hedged()
    held.land(KNOWN)
    await held.settle(KNOWN, SECOND)
    assert held.released == KNOWN + 1
    await held.settle(KNOWN, FIRST)
    assert held.listener.errors == []


@scene
async def test_a_won_race_gives_up_no_order(held: Held) -> None:
    await held.append()
    await held.hedged(KNOWN + 1)
    await held.settle(KNOWN + 1, SECOND)
    assert held.released == KNOWN, "the number before it is not there yet"
    await held.settle(KNOWN, FIRST)
    assert held.released == KNOWN + 2


@scene
async def test_a_failed_try_leaves_the_other_one_its_chance(held: Held) -> None:
    await held.hedged()
    await held.settle(KNOWN, SECOND, lands=False)
    assert (held.released, held.store.numbers()) == (KNOWN, [KNOWN])
    await held.settle(KNOWN, FIRST)
    assert held.released == KNOWN + 1


@scene
async def test_a_put_whose_tries_both_failed_is_put_again(held: Held) -> None:
    await held.hedged()
    await held.settle(KNOWN, FIRST, lands=False)
    await held.settle(KNOWN, FIRST, lands=False)
    await asyncio.sleep(1)
    assert held.store.numbers() == [KNOWN]
    await held.settle(KNOWN, FIRST)
    assert held.released == KNOWN + 1


@scene
async def test_a_seal_between_the_two_ends_the_log(held: Held) -> None:
    await held.hedged()
    assert offsets(await seal(held.store.inner)) == list(range(KNOWN))
    await held.settle(KNOWN, SECOND)
    assert isinstance((await held.listener.wait_failed()).__cause__, Fenced)
    await held.settle(KNOWN, FIRST)
    assert held.released == KNOWN
    assert numbers(held.store.inner, tombstones=False) == [(0, n) for n in range(KNOWN)]


@scene
async def test_a_late_winner_after_a_takeover_acknowledges_what_the_takeover_has(
    held: Held,
) -> None:
    """The first try lands unheard of; another node seals above it and commits it, and its object is
    replaced and deleted. Then the hedge lands, and makes the object again.
    """
    await held.hedged()
    await held.settle(KNOWN, FIRST, answers=False)
    taken = await seal(held.store.inner)
    assert offsets(taken) == list(range(KNOWN + 1))
    await held.store.delete([item.key for item in taken.objects])
    await held.settle(KNOWN, FIRST)
    assert held.released == KNOWN + 1, "and that is true: the takeover has the record"
    await held.append()
    await held.settle(KNOWN + 1, FIRST)
    assert isinstance((await held.listener.wait_failed()).__cause__, Fenced)
    assert held.released == KNOWN + 1
    again = await seal(held.store.inner, before=2, floor=WalFloor(1, 0))
    assert again.objects == (), "nothing below the floor comes back"


@scene
async def test_a_late_try_makes_no_deleted_object_again(held: Held) -> None:
    """The object is deleted after the try that has lost got its response."""
    await held.hedged()
    await held.settle(KNOWN, SECOND)
    await held.trim()
    assert numbers(held.store.inner, tombstones=False) == [(0, KNOWN)], "kept back"
    await held.settle(KNOWN, FIRST)
    assert numbers(held.store.inner, tombstones=False) == []


@scene
async def test_what_a_try_of_unknown_outcome_makes_again_is_below_the_floor(held: Held) -> None:
    """Its sender has given it up, so the object was deleted: what it leaves is for the sweep."""
    await held.hedged()
    await held.settle(KNOWN, SECOND)
    body = held.objects[wal_key(0, 0, KNOWN)]
    floor = await held.trim()
    await asyncio.sleep(6)
    assert numbers(held.store.inner, tombstones=False) == [], "the first try is over"
    held.objects[wal_key(0, 0, KNOWN)] = body
    sealed = await seal(held.store.inner, floor=floor)
    assert sealed.objects == ()
    assert sealed.leftovers == (wal_key(0, 0, KNOWN),)


@scene
async def test_a_clean_stop_waits_a_moment_for_a_late_try_and_leaves_nothing(held: Held) -> None:
    await held.hedged()
    await held.settle(KNOWN, SECOND)
    await held.trim()
    loop = asyncio.get_running_loop()
    loop.call_later(0.5, lambda: held.store.settle(KNOWN))
    began = loop.time()
    await held.wal.close()
    assert loop.time() - began == pytest.approx(0.5)
    assert held.objects == {}


@scene
async def test_a_store_that_hangs_gets_few_second_puts(held: Held) -> None:
    for _ in range(7):
        await held.append()
    await asyncio.sleep(1)
    assert held.wal.stats.hedges <= 4
    while held.store.numbers():
        await held.settle(held.store.numbers()[0], FIRST)
    assert held.released == KNOWN + 7


class Throttling(MemoryStore):
    """A store that refuses its third put as too many, and delays later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.puts = 0

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        self.puts += 1
        if self.puts == 3:
            raise StoreThrottled("slow down")
        await asyncio.sleep(1.0 if self.puts > 3 else 0.02)
        await super().create(key, pieces)


def test_a_store_that_demands_fewer_requests_gets_no_second_ones() -> None:
    async def world() -> None:
        wal, listener = make_wal(Throttling(), HEDGED), Listener()
        await wal.seal(WalFloor(0, 0), before=0)
        await wal.start(epoch=0, listener=listener)
        for offset in range(8):
            await listener.wait_released(wal.append(1, 0, offset, 1, b"x"))
        assert wal.stats.hedges == 0

    simulate(world, seed=0)


TAIL_LATENCY_S, TAIL_SHARE = 0.5, 0.01
USUAL_S = 0.02


class Tailed(MemoryStore):
    """A store that responds after 20 ms, and once in a hundred after half a second. A put lands at
    the end of that time, or `lands_first`: at its beginning. Of an `uneven` one some of the other
    puts take half as long again, as a real server's do.
    """

    def __init__(self, seed: int, *, lands_first: bool, uneven: bool) -> None:
        super().__init__()
        self.rng = random.Random(seed)
        self.lands_first = lands_first
        self.uneven = uneven

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        usual = USUAL_S * (0.9 + 0.2 * self.rng.random())
        if self.uneven:
            usual += USUAL_S * self.rng.expovariate(6)
        latency_s = TAIL_LATENCY_S if self.rng.random() < TAIL_SHARE else usual
        if not self.lands_first:
            await asyncio.sleep(latency_s)
        try:
            await super().create(key, pieces)
        finally:
            if self.lands_first:
                await asyncio.sleep(latency_s)

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        await asyncio.sleep(USUAL_S)
        return await super().get_suffix(key, length)


class Latencies:
    """The times from append to release. A log's listener."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, float]] = []
        self.seconds: list[float] = []

    def released(self, position: int) -> None:
        now = asyncio.get_running_loop().time()
        while self.waiting and self.waiting[0][0] <= position:
            self.seconds.append(now - self.waiting.pop(0)[1])

    def failed(self, error: Exception) -> None:
        raise AssertionError(repr(error))

    def percentile(self, percent: float) -> float:
        return sorted(self.seconds)[int(len(self.seconds) * percent / 100)]


def measured(
    seed: int,
    *,
    share: float,
    lands_first: bool = False,
    uneven: bool = False,
    seconds: float = 60.0,
) -> tuple[Latencies, ObjectWal]:
    """Append a record at about each millisecond."""

    async def world() -> tuple[Latencies, ObjectWal]:
        store = Tailed(seed, lands_first=lands_first, uneven=uneven)
        found = Latencies()
        wal = make_wal(
            store,
            replace(
                QUICK,
                capacity=1 << 40,
                put_timeout_s=5.0,
                hedging=HedgingSettings(share=share),
                batching=replace(QUICK.batching, linger_s=0.001, in_flight_start=4),
            ),
        )
        await wal.seal(WalFloor(0, 0), before=0)
        await wal.start(epoch=0, listener=found)
        loop, rng = asyncio.get_running_loop(), random.Random(seed)
        offset = 0
        while loop.time() < seconds:
            await asyncio.sleep(0.002 * rng.random())
            found.waiting.append((wal.append(1, 0, offset, 1, b"x" * 100), loop.time()))
            offset += 1
        await asyncio.sleep(2)
        return found, wal

    return simulate(world, seed=seed)


@pytest.mark.parametrize(
    ("lands_first", "uneven"), [(False, False), (True, False), (False, True), (True, True)]
)
def test_one_slow_put_in_a_hundred_does_not_show_in_the_99th_percentile(
    lands_first: bool, uneven: bool
) -> None:
    """Of a store with 20 ms and a tail of half a second. Without hedges a fifth of all appends
    waits for the tail.
    """
    seed = 3 if uneven else 1
    found, wal = measured(seed, share=0.05, lands_first=lands_first, uneven=uneven)
    p50, p99 = found.percentile(50), found.percentile(99)
    assert p50 < 0.045
    assert p99 <= 2 * p50
    stats = wal.stats
    assert stats.hedges <= 1 + 0.05 * (stats.puts - stats.hedges)
    without, _ = measured(seed, share=0.0, lands_first=lands_first, uneven=uneven)
    assert without.percentile(99) > 5 * p99
