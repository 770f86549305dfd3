"""Promise: a seal finds every record that was acknowledged, and after it nothing is acknowledged
any more, however the puts of the writer, dead or alive, fall between the steps of whoever seals.

The writer is the real log over a store that holds its puts. Each call of the sealer is a step;
before each of them, and after the last, some held puts land, with or without an answer.
"""

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.storage.errors import OutcomeUnknown
from lakehead.storage.object_store import MemoryStore, ObjectMeta
from lakehead.storage.object_store.protocol import Owns, every_key
from lakehead.storage.wal import ObjectWal, ObjectWalSettings
from lakehead.storage.wal.object import LogSealer
from lakehead.storage.wal.object.hedging import HedgingSettings
from lakehead.storage.wal.protocol import Buffer, SealedLog, WalFloor
from tests.simulation.loop import simulate
from tests.support.object_wal_tools import (
    QUICK,
    HeldStore,
    make_sealer,
    make_wal,
    numbers,
    offsets,
    turns,
)
from tests.support.repetitions import examples
from tests.support.wal_tools import Listener

Step = Callable[[int], None]


class SteppedStore:
    """The bucket as a sealer sees it: `before(step)` is called before each of its calls."""

    def __init__(self, inner: MemoryStore, before: Step, lost: frozenset[int]) -> None:
        self.uri = inner.uri
        self.steps = 0
        self._inner = inner
        self._before = before
        self._lost = lost

    async def _step(self) -> int:
        await turns(3)
        self._before(self.steps)
        self.steps += 1
        await turns(3)
        return self.steps - 1

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        step = await self._step()
        await self._inner.create(key, pieces)
        if step in self._lost:
            raise OutcomeUnknown(f"no answer for {key}")

    async def get(self, key: str) -> bytes:
        await self._step()
        return await self._inner.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        await self._step()
        return await self._inner.get_range(key, start, length)

    async def get_range_into(self, key: str, start: int, target: memoryview) -> None:
        target[:] = await self.get_range(key, start, len(target))

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        await self._step()
        return await self._inner.get_suffix(key, length)

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Sequence[ObjectMeta]:
        await self._step()
        return await self._inner.list(prefix, start_after=start_after, limit=limit)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._inner.delete(keys)

    async def abort_uploads(self, *, before_ms: int, owns: Owns = every_key) -> int:
        return await self._inner.abort_uploads(before_ms=before_ms, owns=owns)

    async def close(self) -> None:
        await self._inner.close()


class Writer:
    """A real log whose puts are held, and what it acknowledged."""

    def __init__(self, wal_settings: ObjectWalSettings = QUICK) -> None:
        self.store = HeldStore(MemoryStore())
        self.listener = Listener()
        self.wal: ObjectWal = make_wal(self.store, wal_settings)
        self.ends: list[int] = []

    async def begin(self, groups: int) -> None:
        await self.wal.seal(WalFloor(0, 0), before=0)
        await self.wal.start(epoch=0, listener=self.listener)
        for _ in range(groups):
            await self.append()

    async def append(self) -> None:
        self.ends.append(self.wal.append(1, 0, len(self.ends), 1, b"r%d" % len(self.ends)))
        await turns(4)

    async def append_if_alive(self) -> None:
        """Append and let the put land, unless the log has noticed that it has ended."""
        if not self.listener.errors:
            await self.append()
            self.land(len(self.ends) - 1)
            await turns()

    def land(self, number: int, *, answers: bool = True) -> None:
        if number in self.store.numbers():
            self.store.settle(number, answers=answers)

    @property
    def acknowledged(self) -> int:
        released = self.listener.positions[-1] if self.listener.positions else 0
        return sum(end <= released for end in self.ends)


async def check(
    groups: int, landings: Sequence[int], lost: frozenset[int], silent: frozenset[int]
) -> SealedLog:
    """Run a writer and a sealer; put `n` lands before step `landings[n]` of the sealer."""
    writer = Writer()
    await writer.begin(groups)

    def before(step: int) -> None:
        for number, when in enumerate(landings):
            if when == step:
                writer.land(number, answers=number not in silent)

    stepped = SteppedStore(writer.store.inner, before, lost)
    sealed = await make_sealer(stepped).seal(WalFloor(0, 0), before=1)
    assert offsets(sealed) == list(range(len(sealed.objects))), "a prefix of the log, without holes"
    for step in range(stepped.steps, max(landings, default=0) + 1):
        before(step)
        await turns(3)
    await asyncio.sleep(1)  # the writer repeats what it has no answer for
    while writer.store.numbers():
        for number in writer.store.numbers():
            writer.land(number)
        await turns(4)
    await turns()
    assert writer.acknowledged <= len(sealed.objects), "an acknowledged record is not in the seal"
    assert writer.listener.errors, "the writer does not know that its log has ended"
    again = await make_sealer(writer.store.inner).seal(WalFloor(0, 0), before=1)
    assert again.objects == sealed.objects, "a seal once made says the same for ever"
    return sealed


def test_every_interleaving_of_four_puts_with_a_seal() -> None:
    """Exhaustive: each put lands before any of the sealer's first steps, or after its last."""
    found = set()
    for landings in itertools.product(range(7), repeat=4):
        sealed = simulate(partial(check, 5, landings, frozenset(), frozenset()), seed=0)
        found.add(len(sealed.objects))
    assert found == {0, 1, 2, 3, 4}, "the schedules reach every possible end of the log"


HEDGED = replace(
    QUICK,
    put_timeout_s=5.0,
    hedging=HedgingSettings(share=1.0, puts_min=1, delay_s_min=0.005, kept_puts=0),
)


async def check_hedged(landings: Sequence[int], silent: Sequence[bool]) -> tuple[int, int]:
    """Run a writer that has sent each of two puts twice, and a sealer; try `n` lands before step
    `landings[n]` of the sealer. Return how many records were sealed and acknowledged.
    """
    writer = Writer(HEDGED)
    await writer.begin(1)
    writer.land(0)
    await turns(4)
    for _ in range(2):
        await writer.append()
    await asyncio.sleep(0.02)
    tries = [ticket for number in (1, 2) for ticket in writer.store.tickets(number)]
    assert len(tries) == 4
    assert writer.wal.stats.hedges == 2

    def before(step: int) -> None:
        for ticket, when, is_silent in zip(tries, landings, silent, strict=True):
            if when == step and ticket in writer.store.held:
                writer.store.decide(ticket, answers=not is_silent)

    stepped = SteppedStore(writer.store.inner, before, frozenset())
    sealed = await make_sealer(stepped).seal(WalFloor(0, 0), before=1)
    assert offsets(sealed) == list(range(len(sealed.objects))), "a prefix of the log, without holes"
    for step in range(stepped.steps, max(landings) + 1):
        before(step)
        await turns(3)
    await asyncio.sleep(1)
    while writer.store.numbers():
        for number in writer.store.numbers():
            writer.land(number)
        await turns(4)
    acknowledged = writer.acknowledged
    assert acknowledged <= len(sealed.objects), "an acknowledged record is not in the seal"
    await writer.append_if_alive()
    assert writer.acknowledged <= len(sealed.objects)
    again = await make_sealer(writer.store.inner).seal(WalFloor(0, 0), before=1)
    assert again.objects == sealed.objects, "a seal once made says the same for ever"
    return len(sealed.objects), acknowledged


def test_every_interleaving_of_two_tries_of_two_numbers_with_a_seal() -> None:
    """Exhaustive: each try lands before any of the sealer's first steps, or after its last."""
    found = set()
    for landings in itertools.product(range(6), repeat=4):
        found.add(simulate(partial(check_hedged, landings, [False] * 4), seed=0))
    assert {sealed for sealed, _ in found} == {1, 2, 3}
    assert {(1, 1), (2, 2), (3, 3)} <= found


@settings(max_examples=examples(200), deadline=None)
@given(
    landings=st.lists(st.integers(0, 10), min_size=4, max_size=4),
    silent=st.lists(st.booleans(), min_size=4, max_size=4),
    seed=st.integers(0, 1000),
)
def test_two_tries_of_a_number_with_lost_answers_and_a_seal(
    landings: list[int], silent: list[bool], seed: int
) -> None:
    simulate(lambda: check_hedged(landings, silent), seed=seed)


@settings(max_examples=examples(300), deadline=None)
@given(
    landings=st.lists(st.integers(0, 14), min_size=1, max_size=7),
    lost=st.frozensets(st.integers(0, 14), max_size=4),
    silent=st.frozensets(st.integers(0, 6), max_size=4),
    seed=st.integers(0, 1000),
)
def test_any_interleaving_with_lost_answers_on_both_sides(
    landings: list[int], lost: frozenset[int], silent: frozenset[int], seed: int
) -> None:
    simulate(lambda: check(len(landings) + 1, landings, lost, silent), seed=seed)


@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_writer_that_goes_on_writing_is_sealed_all_the_same(seed: int) -> None:
    """The walk ends though a live writer puts the next number whenever the sealer looks."""

    async def world() -> None:
        rng = random.Random(seed)
        writer = Writer()
        await writer.begin(4)
        tasks: set[asyncio.Task[None]] = set()

        def before(_: int) -> None:
            for number in writer.store.numbers():
                if rng.random() < 0.9:
                    writer.land(number)
            if not writer.listener.errors:
                task = asyncio.get_running_loop().create_task(writer.append())
                tasks.add(task)
                task.add_done_callback(lambda done: done.cancelled() or done.exception())

        stepped = SteppedStore(writer.store.inner, before, frozenset())
        sealed = await make_sealer(stepped).seal(WalFloor(0, 0), before=1)
        await asyncio.sleep(1)
        for number in writer.store.numbers():
            writer.land(number)
        await turns()
        held = sum(s.end_offset - s.start_offset for item in sealed.objects for s in item.ranges)
        assert writer.acknowledged <= held
        assert writer.listener.errors

    simulate(world, seed=seed)


@settings(max_examples=examples(100), deadline=None)
@given(
    landed=st.frozensets(st.integers(0, 9)),
    sealers=st.integers(2, 3),
    floor=st.integers(0, 3),
    seed=st.integers(0, 10_000),
)
def test_sealers_that_race_agree(
    landed: frozenset[int], sealers: int, floor: int, seed: int
) -> None:
    async def world() -> None:
        writer = Writer()
        await writer.begin(8)
        for number in sorted(landed):
            writer.land(number)
        inner = writer.store.inner
        rng = random.Random(seed)

        async def one() -> SealedLog:
            await asyncio.sleep(rng.random() * 0.01)
            sealer: LogSealer = make_sealer(
                SteppedStore(inner, lambda _: None, frozenset()), seed=seed
            )
            return await sealer.seal(WalFloor(0, floor), before=3)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one()) for _ in range(sealers)]
        results = {task.result().objects for task in tasks}
        assert len(results) == 1
        run = 0
        while floor + run in landed and floor + run < 8:
            run += 1
        assert offsets(tasks[0].result()) == list(range(floor, floor + run))
        epochs = [epoch for epoch, _ in numbers(inner, tombstones=True)]
        assert set(epochs) == {0, 1, 2}

    simulate(world, seed=seed)
