"""Garbage: what nothing needs goes, exactly that and nothing else, whatever is killed when."""

import asyncio
import contextlib
import random
import tracemalloc
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

import pytest

from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import EntryRejected, ObjectNotFound, StoreUnavailable
from lakehead.storage.format.object_names import DataName
from lakehead.storage.garbage import (
    GarbageCollector,
    SweepTimes,
    Verdict,
    check_leaks,
    find_garbage,
    judge,
    perform,
)
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import (
    CommitObjects,
    CommittedObject,
    DeleteTopic,
    FenceNode,
    RegisterNode,
)
from lakehead.storage.metadata.rules import apply_records
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.object_store.faulty import FaultProfile, FaultyStore
from lakehead.storage.object_store.protocol import ObjectMeta
from lakehead.storage.rebuild.run import publish
from lakehead.storage.stream.settings import StorageSettings
from lakehead.storage.wal import MemoryWal
from lakehead.storage.wal.object.names import SEAL_SIZE, wal_key
from tests.unit.test_stream_engine import TOPIC, append, running

SETTINGS = StorageSettings(upload_age_s=3600, stream_object_size=2048, cache_size=1 << 20)
AT_ONCE = SweepTimes(grace_ms=0, margin_ms=-1)


class SteppedClock:
    """Time that tests move, each kind by itself."""

    def __init__(self) -> None:
        self.wall_ms = 1_700_000_000_000
        self.seconds = 0.0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic(self) -> float:
        return self.seconds


async def open_log(store: MemoryStore) -> MetadataLog:
    return await MetadataLog.open(
        store, writer_id="test", clock=SystemClock(), rng=random.Random(len(store.objects))
    )


def data_keys(store: MemoryStore) -> list[str]:
    return [key for key in store.objects if key.startswith("data/")]


async def cluster_with_deleted_topic() -> MemoryStore:
    store = MemoryStore()
    async with running(store, MemoryWal(), partitions=3, settings=SETTINGS) as (engine, streams):
        for stream in streams:
            await append(stream, size=1500)
            await append(stream, size=1500)
        await engine.upload_now()
        await engine.metadata.commit([DeleteTopic(topic_id=TOPIC)])
        for stream in streams:
            engine.close_deleted(stream)
    return store


def collector(store: MemoryStore, log: MetadataLog, clock: SteppedClock) -> GarbageCollector:
    return GarbageCollector(store, log, StorageSettings(), clock, node_id=0)


async def test_objects_of_a_deleted_topic_go_after_the_grace_and_not_before() -> None:
    store = await cluster_with_deleted_topic()
    log, clock = await open_log(store), SteppedClock()
    assert len(data_keys(store)) == 3
    garbage = collector(store, log, clock)
    await garbage.turn()
    clock.seconds = 599
    await garbage.turn()
    assert len(data_keys(store)) == 3
    assert garbage.stats.waiting == 3
    clock.seconds = 601
    await garbage.turn()
    assert data_keys(store) == []
    assert not log.state.objects
    assert (await check_leaks(store, log)).is_clean
    assert (garbage.stats.deleted_objects, garbage.stats.waiting) == (3, 0)


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
async def test_a_wall_clock_that_jumps_neither_hurries_nor_stops_garbage(jump_ms: int) -> None:
    store = await cluster_with_deleted_topic()
    log, clock = await open_log(store), SteppedClock()
    garbage = collector(store, log, clock)
    await garbage.turn()
    clock.wall_ms += jump_ms
    await garbage.turn()
    assert len(data_keys(store)) == 3
    clock.seconds = 601
    await garbage.turn()
    assert data_keys(store) == []


async def test_a_node_that_was_paused_deletes_nothing_that_newer_metadata_name() -> None:
    """A rebuild of the catalog, or a promotion, goes on from an earlier state, in which the deleted
    topic was there. The node slept meanwhile, and its grace period is over when it wakes.
    """
    store = MemoryStore()
    async with running(store, MemoryWal(), settings=SETTINGS) as (engine, [stream]):
        await append(stream)
        await engine.upload_now()
        earlier = engine.metadata.state
        await engine.metadata.commit([DeleteTopic(topic_id=TOPIC)])
        engine.close_deleted(stream)
    log, clock = await open_log(store), SteppedClock()
    garbage = collector(store, log, clock)
    await garbage.turn()
    assert garbage.stats.waiting == 1
    rebuilt = replace(earlier, next_entry=log.state.next_entry + 1000)
    await publish(store, rebuilt, random.Random(1))
    clock.seconds = 7 * 3600
    await garbage.turn()
    assert len(data_keys(store)) == 1
    assert log.state == rebuilt
    assert (await check_leaks(store, log)).missing == ()


async def test_the_objects_of_a_large_topic_leave_turns_to_others() -> None:
    """A node that had a thousand objects to look at did nothing else meanwhile."""
    objects = tuple(
        CommittedObject(key=DataName(0, 0, number).key, kind="so", size=1, created_ms=0, ranges=())
        for number in range(5_000)
    )
    register = RegisterNode(node_id=0, epoch=0, incarnation="i", host="h", port=1)
    log, clock, turns = await open_log(MemoryStore()), SteppedClock(), 0
    await log.commit([register, CommitObjects(node_id=0, node_epoch=0, objects=objects)])
    assert len(log.state.unreferenced) == 5_000

    class Store(MemoryStore):
        turns_before = 0

        async def delete(self, keys: Sequence[str]) -> None:
            self.turns_before = self.turns_before or turns
            await super().delete(keys)

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    store = Store({one.key: b"x" for one in objects})
    garbage = collector(store, log, clock)
    await garbage.turn()
    clock.seconds = 600
    task = asyncio.ensure_future(others())
    before = turns
    await find_garbage(store, log, SystemClock(), SweepTimes())
    assert turns - before > 10
    turns = 0
    await garbage.turn()
    task.cancel()
    assert garbage.stats.deleted_objects == 5_000
    assert store.turns_before > 10


class ManyNames(MemoryStore):
    """Lists very many names, each of them twice."""

    def __init__(self, objects: dict[str, bytes], names: Sequence[str]) -> None:
        super().__init__(objects)
        self.names = sorted(names)
        self.pages = 0

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Sequence[ObjectMeta]:
        if prefix != "data/":
            return await super().list(prefix, start_after=start_after, limit=limit)
        assert limit is not None
        self.pages += 1
        first = bisect_right(self.names, start_after)
        return [
            ObjectMeta(key=key, size=1, modified_ms=0)
            for key in self.names[first : first + limit // 2]
            for _ in range(2)
        ]

    async def delete(self, keys: Sequence[str]) -> None:
        gone = set(keys)
        self.names = [name for name in self.names if name not in gone]
        await super().delete(keys)


async def test_a_sweep_of_very_many_names_has_a_page_of_them_in_memory() -> None:
    """Ten thousand names take 2.5 MB; and what a store lists twice goes once."""
    store = MemoryStore()
    async with running(store, MemoryWal(), settings=SETTINGS) as (engine, _):
        await engine.metadata.commit([FenceNode(node_id=0, epoch=0)])
        live = RegisterNode(node_id=1, epoch=0, incarnation="i", host="h", port=1)
        await engine.metadata.commit([live])
    orphans = [DataName(0, 0, number).key for number in range(250)]
    others = [DataName(1, 0, number).key for number in range(10_000)]
    many = ManyNames(store.objects, [*orphans, *others, "data/of-a-user.txt"])
    log, clock = await open_log(many), SteppedClock()
    garbage = GarbageCollector(many, log, StorageSettings(), clock, node_id=1)
    clock.seconds = 7 * 3600
    tracemalloc.start()
    try:
        await garbage.turn()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert garbage.stats.deleted_objects == len(orphans)
    assert many.names == sorted([*others, "data/of-a-user.txt"])
    assert many.pages > 20
    assert peak < 1024 * 1024


class FailingStore(MemoryStore):
    """Fails the n-th write or deletion, before or after its effect."""

    def __init__(self, objects: dict[str, bytes], fail_at: int, *, after: bool) -> None:
        super().__init__(objects)
        self.left = fail_at
        self.after = after

    async def create(self, key: str, pieces) -> None:  # type: ignore[no-untyped-def]
        self._step(before=True)
        await super().create(key, pieces)
        self._step(before=False)

    async def delete(self, keys) -> None:  # type: ignore[no-untyped-def]
        self._step(before=True)
        await super().delete(keys[: len(keys) // 2] if self.left == 0 else keys)
        self._step(before=False)

    def _step(self, *, before: bool) -> None:
        if before != self.after:
            self.left -= 1
            if self.left == 0:
                raise StoreUnavailable("killed here")


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("fail_at", [1, 2])
async def test_a_sweep_killed_between_any_two_steps_leaves_nothing_wrong(
    fail_at: int, after: bool
) -> None:
    store = await cluster_with_deleted_topic()
    broken = FailingStore(store.objects, fail_at, after=after)
    log = await open_log(broken)
    plan = await find_garbage(broken, log, SystemClock(), AT_ONCE)
    with pytest.raises(StoreUnavailable):
        await perform(plan, broken, log)
    log = await open_log(store)
    report = await check_leaks(store, log)
    assert not report.missing
    await perform(await find_garbage(store, log, SystemClock(), AT_ONCE), store, log)
    assert not log.state.objects
    assert (await check_leaks(store, log)).is_clean


async def test_an_orphan_of_a_crash_between_put_and_commit_goes_once_its_epoch_has_ended() -> None:
    store = MemoryStore()
    async with running(store, wal := MemoryWal(), settings=SETTINGS, clean=False) as (_, streams):
        await append(streams[0])
        orphan = DataName(0, 0, 7).key
        await store.create(orphan, [b"never committed"])
        log = await open_log(store)
        assert (await find_garbage(store, log, SystemClock(), AT_ONCE)).doomed == ()
        assert (await check_leaks(store, log)).uploading == (orphan,)
    async with running(store, wal.reopen(), settings=SETTINGS) as (engine, _):
        log = engine.metadata
        assert (await check_leaks(store, log)).leaked == (orphan,)
        young = SweepTimes(margin_ms=1 << 62)
        assert (await find_garbage(store, log, SystemClock(), young)).doomed == ()
        plan = await find_garbage(store, log, SystemClock(), AT_ONCE)
        assert [(one.key, one.verdict) for one in plan.doomed] == [(orphan, Verdict.ORPHAN)]
        await perform(plan, store, log)
        assert orphan not in store.objects
        assert (await check_leaks(store, log)).is_clean


async def test_what_is_swept_as_an_orphan_can_never_be_committed() -> None:
    store = MemoryStore()
    async with running(store, MemoryWal(), settings=SETTINGS, clean=False) as (engine, _):
        await engine.metadata.commit([FenceNode(node_id=0, epoch=0)])
        assert judge(engine.metadata.state, DataName(0, 0, 1).key, 1) is Verdict.ORPHAN
        with pytest.raises(EntryRejected):
            await engine.metadata.commit([CommitObjects(node_id=0, node_epoch=0, objects=())])


async def test_a_referenced_object_that_is_gone_is_found_missing() -> None:
    store = MemoryStore()
    async with running(store, MemoryWal(), settings=SETTINGS) as (engine, streams):
        await append(streams[0])
        await engine.upload_now()
        (key,) = data_keys(store)
        del store.objects[key]
        assert (await check_leaks(store, engine.metadata)).missing == (key,)


async def test_a_reader_of_an_older_view_finds_its_object_within_the_grace() -> None:
    store = MemoryStore()
    async with running(store, MemoryWal(), settings=SETTINGS) as (engine, streams):
        await append(streams[0])
        await engine.upload_now()
        view = engine.metadata.state.streams[0].extents
        await engine.metadata.commit([DeleteTopic(topic_id=TOPIC)])
        await engine.garbage.turn()
        assert await engine.reader.fetch(0, lambda: view, 0, 100)
        plan = await find_garbage(store, engine.metadata, SystemClock(), AT_ONCE)
        await perform(plan, store, engine.metadata)
        engine.reader.indexes.drop(view[0].object_key)
        with pytest.raises(ObjectNotFound):
            await engine.reader.fetch(0, lambda: view, 0, 100)


def test_wal_objects_below_the_floor_go_and_tombstones_stay() -> None:
    def node(epoch: int) -> RegisterNode:
        return RegisterNode(node_id=1, epoch=epoch, incarnation="i", host="h", port=1)

    floor = CommitObjects(node_id=1, node_epoch=1, objects=(), wal_epoch=1, wal_floor=5)
    state = apply_records(MetadataImage(), [node(0), node(1), floor], 0)
    wanted = {
        (0, 900): Verdict.OLD_WAL,
        (1, 4): Verdict.OLD_WAL,
        (1, 5): Verdict.WAL,
        (2, 0): Verdict.WAL,
    }
    for (epoch, number), verdict in wanted.items():
        assert judge(state, wal_key(1, epoch, number), 1000) is verdict
    assert judge(state, wal_key(1, 0, 3), SEAL_SIZE) is Verdict.TOMBSTONE


@pytest.mark.parametrize(
    "key", ["data/00/x", "data/zz/1-1-1", "wal/1/2/3", "data/00/1-1-1", DataName(9, 0, 0).key]
)
def test_names_that_nobody_gave_are_left_alone(key: str) -> None:
    state = apply_records(
        MetadataImage(), [RegisterNode(node_id=1, epoch=0, incarnation="i", host="h", port=1)], 0
    )
    assert judge(state, key, 10) is Verdict.STRANGE


async def test_a_running_node_collects_its_garbage_by_itself() -> None:
    store = MemoryStore()
    quick = StorageSettings(
        upload_age_s=3600, garbage_grace_s=0.02, garbage_interval_s=0.01, garbage_sweep_s=3600
    )
    async with running(store, MemoryWal(), settings=quick) as (engine, streams):
        await append(streams[0])
        await engine.upload_now()
        await engine.metadata.commit([DeleteTopic(topic_id=TOPIC)])
        engine.close_deleted(streams[0])
        async with asyncio.timeout(30):
            while data_keys(store):  # noqa: ASYNC110 - another task's work
                await asyncio.sleep(0.01)


async def test_a_store_that_throttles_deletions_is_drained_all_the_same() -> None:
    inner = await cluster_with_deleted_topic()
    throttled = FaultyStore(inner, rng=random.Random(5), profile=FaultProfile(unavailable=0.9))
    log, left = await open_log(inner), [len(data_keys(inner))]
    at_once = StorageSettings(garbage_grace_s=0)
    garbage = GarbageCollector(throttled, log, at_once, SteppedClock(), node_id=0)
    for _ in range(50):
        with contextlib.suppress(StoreUnavailable):
            await garbage.turn()
        left.append(len(data_keys(inner)))
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0
    assert throttled.faults > 0
    assert not log.state.objects
