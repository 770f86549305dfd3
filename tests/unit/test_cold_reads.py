"""Cold reads under trouble: damage stays where it is, bytes stay bounded, streams take turns."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.broker.partition.cold_reads import spared
from lakehead.storage.errors import CorruptObject
from lakehead.storage.format.record_batch import read_header
from lakehead.storage.format.stream_object import (
    BLOCK_FLAGS,
    BLOCK_HEADER,
    BLOCK_MAGIC,
    RECORD_HEADER,
    RECORD_MAGIC,
    IndexItem,
)
from lakehead.storage.metadata.records import CommittedObject, CommittedRange, ReplaceObjects
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.stream.block_cache import Block, BlockCache
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.reader import (
    READAHEAD_MAX,
    READAHEAD_MIN,
    Readahead,
    ReadBudget,
    Ticket,
)
from lakehead.storage.stream.settings import StorageSettings
from lakehead.storage.stream.stream import Stream
from lakehead.storage.wal import MemoryWal
from tests.unit.test_garbage import SteppedClock
from tests.unit.test_stream_engine import append
from tests.unit.test_stream_engine import running as running_by

MIB = 1 << 20
SETTINGS = StorageSettings(
    upload_size=1 << 30,
    upload_age_s=3600,
    stream_object_size=4 * MIB,
    cache_size=64 * MIB,
    block_cache_size=16 * MIB,
    cold_read_max=8 * MIB,
)


def running(
    store: MemoryStore, wal: MemoryWal, *, partitions: int = 1, settings: StorageSettings
) -> AbstractAsyncContextManager[tuple[StreamEngine, list[Stream]]]:
    """An engine for which no time passes: however slow the machine, a fetch is patient."""
    return running_by(store, wal, partitions=partitions, settings=settings, clock=SteppedClock())


class WatchedStore(MemoryStore):
    """Notes reads, and may spoil or hold them."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__(objects)
        self.ranges: list[tuple[str, int, int]] = []
        self.suffixes: list[str] = []
        self.in_flight = self.most_in_flight = 0
        self.spoil: Callable[[str, int, bytes], bytes] = lambda key, start, body: body
        self.spoil_next_suffix = False
        self.open = asyncio.Event()
        self.open.set()
        self.awaited = 1
        self.reached = asyncio.Event()
        """True if so many bytes as are `awaited` have been on their way at once."""

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.ranges.append((key, start, length))
        self.in_flight += length
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        if self.in_flight >= self.awaited:
            self.reached.set()
        await self.open.wait()
        self.in_flight -= length
        return self.spoil(key, start, await super().get_range(key, start, length))

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        self.suffixes.append(key)
        body, size = await super().get_suffix(key, length)
        if self.spoil_next_suffix:
            self.spoil_next_suffix = False
            body = body[:-60] + bytes([body[-60] ^ 1]) + body[-59:]
        return body, size


async def filled(
    batches: int, size: int, *, streams: int = 1, settings: StorageSettings = SETTINGS
) -> tuple[WatchedStore, MemoryWal]:
    """Return a store with `batches` batches of `size` bytes in each stream."""
    store, wal = MemoryStore(), MemoryWal()
    async with running(store, wal, partitions=streams, settings=settings) as (_, opened):
        for _ in range(batches):
            for stream in opened:
                await append(stream, count=1, size=size)
    return WatchedStore(store.objects), wal.reopen()


def bases(batches: list[memoryview]) -> list[int]:
    return [read_header(batch).base_offset for batch in batches]


async def read_on(stream: Stream, offset: int, max_bytes: int) -> int:
    return offset + len(await stream.fetch(offset, max_bytes))


async def test_a_run_of_adjacent_items_is_one_get_and_an_index_is_read_once() -> None:
    store, wal = await filled(12, 500_000)
    large = replace(SETTINGS, block_cache_size=64 * MIB, cold_read_max=64 * MIB)
    async with running(store, wal, settings=large) as (engine, streams):
        store.ranges.clear()
        store.suffixes.clear()
        found = await streams[0].fetch(0, 2_000_000)
        assert bases(found) == [0, 1, 2]
        assert len(store.ranges) == 1
        assert len(store.suffixes) == 1
        assert bases(await streams[0].fetch(0, 2_000_000)) == [0, 1, 2]
        assert len(store.ranges) + len(store.suffixes) == 2
        assert engine.reader.stats.gets == 1


async def test_streams_that_are_wanted_together_come_with_one_get() -> None:
    store, wal = await filled(3, 20_000, streams=20)
    async with running(store, wal, partitions=20, settings=SETTINGS) as (_, streams):
        store.ranges.clear()
        store.suffixes.clear()
        found = await asyncio.gather(*(stream.fetch(0, 1 << 20) for stream in streams))
        assert [bases(one) for one in found] == [[0, 1, 2]] * 20
        assert (len(store.ranges), len(store.suffixes)) == (1, 1)


async def test_readers_of_one_stream_at_different_places_do_not_disturb_each_other() -> None:
    store, wal = await filled(240, 100_000)
    async with running(store, wal, settings=SETTINGS) as (engine, streams):
        store.ranges.clear()
        places = [0, 120]
        while places[0] < 120:
            for number, end in enumerate((120, 240)):
                if places[number] < end:
                    places[number] = await read_on(streams[0], places[number], 300_000)
        assert sum(length for _, _, length in store.ranges) <= 1.2 * 240 * 100_000
        assert len(engine.reader.readahead) == 2
        assert engine.reader.stats.wasted == 0


async def test_a_corrupt_block_names_its_place_is_counted_and_harms_no_other() -> None:
    store, wal = await filled(12, 500_000, streams=2)
    async with running(store, wal, partitions=2, settings=SETTINGS) as (engine, streams):
        index = await engine.reader.index(engine.metadata.state.streams[0].extents[0].object_key)
        bad = index.items_of(0)[1]
        body = bytearray(store.objects[index.key])
        body[bad.position + 1000] ^= 1
        store.objects[index.key] = bytes(body)
        before = bases(await streams[0].fetch(0, 1 << 30))
        assert before == list(range(bad.start_offset))
        for _ in range(2):  # it is not cached
            with pytest.raises(CorruptObject) as caught:
                await streams[0].fetch(bad.start_offset, 100)
            assert (caught.value.key, caught.value.position) == (index.key, bad.position)
        assert engine.reader.stats.corrupt_blocks >= 2
        after = await streams[0].fetch(bad.end_offset, 1 << 30)
        assert bases(after) == list(range(bad.end_offset, 12))
        assert bases(await streams[1].fetch(0, 1 << 30)) == list(range(12))


async def test_a_block_that_was_spoilt_on_its_way_is_read_again() -> None:
    store, wal = await filled(4, 500_000)
    spoilt: list[int] = []

    def spoil(_: str, start: int, body: bytes) -> bytes:
        if spoilt:
            return body
        spoilt.append(start)
        return body[:-1] + bytes([body[-1] ^ 1])

    async with running(store, wal, settings=SETTINGS) as (engine, streams):
        store.spoil = spoil
        assert bases(await streams[0].fetch(0, 1 << 30)) == [0, 1, 2, 3]
        assert spoilt
        assert engine.reader.stats.corrupt_blocks == 0


async def test_an_index_that_was_spoilt_is_read_again_and_a_damaged_one_is_named() -> None:
    store, wal = await filled(2, 1000)
    async with running(store, wal, settings=SETTINGS) as (engine, streams):
        key = engine.metadata.state.streams[0].extents[0].object_key
        whole = store.objects[key]
        spoilt = whole[:-60] + bytes([whole[-60] ^ 1]) + whole[-59:]
        store.objects[key] = spoilt
        for _ in range(2):  # it is not cached
            with pytest.raises(CorruptObject, match=key):
                await streams[0].fetch(0, 100)
        assert engine.reader.indexes.corrupt == 2

        store.spoil_next_suffix = True
        store.objects[key] = whole
        assert bases(await streams[0].fetch(0, 100)) == [0]
        assert engine.reader.indexes.corrupt == 2


async def test_a_truncated_object_gives_what_is_whole_and_an_error_for_the_rest() -> None:
    store, wal = await filled(6, 500_000)
    async with running(store, wal, settings=SETTINGS) as (engine, streams):
        key = engine.metadata.state.streams[0].extents[0].object_key
        item = (await engine.reader.index(key)).items[1]
        store.objects[key] = store.objects[key][: item.position + 10]
        assert bases(await streams[0].fetch(0, 1 << 30)) == list(range(item.start_offset))
        with pytest.raises(CorruptObject, match=key):
            await streams[0].fetch(item.start_offset, 100)


async def test_bytes_in_flight_are_bounded_over_the_node() -> None:
    store, wal = await filled(24, 500_000, streams=4)
    async with running(store, wal, partitions=4, settings=SETTINGS) as (engine, streams):
        for stream in streams:
            await engine.reader.index(
                engine.metadata.state.streams[stream.stream_id].extents[0].object_key
            )
        store.open.clear()
        store.reached.clear()
        store.awaited = SETTINGS.cold_read_max * 3 // 4  # the next run, of a quarter, has no room
        reads = [asyncio.ensure_future(s.fetch(0, 10 * MIB)) for s in streams]
        await store.reached.wait()
        store.open.set()
        assert all(len(one) > 15 for one in await asyncio.gather(*reads))
        assert store.most_in_flight <= SETTINGS.cold_read_max
        assert engine.reader.budget.in_flight == 0
        assert engine.reader.blocks.size <= SETTINGS.block_cache_size


async def test_a_stream_that_wants_much_delays_another_by_one_read_only() -> None:
    budget, order = ReadBudget(100), list[int]()

    async def read(stream_id: int, *, urgent: bool = True) -> None:
        ticket = Ticket(stream_id, 60, urgent)
        await budget.acquire(ticket)
        order.append(stream_id)
        await asyncio.sleep(0)
        budget.release(ticket)

    async with asyncio.TaskGroup() as group:
        for stream_id in (1, 1, 1, 1):
            group.create_task(read(stream_id))
        group.create_task(read(9, urgent=False))
        group.create_task(read(2))
    assert order.index(2) <= 2
    assert order[-1] == 9


async def test_a_read_that_turns_urgent_before_it_is_queued_takes_one_turn() -> None:
    budget = ReadBudget(100)
    ticket = Ticket(1, 60, False)
    budget.hurry(ticket)
    assert budget.in_flight == 0
    await budget.acquire(ticket)
    assert budget.in_flight == 60
    budget.release(ticket)
    await budget.acquire(Ticket(1, 100, True))
    assert budget.in_flight == 100


async def test_a_cancelled_read_gives_its_bytes_back_and_leaves_others_theirs() -> None:
    store, wal = await filled(4, 500_000)
    async with running(store, wal, settings=SETTINGS) as (engine, streams):
        store.open.clear()
        store.reached.clear()
        first = asyncio.ensure_future(streams[0].fetch(0, 100))
        second = asyncio.ensure_future(streams[0].fetch(0, 100))
        await store.reached.wait()
        first.cancel()
        store.open.set()
        assert bases(await second) == [0]
        assert engine.reader.budget.in_flight == 0


async def test_an_object_that_was_replaced_is_looked_up_anew() -> None:
    store, wal = await filled(3, 1000)
    async with running(store, wal, settings=SETTINGS) as (engine, streams):
        extent = engine.metadata.state.streams[0].extents[0]
        view: Any = engine.metadata.state.streams[0].extents
        await engine.reader.index(extent.object_key)
        store.objects["data/00/new"] = store.objects.pop(extent.object_key)
        span = CommittedRange(
            stream_id=0,
            epoch=0,
            start_offset=0,
            end_offset=3,
            max_timestamp=extent.max_timestamp,
            size=extent.size,
        )
        new = CommittedObject(
            key="data/00/new", kind="so", size=extent.size, created_ms=0, ranges=(span,)
        )
        await engine.metadata.commit([ReplaceObjects(sources=(extent.object_key,), objects=(new,))])
        views = [view]

        def extents() -> Any:
            return views.pop() if views else engine.metadata.state.streams[0].extents

        assert bases(await engine.reader.fetch(0, extents, 0, 100)) == [0]
        assert bases(await streams[0].fetch(0, 1 << 20)) == [0, 1, 2]


def test_readahead_grows_for_a_reader_that_waits_and_shrinks_when_it_was_for_nothing() -> None:
    clock = SteppedClock()
    readahead = Readahead(clock, room=1 << 40)
    reader = readahead.reader(1, 0)
    sizes, offset = [readahead.advance(reader, 0, 10, waited=True)], 10
    for _ in range(10):
        assert readahead.reader(1, offset) is reader
        sizes.append(readahead.advance(reader, offset, offset + 10, waited=True))
        offset += 10
    assert sizes[:4] == [0, READAHEAD_MIN, 2 * READAHEAD_MIN, 4 * READAHEAD_MIN]
    assert sizes[-1] == READAHEAD_MAX
    readahead.wasted(reader)
    assert readahead.advance(reader, offset, offset + 10, waited=True) == READAHEAD_MIN
    clock.seconds += 61  # idle for long: begins anew
    assert readahead.reader(1, offset + 10) is not reader


def test_the_block_cache_charges_the_buffers_that_its_slices_pin() -> None:
    cache = BlockCache(1000)
    block: Any = [None] * 3
    wasted: list[int] = []
    for number in range(5):
        cache.add({("k", number): block}, b"x" * 400, lambda n=number: wasted.append(n))  # type: ignore[misc]
        assert cache.size >= 400
    assert len(cache._segments) == 1, "the newest stays"
    assert wasted == [0, 1, 2, 3]
    cache.is_read(("k", 4))
    cache.add({("k", 9): block}, b"x" * 400, None)
    assert wasted == [0, 1, 2, 3], "what was read is not wasted"


def block_of(*sizes: int) -> Block:
    """Return a block of batches of these sizes, each of one offset."""
    body = b"".join(
        RECORD_HEADER.pack(RECORD_MAGIC, 1, 0, offset, 1, size) + bytes([offset]) * size
        for offset, size in enumerate(sizes)
    )
    data = BLOCK_HEADER.pack(BLOCK_MAGIC, BLOCK_FLAGS, len(sizes), len(body)) + body
    item = IndexItem(1, 0, len(sizes), len(sizes), 0, len(data), crc32c(data), 0)
    return Block("k", item, memoryview(data))


@given(st.lists(st.integers(1, 300), min_size=1, max_size=40), st.data())
def test_a_block_gives_as_many_whole_batches_as_fit_and_one_at_least(
    sizes: list[int], data: st.DataObject
) -> None:
    offset = data.draw(st.integers(0, len(sizes) - 1))
    max_bytes = data.draw(st.integers(-1, sum(sizes) + 10))
    found, end = block_of(*sizes).fetch(offset, max_bytes)
    assert found == [bytes([number]) * sizes[number] for number in range(offset, end)]
    size = sum(map(len, found))
    assert end == offset + 1 or size <= max_bytes
    assert end == len(sizes) or size + sizes[end] > max_bytes


async def all_read_ahead(engine: StreamEngine) -> None:
    """Wait until nothing is being read."""
    while reading := [wanted.block for wanted in engine.reader._wanted.values()]:
        await asyncio.gather(*reading)


async def test_what_was_read_ahead_is_there_without_waiting() -> None:
    store, wal = await filled(40, 200_000)
    async with running(store, wal, settings=SETTINGS) as (engine, [stream]):
        offset = 0
        for _ in range(3):
            offset = await read_on(stream, offset, 400_000)
        await all_read_ahead(engine)
        gets, hits = engine.reader.stats.gets, engine.reader.stats.hits
        found = stream.fetch_read(offset, 500_000)
        assert found is not None
        assert bases(found) == [offset, offset + 1]
        assert (engine.reader.stats.gets, engine.reader.stats.hits > hits) == (gets, True)


async def test_a_reader_that_never_waits_is_read_ahead_for_to_the_end() -> None:
    store, wal = await filled(60, 200_000)
    async with running(store, wal, settings=SETTINGS) as (engine, [stream]):
        offset, waits = 0, 0
        while offset < 60:
            found = stream.fetch_read(offset, 400_000)
            if found is None:
                waits += 1
                found = await stream.fetch(offset, 400_000)
            assert bases(found) == list(range(offset, offset + len(found)))
            offset += len(found)
            await all_read_ahead(engine)
        assert waits < 8, "the first reads wait, before much is read ahead"


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_a_read_from_memory_is_the_read_that_waits_or_nothing(data: st.DataObject) -> None:
    async def compared() -> None:
        store, wal = await filled(30, 150_000)
        small = replace(SETTINGS, block_cache_size=2 * MIB)
        async with running(store, wal, settings=small) as (engine, [stream]):
            for _ in range(data.draw(st.integers(1, 12))):
                offset = data.draw(st.integers(0, 29))
                size = data.draw(st.integers(0, 3 * MIB))
                before = engine.reader.stats.hits
                found = stream.fetch_read(offset, size)
                if found is None:
                    assert engine.reader.stats.hits == before
                    assert bases(await stream.fetch(offset, size))[0] == offset
                else:
                    gets = engine.reader.stats.gets
                    assert found == await stream.fetch(offset, size)
                    assert engine.reader.stats.gets == gets

    asyncio.run(compared())


async def test_damage_ahead_of_a_reader_is_met_when_it_comes() -> None:
    store, wal = await filled(12, 500_000)
    async with running(store, wal, settings=SETTINGS) as (engine, [stream]):
        index = await engine.reader.index(engine.metadata.state.streams[0].extents[0].object_key)
        last, damaged_from = index.items[-1].position, index.items[-1].start_offset
        store.spoil = lambda _, start, body: (
            body if start + len(body) <= last else body[:-1] + bytes([body[-1] ^ 1])
        )
        offset = 0
        with pytest.raises(CorruptObject):
            while offset < 12:
                found = stream.fetch_read(offset, 600_000) or await stream.fetch(offset, 600_000)
                assert bases(found) == list(range(offset, offset + len(found)))
                offset += len(found)
        assert offset == damaged_from, "all before it was read"


async def engine_memory(engine: StreamEngine) -> int:
    reader = engine.reader
    return reader.blocks.size + reader.indexes.size + reader.budget.in_flight


async def test_memory_of_cold_reads_stays_within_the_settings() -> None:
    store, wal = await filled(60, 500_000, streams=2)
    bound = SETTINGS.block_cache_size + SETTINGS.index_cache_size + SETTINGS.cold_read_max
    async with running(store, wal, partitions=2, settings=SETTINGS) as (engine, streams):
        offsets = [0, 0]
        while min(offsets) < 60:
            for number, stream in enumerate(streams):
                if offsets[number] < 60:
                    offsets[number] = await read_on(stream, offsets[number], MIB)
            assert await engine_memory(engine) <= bound


def test_batches_that_are_a_good_part_of_a_read_together_are_not_copied() -> None:
    read = bytes(MIB)
    view = memoryview(read)
    batches = [view[start : start + 16_384] for start in range(0, 1 << 17, 16_384)]
    assert all(batch.obj is read for batch in spared(batches))


def test_a_small_batch_does_not_keep_a_large_read_in_memory() -> None:
    small, other = memoryview(bytes(MIB))[:16_384], memoryview(bytes(100))
    found = spared([small, other])
    assert memoryview(found[0].obj).nbytes == 16_384
    assert found[1].obj is other.obj
    assert found == [small, other]
