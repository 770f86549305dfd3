"""Engines over the object WAL: what a crash left is committed by reference, by node or taker."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import EntryRejected, Fenced, SettingsError, WalCorrupted, WrongLog
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import DeleteTopic, FenceNode, RetireNode
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import MemoryStore, ObjectStore
from lakehead.storage.object_store.faulty import FaultProfile, FaultyStore
from lakehead.storage.object_store.retrying import RetryingStore
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.recovery import RecoveringNode, take_objects, uncommitted
from lakehead.storage.stream.settings import NodeIdentity, StorageSettings
from lakehead.storage.stream.stream import Stream
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal import MemoryWal, ObjectWal, WalOwner, WriteAheadLog, open_wal
from lakehead.storage.wal.object import LogSealer
from lakehead.storage.wal.protocol import SealedObject, SealedRange
from tests.support.object_wal_tools import QUICK, numbers
from tests.unit.test_stream_engine import append, create_topic, read_all

LAZY = StorageSettings(upload_size=1 << 20, upload_age_s=3600)
EAGER = StorageSettings(
    upload_size=4096, upload_age_s=3600, stream_object_size=2048, cache_size=8192
)
Open = Callable[[WalOwner], WriteAheadLog]


def in_cluster(owner: WalOwner) -> ObjectWal:
    return ObjectWal(owner.store, owner, QUICK, are_shared=True)


@asynccontextmanager
async def running(
    store: ObjectStore,
    open_log: Open = in_cluster,
    *,
    settings: StorageSettings = LAZY,
    node_id: int = 0,
    partitions: int = 2,
    clean: bool = False,
    seed: int = 0,
) -> AsyncIterator[tuple[StreamEngine, list[Stream]]]:
    def crashed(name: str, error: BaseException) -> None:
        engine.fail(RuntimeError(f"{name}: {error!r}"))

    async def opener(owner: WalOwner) -> WriteAheadLog:
        return open_log(owner)

    scope = TaskScope(crashed)
    engine = await StreamEngine.open(
        store=store,
        open_wal=opener,
        node=NodeIdentity(node_id=node_id, host="h", port=1),
        clock=SystemClock(),
        rng=random.Random(seed),
        settings=settings,
        scope=scope,
    )
    try:
        streams: list[Stream] = []
        if partitions:
            state = await engine.metadata.commit_with(create_topic(partitions))
            streams = await engine.open_streams(list(state.topics["t"].partitions))
        yield engine, streams
        if clean:
            await engine.close()
    finally:
        await scope.close()


async def state_of(store: ObjectStore) -> MetadataImage:
    return (await metadata_of(store)).state


async def metadata_of(store: ObjectStore) -> MetadataLog:
    return await MetadataLog.open(
        store, writer_id="test", clock=SystemClock(), rng=random.Random(77)
    )


async def test_a_crash_is_recovered_by_one_entry_that_copies_nothing() -> None:
    store = MemoryStore()
    async with running(store) as (_, streams):
        written = [[await append(s) for _ in range(20)] for s in streams]
        entries = (await state_of(store)).next_entry
    left = {key for key in store.objects if key.startswith("wal/")}
    async with running(store, seed=1) as (engine, streams):
        assert [await read_all(s) for s in streams] == written
        state = engine.metadata.state
        assert {known.kind for known in state.objects.values()} == {"wal"}
        assert set(state.objects) == left
        assert (state.nodes[0].wal_epoch, state.nodes[0].wal_floor) == (1, 0)
        assert state.next_entry == entries + 3  # registration, the commit, the opening of streams
    assert not [key for key in store.objects if key.startswith("data/")]
    assert numbers(store, tombstones=True) == [(0, len(left))]


async def test_a_restart_of_a_new_node_writes_nothing_about_its_log() -> None:
    store = MemoryStore()
    async with running(store) as (engine, _):
        assert engine.metadata.state.next_entry == 4
    assert not [key for key in store.objects if key.startswith("wal/")]


async def test_uploads_move_the_floor_and_then_delete_what_is_below() -> None:
    """A WAL object goes only when the metadata says where its data is now."""
    store = MemoryStore()
    deleted_before_commit: list[str] = []

    class Watching(MemoryStore):
        async def delete(self, keys) -> None:  # type: ignore[no-untyped-def]
            state = await state_of(store)
            floor = state.nodes[0].wal_floor
            deleted_before_commit.extend(k for k in keys if int(k.rsplit("/", 1)[1]) >= floor)
            await super().delete(keys)

    async with running(Watching(store.objects), settings=EAGER, clean=True) as (engine, streams):
        written = [await append(streams[0]) for _ in range(60)]
        await engine.upload_now()
        state = await state_of(store)
        assert state.nodes[0].wal_floor == 60
        assert state.streams[streams[0].stream_id].end_offset == 180
    assert not deleted_before_commit
    assert numbers(store, tombstones=False) == []
    async with running(store, seed=1) as (_, streams):
        assert await read_all(streams[0]) == written


async def test_what_was_uploaded_before_a_crash_is_not_committed_twice() -> None:
    store = MemoryStore()
    written: list[int] = []
    for life in range(4):
        async with running(store, settings=EAGER, seed=life) as (engine, streams):
            assert await read_all(streams[0]) == written
            written += [await append(streams[0]) for _ in range(8)]
            if life % 2:
                await engine.upload_now()
            written += [await append(streams[0]) for _ in range(3)]
    state = await state_of(store)
    assert state.nodes[0].wal_epoch == 3
    assert {known.kind for known in state.objects.values()} >= {"wal", "so"}
    async with running(store, seed=9) as (_, streams):
        assert await read_all(streams[0]) == written


async def fenced(store: ObjectStore, node_id: int) -> MetadataLog:
    metadata = await metadata_of(store)
    epoch = metadata.state.nodes[node_id].epoch
    await metadata.commit([FenceNode(node_id=node_id, epoch=epoch)])
    return metadata


def sealer_of(store: ObjectStore, metadata: MetadataLog, node_id: int) -> LogSealer:
    return LogSealer(
        store,
        cluster_id=metadata.state.cluster_id,
        node_id=node_id,
        sealer_id=1,
        incarnation="taker",
        clock=SystemClock(),
        rng=random.Random(5),
    )


async def test_another_node_takes_over_what_a_fenced_one_left() -> None:
    store = MemoryStore()
    async with running(store) as (_, streams):
        written = [[await append(s) for _ in range(7)] for s in streams]
    async with running(store, node_id=1, seed=1, partitions=0) as (engine, _):
        pass
    async with running(store, node_id=2, seed=2, partitions=0) as (engine, _):
        taker = RecoveringNode(2, engine.node_epoch)
        metadata = engine.metadata
        log = sealer_of(store, metadata, 0)
        with pytest.raises(EntryRejected, match="is not a fenced one"):
            await take_objects(log, metadata, node_id=0, last_epoch=0, taker=taker)
        await fenced(store, 0)
        await metadata.refresh()
        assert await take_objects(log, metadata, node_id=0, last_epoch=0, taker=taker) == 14
        assert await take_objects(log, metadata, node_id=0, last_epoch=0, taker=taker) == 0
        taken = await engine.open_streams([s.stream_id for s in streams])
        assert [await read_all(s) for s in taken] == written
        assert [s.epoch for s in taken] == [1, 1]
    async with running(store, seed=3, partitions=0) as (engine, _):
        assert engine.node_epoch == 1
        assert engine.metadata.state.nodes[0].wal_epoch == 1


async def test_takers_that_race_commit_once() -> None:
    store = MemoryStore()
    async with running(store) as (_, streams):
        written = [await append(streams[0]) for _ in range(9)]
    profile = FaultProfile(
        unavailable=0.05, lost_response=0.1, lost_request=0.1, latency_s_max=0.002
    )
    async with (
        running(store, node_id=1, seed=1, partitions=0) as (first, _),
        running(store, node_id=2, seed=2, partitions=0) as (second, _),
    ):
        await fenced(store, 0)

        async def take(engine: StreamEngine, seed: int) -> int:
            faulty = FaultyStore(store, rng=random.Random(seed), profile=profile)
            await engine.metadata.refresh()
            return await take_objects(
                sealer_of(RetryingStore(faulty, rng=random.Random(seed)), engine.metadata, 0),
                engine.metadata,
                node_id=0,
                last_epoch=0,
                taker=RecoveringNode(engine.node.node_id, engine.node_epoch),
            )

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(take(first, 8)), group.create_task(take(second, 9))]
        assert sorted(task.result() for task in tasks) == [0, 9]
        (stream,) = await first.open_streams([streams[0].stream_id])
        assert await read_all(stream) == written


async def test_a_fenced_node_commits_nothing_of_its_own_any_more() -> None:
    """A node that goes on with an outdated epoch."""
    store = MemoryStore()
    async with running(store, settings=EAGER) as (engine, streams):
        await append(streams[0])
        await fenced(store, 0)
        with pytest.raises((EntryRejected, Fenced)):
            await engine.upload_now()
    assert not (await state_of(store)).objects


async def test_a_log_in_another_store_is_recovered_by_uploading_it() -> None:
    store, other = MemoryStore(), MemoryStore()

    def elsewhere(owner: WalOwner) -> ObjectWal:
        return ObjectWal(MemoryStore(other.objects), owner, QUICK, are_shared=False)

    written: list[list[int]] = [[], []]
    for life in range(3):
        async with running(store, elsewhere, seed=life) as (_, streams):
            assert [await read_all(s) for s in streams] == written
            for stream, bases in zip(streams, written, strict=True):
                bases += [await append(stream) for _ in range(6)]
    async with running(store, elsewhere, seed=7, clean=True) as (engine, streams):
        assert [await read_all(s) for s in streams] == written
        assert {known.kind for known in engine.metadata.state.objects.values()} <= {"so", "sso"}
    assert numbers(other, tombstones=False) == []
    assert [epoch for epoch, _ in numbers(other, tombstones=True)] == [0, 1, 2]
    assert not [key for key in store.objects if key.startswith("wal/")]


async def test_a_node_that_is_given_another_log_after_a_crash_finds_what_it_left() -> None:
    store, other = MemoryStore(), MemoryStore()

    def elsewhere(owner: WalOwner) -> ObjectWal:
        return ObjectWal(MemoryStore(other.objects), owner, QUICK, are_shared=False)

    def in_memory(_: WalOwner) -> MemoryWal:
        return MemoryWal()

    written: list[int] = []
    logs: list[Open] = [in_cluster, in_memory, in_cluster, elsewhere, elsewhere]
    for life, log in enumerate(logs):
        clean = log is in_memory
        async with running(store, log, seed=life, clean=clean) as (engine, streams):
            assert await read_all(streams[0]) == written
            written += [await append(streams[0]) for _ in range(5)]
    with pytest.raises(WrongLog):  # out of reach: it was not stopped cleanly
        async with running(store, in_memory, seed=9):
            pass
    async with running(store, elsewhere, seed=10, clean=True) as (engine, streams):
        assert await read_all(streams[0]) == written
        assert engine.metadata.state.nodes[0].wal_epoch == 5


async def test_a_deleted_topic_leaves_no_reference_behind() -> None:
    store = MemoryStore()
    async with running(store) as (engine, streams):
        await append(streams[0])
        topic = engine.metadata.state.topics["t"]
        await append(streams[1])
        await engine.metadata.commit([DeleteTopic(topic_id=topic.topic_id)])
    async with running(store, seed=1, partitions=0) as (engine, _):
        assert not engine.metadata.state.objects
    assert numbers(store, tombstones=False) == []


async def test_a_node_id_that_comes_back_after_its_retirement_uses_no_name_twice() -> None:
    store = MemoryStore()
    async with running(store, clean=True) as (engine, streams):
        await append(streams[0])
    metadata = await fenced(store, 0)
    await metadata.commit([RetireNode(node_id=0)])
    async with running(store, seed=1) as (engine, streams):
        assert engine.node_epoch == 1
        await append(streams[0])
    assert numbers(store, tombstones=False) == [(1, 0)]


def test_data_that_is_missing_between_two_objects_is_an_error_not_a_gap() -> None:
    span = SealedRange(stream_id=0, epoch=0, start_offset=5, end_offset=9, max_timestamp=0, size=10)

    async def world() -> None:
        store = MemoryStore()
        async with running(store) as (engine, streams):
            await append(streams[0])
            span_of_it = span._replace(stream_id=streams[0].stream_id)
            item = SealedObject("wal/0/x", 100, 0, (span_of_it,))
            with pytest.raises(WalCorrupted, match=r"goes on at offset 5, but .* ends at 0"):
                uncommitted([item], engine.metadata.state, 0)

    asyncio.run(world())


async def test_another_clusters_log_in_the_same_place_is_refused() -> None:
    store, other = MemoryStore(), MemoryStore()

    def elsewhere(owner: WalOwner) -> ObjectWal:
        return ObjectWal(MemoryStore(other.objects), owner, QUICK, are_shared=False)

    async with running(store, elsewhere) as (_, streams):
        await append(streams[0])
    second = MemoryStore()
    with pytest.raises(SettingsError, match="of another cluster"):
        async with running(second, elsewhere, seed=5):
            pass
    assert not (await state_of(second)).nodes
    for mark in [key for key in other.objects if "/log/" in key]:
        del other.objects[mark]
    async with running(second, elsewhere, seed=4) as (engine, streams):
        batch = append(streams[0])
        with pytest.raises(Exception, match="of cluster"):
            await batch
        assert "of cluster" in str(await engine.wait_failed())


async def test_addresses() -> None:
    store = MemoryStore()
    async with running(store) as (engine, _):
        owner = WalOwner(
            cluster_id="c",
            node_id=0,
            incarnation="i",
            store=store,
            describe=lambda _: pytest.fail("nothing is appended"),
            clock=SystemClock(),
            rng=random.Random(1),
            scope=TaskScope(lambda name, error: None),
        )

        async def opened(uri: str) -> ObjectWal:
            wal = await open_wal(uri, rng=random.Random(1), owner=owner)
            assert isinstance(wal, ObjectWal)
            return wal

        assert (await opened("object:")).are_shared
        assert (await opened("object:?size=2GiB&linger_ms=20")).capacity == 2 << 30
        assert not (await opened("object:memory:?budget=0")).are_shared
        for uri, message in {
            "object:?linger=3": "no option linger",
            "object:?in_flight=0": "at least 1",
            "object:?budget=free": "budget=free",
            "object:?size=12": "size=12",
        }.items():
            with pytest.raises(SettingsError, match=message):
                await opened(uri)
        with pytest.raises(SettingsError, match="engine"):
            await open_wal("object:", rng=random.Random(1))
        assert engine.metadata.state.nodes[0].epoch == 0
