"""Ways in which others lost or mixed up acknowledged data, tried on the stream engine."""

import asyncio
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.storage.errors import OffsetOutOfRange
from lakehead.storage.format.object_writer import ObjectWriter
from lakehead.storage.format.record_batch import read_header
from lakehead.storage.format.stream_object import StreamInfo, read_index
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import CreateStream, CreateTopic, DeleteTopic
from lakehead.storage.object_store import Buffer, MemoryStore
from lakehead.storage.object_store.faulty import FaultProfile, FaultyStore
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.settings import NodeIdentity, StorageSettings
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal import MemoryWal
from tests.simulation.loop import LoopClock, simulate
from tests.support.repetitions import examples
from tests.support.wal_tools import opener
from tests.unit.test_stream_engine import TOPIC, append, create_topic, read_all, running

SMALL = StorageSettings(
    upload_size=4096,
    upload_age_s=0.3,
    stream_object_size=2048,
    object_size_max=3000,
    cache_size=16 * 1024,
)


class CheckedWal(MemoryWal):
    """At each trim, everything that is freed must be in committed objects."""

    metadata: MetadataLog
    trims = 0

    async def trim(self, position: int) -> None:
        self.trims += 1
        for record in self._records:
            if record.end_position <= position:
                stream = self.metadata.state.streams[record.stream_id]
                assert record.base_offset + record.count <= stream.end_offset
        await super().trim(position)


@pytest.mark.parametrize("seed", range(8))
def test_the_wal_is_never_trimmed_past_what_is_in_committed_objects(seed: int) -> None:
    async def life() -> int:
        rng = random.Random(seed)
        wal = CheckedWal(capacity=256 * 1024)
        crashes: list[str] = []
        scope = TaskScope(lambda name, error: crashes.append(f"{name}: {error!r}"))
        profile = FaultProfile(unavailable=0.1, lost_response=0.1, latency_s_max=1.0)
        engine = await StreamEngine.open(
            store=FaultyStore(MemoryStore(), rng=rng, profile=profile),
            open_wal=opener(wal),
            node=NodeIdentity(node_id=0, host="h", port=1),
            clock=LoopClock(asyncio.get_running_loop()),
            rng=rng,
            settings=SMALL,
            scope=scope,
        )
        wal.metadata = engine.metadata
        await engine.metadata.commit_with(create_topic(12))
        streams = await engine.open_streams(range(12))
        for _ in range(300):
            while not engine.writable():  # noqa: ASYNC110 - as a producer finds out
                await asyncio.sleep(0.05)
            await append(rng.choice(streams), count=rng.randint(1, 3), size=rng.randint(1, 400))
        await engine.close()
        await scope.close()
        assert not crashes
        return wal.trims

    assert simulate(life, seed=seed) > 10


class OvertakingStore(MemoryStore):
    """Holds the first data object back until later ones are there."""

    def __init__(self) -> None:
        super().__init__()
        self.held = asyncio.Event()
        self.first = ""

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        if key.startswith("data/"):
            self.first = self.first or key
            if key == self.first:
                await self.held.wait()
        await super().create(key, pieces)


async def test_uploads_that_overtake_each_other_are_committed_in_order() -> None:
    store = OvertakingStore()
    async with running(store, MemoryWal(), settings=SMALL) as (engine, streams):
        bases = [await append(streams[0], size=500) for _ in range(8)]
        async with asyncio.timeout(30):
            while sum(key.startswith("data/") for key in store.objects) < 1:
                await asyncio.sleep(0.01)
                bases.append(await append(streams[0], size=500))
        assert streams[0].committed_offset == 0, "nothing is committed before what came earlier"
        store.held.set()
        await engine.upload_now()
        extents = list(engine.metadata.state.streams[0].extents)
        assert extents[0].object_key == store.first
        ends = [extent.end_offset for extent in extents]
        assert [extent.start_offset for extent in extents] == [0, *ends[:-1]]
        assert await read_all(streams[0]) == bases


async def test_offsets_that_span_more_than_32_bits_in_one_object_are_found() -> None:
    writer = ObjectWriter(
        kind="so", cluster_id="c", node_id=0, node_epoch=0, writer_id="w", created_ms=0
    )
    writer.begin_stream(StreamInfo(stream_id=1))
    most = 2**31 - 1
    for number in range(5):
        writer.add(0, number * most, most, b"x" * 100, number)
    store = MemoryStore()
    await store.create("o", writer.finish().pieces)
    index = await read_index(store, "o")
    assert [item.start_offset for item in index.items] == [number * most for number in range(5)]
    for number in range(5):
        for offset in (number * most, (number + 1) * most - 1):
            assert index.item(index.find(1, offset)).record_count == 1
            assert index.find(1, offset) == number
    assert index.find(1, 5 * most) == -1


async def test_a_topic_that_is_made_again_shows_nothing_of_the_old_one_hot_or_cold() -> None:
    store = MemoryStore()
    async with running(store, MemoryWal(), settings=SMALL) as (engine, streams):
        old = streams[0]
        for _ in range(12):
            await append(old, size=700)
        await engine.upload_now()
        await read_all(old)  # fills the block cache
        other = "0" * 31 + "2"
        await engine.metadata.commit(
            [
                DeleteTopic(topic_id=TOPIC),
                CreateTopic(name="t", topic_id=other),
                CreateStream(stream_id=1, topic_id=other, partition=0),
            ]
        )
        engine.close_deleted(old)
        (new,) = await engine.open_streams([1])
        for _ in range(12):
            await append(new, count=1, timestamp=7000, size=650)
        for _ in range(2):  # from memory, then from objects
            offset, seen = 0, 0
            while offset < new.confirmed_offset:
                for payload in await new.fetch(offset, 1000):
                    header = read_header(payload)
                    assert header.max_timestamp == 7000
                    offset, seen = header.end_offset, seen + 1
            assert seen == 12
            await engine.upload_now()
            engine.cache.forget(new.stream_id)


async def test_a_fetch_in_the_middle_of_a_batch_returns_the_batch_hot_and_cold() -> None:
    async with running(MemoryStore(), MemoryWal(), settings=SMALL) as (engine, streams):
        for _ in range(6):
            await append(streams[0], count=5)
        for _ in range(2):
            for offset in range(30):
                (first, *_) = await streams[0].fetch(offset, 1)
                assert read_header(first).base_offset == offset // 5 * 5
            await engine.upload_now()
            engine.cache.forget(0)


async def test_nothing_below_the_start_is_read_and_nothing_above_it_is_reclaimed() -> None:
    store = MemoryStore()
    async with running(store, MemoryWal(), settings=SMALL) as (engine, streams):
        bases = [await append(streams[0], size=300) for _ in range(20)]
        await engine.upload_now()
        for start in (1, 7, 31, 45, 60):
            await streams[0].trim(start)
            engine.cache.forget(0)
            with pytest.raises(OffsetOutOfRange):
                await streams[0].fetch(start - 1, 100)
            state = engine.metadata.state
            kept = {extent.object_key for extent in state.streams[0].extents}
            assert not kept & set(state.unreferenced)
            expected = [base for base in bases if base + 3 > start]
            offset, found = start, []
            while offset < 60:
                for payload in await streams[0].fetch(offset, 500):
                    found.append(read_header(payload).base_offset)
                    offset = read_header(payload).end_offset
            assert found == expected


class HeldWal(MemoryWal):
    """Releases when it is told to."""

    is_held = False

    def _release(self) -> None:
        if not self.is_held:
            super()._release()


async def test_what_is_not_durable_is_never_shown_and_does_not_come_back_otherwise() -> None:
    store, wal = MemoryStore(), HeldWal()
    async with running(store, wal, clean=False) as (_, streams):
        await append(streams[0])
        wal.is_held = True
        wal._release_is_due = False
        waiting = asyncio.ensure_future(append(streams[0]))
        await asyncio.sleep(0.01)
        assert streams[0].next_offset == 6
        assert streams[0].confirmed_offset == 3
        assert await streams[0].fetch(3, 100) == []
        waiting.cancel()
    async with running(store, wal.reopen()) as (_, streams):
        assert streams[0].confirmed_offset == 3


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3)), min_size=1, max_size=12),
    st.lists(st.integers(-1, 35), min_size=1, max_size=6),
    st.integers(0, 12),
    st.integers(0, 10),
)
def test_offsets_by_timestamp_are_exact_over_objects_and_memory(
    batches: list[tuple[int, int]], wanted: list[int], uploaded: int, trimmed: int
) -> None:
    async def life() -> None:
        records: list[tuple[int, int]] = []
        async with running(MemoryStore(), MemoryWal(), settings=SMALL) as (engine, streams):
            stream = streams[0]
            for number, (timestamp, count) in enumerate(batches):
                base = await append(stream, count=count, timestamp=timestamp)
                records += [(base + n, timestamp + n) for n in range(count)]
                if number % 4 == uploaded % 4:
                    await engine.upload_now()
            await stream.trim(min(trimmed, len(records)))
            for timestamp in wanted:
                expected = next(
                    (
                        (offset, time)
                        for offset, time in records
                        if time >= timestamp and offset >= stream.start_offset
                    ),
                    None,
                )
                assert await stream.offset_for_timestamp(timestamp) == expected

    asyncio.run(life())
