"""Opening and following a log that is kept short; and what comes of damage to it."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import CorruptObject, EntryRejected, OutcomeUnknown, UnsupportedFormat
from lakehead.storage.metadata.entry import decode_entry, encode_entry, entry_key, entry_number
from lakehead.storage.metadata.layout import META, Boundary, Listing, checkpoint_key
from lakehead.storage.metadata.log import MetadataFollower, MetadataLog
from lakehead.storage.metadata.records import (
    ClusterCreated,
    CreateTopic,
    Entry,
    ProducerIdBlock,
    Record,
    TopicConfig,
)
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.object_store.faulty import FaultProfile, FaultyStore
from lakehead.storage.object_store.protocol import Buffer, ObjectMeta
from tests.simulation.loop import LoopClock, simulate

EVERY = 10


class CountedStore(MemoryStore):
    """Counts requests by kind and first folder, and spoils what it is told to."""

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        super().__init__(objects)
        self.requests: Counter[str] = Counter()
        self.spoiled_once: set[str] = set()

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        self.requests["create"] += 1
        await super().create(key, pieces)

    async def get(self, key: str) -> bytes:
        self.requests[f"get {key.split('/')[1]}"] += 1
        body = await super().get(key)
        if key in self.spoiled_once:
            self.spoiled_once.remove(key)
            return body[:-1]
        return body

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Sequence[ObjectMeta]:
        self.requests["list"] += 1
        return await super().list(prefix, start_after=start_after, limit=limit)


async def open_log(store: MemoryStore, writer: str = "w") -> MetadataLog:
    rng = random.Random(f"{writer}{len(store.objects)}")
    return await MetadataLog.open(store, writer_id=writer, clock=SystemClock(), rng=rng)


async def grow(log: MetadataLog, entries: int, *, every: int = EVERY) -> None:
    if not log.state.cluster_id:
        await log.create_cluster("c")
    for _ in range(entries):
        await log.commit_with(
            lambda state: [ProducerIdBlock(node_id=0, start=state.next_producer_id, count=1)]
        )
        await log.maintain(every)


async def listing(store: MemoryStore) -> Listing:
    return Listing.of(await store.list(META))


def spoil(store: MemoryStore, key: str) -> None:
    body = bytearray(store.objects[key])
    body[len(body) // 2] ^= 1
    store.objects[key] = bytes(body)


async def test_the_log_is_kept_short_and_opens_to_the_same_state() -> None:
    store = CountedStore()
    log = await open_log(store)
    await grow(log, 500)
    assert len(store.objects) < 4 * EVERY
    found = await listing(store)
    assert len(found.checkpoints) == 2
    assert [boundary.number for boundary in found.boundaries] == [found.checkpoints[0]]
    assert min(found.entries) == found.checkpoints[0]
    store.requests.clear()
    assert (await open_log(store)).state == log.state
    tail = log.state.next_entry - found.checkpoints[-1]
    assert store.requests["list"] == store.requests["get checkpoint"] == 1
    assert store.requests["get log"] == tail + 1
    assert store.requests["get boundary"] <= 1


async def test_a_follower_that_slept_behind_the_boundary_starts_again_from_a_checkpoint() -> None:
    store = MemoryStore()
    log = await open_log(store)
    await grow(log, 3)
    sleeper = await open_log(store, "sleeper")
    await grow(log, 100)
    assert entry_key(sleeper.state.next_entry) not in store.objects
    for _ in range(8):  # no news is not believed for ever
        await sleeper.refresh()
    assert sleeper.state == log.state
    assert sleeper.stats.loads == 2


async def test_a_sleeper_that_commits_learns_that_its_number_was_taken_long_ago() -> None:
    store = MemoryStore()
    log = await open_log(store)
    await grow(log, 3)
    sleeper = await open_log(store, "sleeper")
    number = sleeper.state.next_entry
    await grow(log, 100)
    await grow(sleeper, 1)
    assert entry_key(number) in store.objects  # its put succeeded, and counts for nothing
    await log.refresh()
    assert sleeper.state == log.state
    assert log.state.next_producer_id == 104
    await grow(log, 30)
    assert entry_key(number) not in store.objects


async def test_a_corrupt_newest_checkpoint_gives_way_to_the_one_before() -> None:
    store = MemoryStore()
    log = await open_log(store)
    await grow(log, 100)
    older, newest = (await listing(store)).checkpoints
    spoil(store, checkpoint_key(newest))
    opened = await open_log(store, "second")
    assert opened.state == log.state
    assert opened.stats.corrupt_checkpoints == 1
    spoil(store, checkpoint_key(older))
    with pytest.raises(CorruptObject, match=rf"{checkpoint_key(newest)} is corrupt at byte \d+"):
        await open_log(store, "third")


async def test_without_deleted_entries_a_corrupt_checkpoint_is_no_loss() -> None:
    store = MemoryStore()
    log = await open_log(store)
    await grow(log, 15)
    (only,) = (await listing(store)).checkpoints
    spoil(store, checkpoint_key(only))
    assert (await open_log(store, "second")).state == log.state


async def test_nothing_is_deleted_on_the_word_of_a_checkpoint_that_cannot_be_read() -> None:
    class Spoiling(MemoryStore):
        async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
            await super().create(key, pieces)
            if "checkpoint" in key:
                self.objects[key] = self.objects[key][:-5]

    store = Spoiling()
    log = await open_log(store)
    await grow(log, 60)
    assert log.stats.corrupt_checkpoints > 0
    assert len((await listing(store)).entries) == 61
    assert (await open_log(store, "second")).state == log.state


async def test_two_checkpoints_stay_that_can_be_read() -> None:
    """One is damaged when it is written. So entries are kept since the one before it: the newest
    may be damaged later.
    """
    store = CountedStore()
    log = await open_log(store)
    await grow(log, 25)
    damaged = (await listing(store)).checkpoints[-1]
    store.objects[checkpoint_key(damaged)] = store.objects[checkpoint_key(damaged)][:-5]
    while (newest := (await listing(store)).checkpoints[-1]) == damaged:
        await grow(log, 1)
    store.objects[checkpoint_key(newest)] = store.objects[checkpoint_key(newest)][:-5]
    assert (await open_log(store, "second")).state == log.state
    await grow(log, 40)
    found = await listing(store)
    assert len(found.checkpoints) == 2
    assert found.checkpoints[0] > newest
    assert (await open_log(store, "third")).state == log.state


async def test_a_body_that_was_damaged_on_its_way_is_read_again() -> None:
    store = CountedStore()
    log = await open_log(store)
    await grow(log, 3)
    store.spoiled_once.add(entry_key(2))
    assert (await open_log(store, "second")).state == log.state


ENTRY = Entry(
    version=1,
    writer="w",
    nonce="n",
    time_ms=5,
    records=(
        ClusterCreated(cluster_id="c"),
        CreateTopic(name="é", topic_id="a" * 32, configs={"x": "1"}),
        TopicConfig(topic_id="a" * 32, configs={"x": None}),
    ),
)


def test_every_flipped_bit_and_every_cut_of_an_entry_is_found() -> None:
    body = encode_entry(ENTRY)
    assert decode_entry("k", body) == ENTRY
    assert json.loads(body)["writer"] == "w"
    for bit in range(len(body) * 8):
        spoiled = bytearray(body)
        spoiled[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptObject, match=r"object k is corrupt at byte \d+"):
            decode_entry("k", bytes(spoiled))
    for size in range(len(body)):
        with pytest.raises(CorruptObject):
            decode_entry("k", body[:size])


@given(st.binary(max_size=60))
def test_garbage_is_a_corrupt_entry(body: bytes) -> None:
    with pytest.raises((CorruptObject, UnsupportedFormat)):
        decode_entry("k", body)


async def test_a_damaged_entry_stops_its_readers_by_name() -> None:
    store = MemoryStore()
    await grow(await open_log(store), 5)
    spoil(store, entry_key(3))
    with pytest.raises(CorruptObject, match=entry_key(3)):
        await open_log(store, "second")


async def test_what_no_reader_could_read_is_refused_before_it_is_put() -> None:
    store = MemoryStore()
    log = await open_log(store)
    await grow(log, 1)
    before = dict(store.objects)
    for record in (
        ProducerIdBlock(node_id=2**63, start=1, count=1),
        CreateTopic(name="\ud800", topic_id="a" * 32),
        CreateTopic(name=5, topic_id="a" * 32),  # type: ignore[arg-type]
    ):
        with pytest.raises(EntryRejected):
            await log.commit([record])
    assert store.objects == before


async def test_a_plan_that_fails_fails_alone() -> None:
    log = await open_log(MemoryStore())

    def broken(state: MetadataImage) -> list[Record]:
        raise ZeroDivisionError

    results = await asyncio.gather(
        log.create_cluster("c"), log.commit_with(broken), grow(log, 1), return_exceptions=True
    )
    assert isinstance(results[1], ZeroDivisionError)
    assert log.state.next_producer_id == 1


async def test_the_fate_of_an_entry_that_nobody_remembers_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lakehead.storage.metadata.state.WRITERS_MAX", 5)
    store = MemoryStore()
    log = await open_log(store)
    await grow(log, 3)
    sleeper = await open_log(store, "sleeper")
    for number in range(8):
        await grow(await open_log(store, f"writer {number}"), 4)
    await grow(await open_log(store, "last"), 3 * EVERY)
    with pytest.raises(OutcomeUnknown, match="no longer in the log"):
        await grow(sleeper, 1)
    await grow(sleeper, 1)
    assert sleeper.state.next_producer_id == 3 + 8 * 4 + 3 * EVERY + 1


async def test_callers_at_once_share_entries() -> None:
    slow = FaultProfile(latency_s_max=0.002)
    store = FaultyStore(MemoryStore(), rng=random.Random(1), profile=slow)
    log = await MetadataLog.open(store, writer_id="w", clock=SystemClock(), rng=random.Random(1))
    await log.create_cluster("c")
    await asyncio.gather(
        *(log.commit([CreateTopic(name=f"t{n}", topic_id=f"{n:032x}")]) for n in range(500))
    )
    assert len(log.state.topics) == 500
    assert log.stats.entries_put < 5
    await asyncio.gather(
        *(log.commit([TopicConfig(topic_id=f"{n % 500:032x}", configs={})]) for n in range(9000))
    )
    assert 5 <= log.stats.entries_put < 12  # full entries do not grow without end


def test_an_idle_cluster_makes_a_bounded_number_of_requests() -> None:
    store = CountedStore()
    hours = 24

    async def idle() -> None:
        clock, rng = LoopClock(asyncio.get_running_loop()), random.Random(1)
        log = await MetadataLog.open(store, writer_id="w", clock=clock, rng=rng)
        await grow(log, 2 * EVERY)
        follower = MetadataFollower(log, poll_s=1.0, poll_max_s=5.0, checkpoint_entries=EVERY)
        store.requests.clear()
        try:
            async with asyncio.timeout(hours * 3600):
                await follower.run()
        except TimeoutError:
            pass

    simulate(idle, seed=1)
    assert store.requests["list"] == store.requests["create"] == 0
    polls = hours * 3600 / 5
    assert polls * 0.99 < store.requests["get log"] < polls * 1.01
    assert store.requests["get boundary"] < polls * 0.26
    assert set(store.requests) == {"get log", "get boundary"}


def test_a_nudge_is_quicker_than_the_poll() -> None:
    async def world() -> None:
        store, clock = MemoryStore(), LoopClock(asyncio.get_running_loop())
        one, two = [
            await MetadataLog.open(store, writer_id=name, clock=clock, rng=random.Random(name))
            for name in "ab"
        ]
        follower = MetadataFollower(two, poll_s=60.0, poll_max_s=60.0, checkpoint_entries=EVERY)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(follower.run())
            await asyncio.sleep(1)
            await one.create_cluster("c")
            follower.nudge()
            await asyncio.sleep(0.001)
            assert two.state == one.state
            await grow(one, 1)
            await asyncio.sleep(61)
            assert two.state == one.state
            task.cancel()

    simulate(world, seed=1)


class WithoutCheckpoints(MemoryStore):
    """A store that takes no checkpoint for an hour."""

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        if key.startswith("meta/checkpoint/"):
            await asyncio.sleep(3600)
        await super().create(key, pieces)


def test_a_node_follows_while_it_writes_a_checkpoint() -> None:
    async def world() -> None:
        store, clock = WithoutCheckpoints(), LoopClock(asyncio.get_running_loop())
        one, two = [
            await MetadataLog.open(store, writer_id=name, clock=clock, rng=random.Random(name))
            for name in "ab"
        ]
        await one.create_cluster("c")
        await one.maintain(EVERY)
        follower = MetadataFollower(two, poll_s=1.0, poll_max_s=1.0, checkpoint_entries=EVERY)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(follower.run())
            for _ in range(3):
                await grow(one, 2 * EVERY, every=1000)
                await asyncio.sleep(10)
                assert two.state == one.state
            assert two.stats.checkpoints_written == 0
            await asyncio.sleep(4000)
            assert two.stats.checkpoints_written == 1
            assert (await open_log(store, "c")).state == one.state
            task.cancel()

    simulate(world, seed=1)


@pytest.mark.parametrize(
    ("entries", "more", "wanted"),
    [(1, 0, 0), (1, 2, 3), (2, 3, 99), (40, 1, 1), (33, 3, 36), (64, 0, 80)],
)
def test_a_nudge_with_a_number_reads_what_is_below_it_and_nothing_else(
    entries: int, more: int, wanted: int
) -> None:
    """Numbers that are known already cost nothing, and those that are not there yet little."""

    async def world() -> None:
        store, clock = CountedStore(), LoopClock(asyncio.get_running_loop())
        one, two = [
            await MetadataLog.open(store, writer_id=name, clock=clock, rng=random.Random(name))
            for name in "ab"
        ]
        await one.create_cluster("c")
        await grow(one, entries + more, every=1000)
        follower = MetadataFollower(two, poll_s=600.0, poll_max_s=600.0, checkpoint_entries=1000)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(follower.run())
            await asyncio.sleep(1)
            store.requests.clear()
            follower.nudge(entries)
            await asyncio.sleep(1)
            assert two.state.next_entry == entries
            assert store.requests["get log"] == entries
            assert store.requests.total() == entries + -(-entries // 32)  # and the boundary
            follower.nudge(entries)
            await asyncio.sleep(1)
            assert store.requests["get log"] == entries
            follower.nudge(wanted)
            await asyncio.sleep(1)
            last = one.state.next_entry
            assert two.state.next_entry == max(entries, min(wanted, last) if wanted else last)
            await asyncio.sleep(600)
            assert two.state == one.state
            task.cancel()

    simulate(world, seed=1)


def test_names_under_meta_are_exact() -> None:
    assert entry_number(entry_key(7)) == 7
    assert entry_number("meta/log/7.json") is None
    assert Boundary.of("meta/boundary/7-x") is None
    boundary = Boundary(number=7, nonce="x")
    assert Boundary.of(boundary.key) == boundary
    found = [
        ObjectMeta(key=key, size=1, modified_ms=0)
        for key in (boundary.key, checkpoint_key(7), entry_key(8), "meta/log/x", "meta/other")
    ]
    assert Listing.of(found) == Listing(boundaries=(boundary,), checkpoints=(7,), entries=(8,))
