"""Promise: one entry per number and one outcome per commit, whoever checkpoints and deletes when.

Several processes commit, follow, checkpoint and delete on a bucket whose requests may take effect
long after everybody gave up on them: a put of a number that was deleted meanwhile succeeds, a
delete comes when its round is over, a process sleeps through all of it. What is real is known here
from the bucket itself: the first body a number ever had.
"""

import asyncio
import os
import random
from collections.abc import Sequence

import pytest

from lakehead.storage.errors import (
    EntryRejected,
    ObjectExists,
    OutcomeUnknown,
    StoreUnavailable,
)
from lakehead.storage.metadata import log as metadata_log
from lakehead.storage.metadata.entry import decode_entry, entry_number
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.log_reader import LogReader
from lakehead.storage.metadata.records import ProducerIdBlock, Record
from lakehead.storage.metadata.rules import apply_entry
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.object_store.protocol import Buffer, ObjectMeta, Owns, every_key
from lakehead.storage.object_store.retrying import RetryingStore
from tests.simulation.loop import LoopClock, simulate
from tests.support.repetitions import repetitions

SEEDS = min(int(os.environ.get("LAKEHEAD_SEEDS", repetitions(40, 20))), 2000)
SEED = os.environ.get("LAKEHEAD_SEED")
EVERY = 6
WRITERS = 4
COMMITS = 25
QUIET_COMMITS = 4 * EVERY


class Bucket:
    """The objects, and the history of the numbers."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.zombies = 0
        self.is_calm = False
        self.states = [MetadataImage()]
        """What is real after each number of entries."""

    def put(self, key: str, body: bytes) -> bool:
        if key in self.objects:
            return False
        self.objects[key] = body
        number = entry_number(key)
        if number is not None:
            if number < len(self.states) - 1:
                self.zombies += 1
            else:
                assert number == len(self.states) - 1, f"{key} leaves a gap"
                self._follow(key, body)
        return True

    def _follow(self, key: str, body: bytes) -> None:
        state, entry = self.states[-1], decode_entry(key, body)
        try:
            self.states.append(apply_entry(state, entry))
        except EntryRejected:
            self.states.append(state.refuse(entry))


class SlowStore:
    """A process's way to the bucket. Requests are late, before or after they take effect, and some
    take effect when nobody waits for them any more.
    """

    uri = "slow:"

    def __init__(self, bucket: Bucket, rng: random.Random) -> None:
        self._bucket = bucket
        self._inner = MemoryStore(bucket.objects)
        self._rng = rng

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        body = b"".join(pieces)
        await self._delay()
        if self._happens(0.15):
            await self._delay()
            if self._rng.random() < 0.8:
                late = self._rng.random() ** 3 * 600
                asyncio.get_running_loop().call_later(late, self._bucket.put, key, body)
            raise OutcomeUnknown(key)
        if not self._bucket.put(key, body):
            raise ObjectExists(key)
        await self._delay()

    async def get(self, key: str) -> bytes:
        await self._delay()
        if self._happens(0.05):
            raise StoreUnavailable(key)
        body = await self._inner.get(key)
        await self._delay()
        return body

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return (await self.get(key))[start : start + length]

    async def get_range_into(self, key: str, start: int, target: memoryview) -> None:
        target[:] = await self.get_range(key, start, len(target))

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        body = await self.get(key)
        return body[-length:], len(body)

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Sequence[ObjectMeta]:
        await self._delay()
        found = await self._inner.list(prefix, start_after=start_after, limit=limit)
        await self._delay()
        return found

    async def delete(self, keys: Sequence[str]) -> None:
        """Keys go one by one, in any order; some only after the caller was told it failed."""
        await self._delay()
        order = self._rng.sample(list(keys), len(keys))
        for number, key in enumerate(order):
            if self._happens(0.02):
                for rest in order[number:]:
                    late = self._rng.random() * 300
                    asyncio.get_running_loop().call_later(
                        late, self._bucket.objects.pop, rest, None
                    )
                raise StoreUnavailable(key)
            self._bucket.objects.pop(key, None)
            if self._rng.random() < 0.1:
                await self._delay()
        await self._delay()

    async def abort_uploads(self, *, before_ms: int, owns: Owns = every_key) -> int:
        return 0

    async def close(self) -> None:
        pass

    def _happens(self, probability: float) -> bool:
        return not self._bucket.is_calm and self._rng.random() < probability

    async def _delay(self) -> None:
        if self._bucket.is_calm:
            return
        chance = self._rng.random()
        await asyncio.sleep(self._rng.random() * (0.05 if chance < 0.97 else 120))


class World:
    """Processes on one bucket, and what they were told."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.bucket = Bucket()
        self.blocks: list[int] = []
        self.names = 0
        self.loads = 0

    async def open(self) -> MetadataLog:
        self.names += 1
        store = RetryingStore(SlowStore(self.bucket, self.rng), rng=self.rng)
        store.is_patient = True
        clock = LoopClock(asyncio.get_running_loop())
        log = await MetadataLog.open(store, writer_id=f"w{self.names}", clock=clock, rng=self.rng)
        self.check(log.state)
        log.subscribe(self.check)
        return log

    def check(self, state: MetadataImage) -> None:
        """Nobody ever stands on anything but what is real."""
        assert state == self.bucket.states[state.next_entry]

    async def write(self) -> None:
        log = await self.open()
        await log.create_cluster("c")
        for _ in range(COMMITS):
            planned = -1

            def plan(state: MetadataImage) -> list[Record]:
                nonlocal planned
                planned = state.next_producer_id
                return [ProducerIdBlock(node_id=0, start=planned, count=10)]

            await log.commit_with(plan)
            self.blocks.append(planned)
            if self.rng.random() < 0.5:
                await log.maintain(EVERY)
            if self.rng.random() < 0.05:
                await asyncio.sleep(self.rng.random() * 300)
            if self.rng.random() < 0.03:
                self.loads += log.stats.loads - 1
                log = await self.open()
        self.loads += log.stats.loads - 1

    async def follow(self) -> None:
        log = await self.open()
        while len(self.blocks) < WRITERS * COMMITS:
            await asyncio.sleep(self.rng.random() ** 4 * 200)
            await log.refresh()
        self.loads += log.stats.loads - 1

    async def live(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(WRITERS):
                group.create_task(self.write())
            for _ in range(2):
                group.create_task(self.follow())
        await asyncio.sleep(1000)  # whatever is late has come by now
        self.bucket.is_calm = True
        log = await self.open()
        for _ in range(QUIET_COMMITS):
            await log.commit_with(
                lambda state: [ProducerIdBlock(node_id=0, start=state.next_producer_id, count=10)]
            )
            await log.maintain(EVERY)
        end = log.state.next_producer_id
        self.blocks += range(end - 10 * QUIET_COMMITS, end, 10)
        self.check((await self.open()).state)


def run_world(seed: int) -> World:
    world = World(seed)
    simulate(world.live, seed=seed)
    return world


def violations(world: World) -> list[str]:
    state, found = world.bucket.states[-1], []
    expected = list(range(0, (WRITERS * COMMITS + QUIET_COMMITS) * 10, 10))
    if sorted(world.blocks) != expected:
        found.append("a block of ids was given out twice, or by nobody")
    if state.next_producer_id != expected[-1] + 10:
        found.append("a commit took effect twice, or not at all")
    # Two checkpoints, a boundary, and entries for at most three times as many as are asked for.
    if len(world.bucket.objects) > 3 * EVERY + 3:
        found.append(f"{len(world.bucket.objects)} objects are left under meta/")
    return found


@pytest.mark.parametrize("seed", [int(SEED)] if SEED else range(SEEDS))
def test_every_commit_has_one_outcome_and_every_reader_the_same_state(seed: int) -> None:
    assert violations(run_world(seed)) == []


def test_the_worlds_meet_what_they_are_about() -> None:
    worlds = [run_world(seed) for seed in range(10)]
    assert sum(world.bucket.zombies for world in worlds) > 0
    assert sum(world.loads for world in worlds) > 10


async def blind(*_: object) -> bool:
    return True


@pytest.mark.parametrize(
    ("where", "guard"),
    [
        (LogReader, "holds"),  # nobody looks at the boundary after a read or a put
        (metadata_log, "delete_boundaries_below"),  # entries go while an older boundary stands
    ],
)
def test_without_either_guard_a_late_put_is_taken_for_real(
    where: object, guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of the check: these worlds notice when a guard is gone."""
    monkeypatch.setattr(where, guard, blind)
    for seed in range(100):
        try:
            if violations(run_world(seed)):
                return
        except (AssertionError, BaseExceptionGroup):
            return
    raise AssertionError("100 worlds without the guard, and nothing broke")
