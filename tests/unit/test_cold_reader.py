"""Cold reads: in sequence, every byte is fetched about once, by however many streams."""

import asyncio
from dataclasses import replace

import pytest

from lakehead.storage.format.stream_object import SUFFIX_GUESS
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.stream.settings import StorageSettings
from lakehead.storage.wal import MemoryWal
from tests.unit.test_stream_engine import append, read_all, running

BATCH = 100_000
SETTINGS = StorageSettings(
    upload_size=8 << 20,
    upload_age_s=3600,
    stream_object_size=1 << 20,
    cache_size=16 << 20,
    block_cache_size=12 << 20,
)


class CountingStore(MemoryStore):
    """Counts the bytes that ranges were asked for."""

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        super().__init__(objects)
        self.bytes_read = 0

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.bytes_read += length
        return await super().get_range(key, start, length)


class SlowStore(MemoryStore):
    """Takes a while for every read of a part of an object."""

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        await asyncio.sleep(0.02)
        return await super().get_range(key, start, length)

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        await asyncio.sleep(0.02)
        return await super().get_suffix(key, length)


async def test_many_small_objects_do_not_keep_a_reader_waiting_for_all_of_them() -> None:
    objects: dict[str, bytes] = {}
    wal = MemoryWal()
    async with running(MemoryStore(objects), wal, settings=SETTINGS) as (engine, [stream, *_]):
        for _ in range(60):
            await append(stream, count=1, size=100)
            await engine.upload_now()
    async with running(SlowStore(objects), wal.reopen(), settings=SETTINGS) as (_, [stream, *_]):
        first = await stream.fetch(0, 1 << 20)
        assert 0 < len(first) < 60
        assert await read_all(stream, 1 << 20) == list(range(60))


class BusyStore(SlowStore):
    """Counts how many indexes are on their way at once."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__(objects)
        self.now = self.most = 0

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await super().get_suffix(key, length)
        finally:
            self.now -= 1


async def test_the_indexes_of_many_small_objects_are_read_side_by_side() -> None:
    objects: dict[str, bytes] = {}
    wal = MemoryWal()
    async with running(MemoryStore(objects), wal, settings=SETTINGS) as (engine, [stream, *_]):
        for _ in range(120):
            await append(stream, count=1, size=100)
            await engine.upload_now()
    store = BusyStore(objects)
    async with running(store, wal.reopen(), settings=SETTINGS) as (_, [stream, *_]):
        assert stream.object_count == 120
        assert await read_all(stream, 1 << 20) == list(range(120))
    assert 16 <= store.most <= 64


async def test_indexes_are_read_ahead_as_far_as_their_cache_holds_them() -> None:
    """Of objects with thousands of streams they are megabytes each, and there may be hundreds of
    readers.
    """
    objects: dict[str, bytes] = {}
    wal = MemoryWal()
    async with running(MemoryStore(objects), wal, settings=SETTINGS) as (engine, [stream, *_]):
        for _ in range(60):
            await append(stream, count=1, size=100)
            await engine.upload_now()
    store = BusyStore(objects)
    settings = replace(SETTINGS, index_cache_size=4 * SUFFIX_GUESS)
    async with running(store, wal.reopen(), settings=settings) as (_, [stream, *_]):
        assert await read_all(stream, 1 << 20) == list(range(60))
    assert 2 <= store.most <= 5


@pytest.mark.parametrize("streams_read", [1, 4])
async def test_a_sequential_reader_fetches_each_block_once(streams_read: int) -> None:
    store, wal = CountingStore(), MemoryWal()
    async with running(store, wal, partitions=4, settings=SETTINGS) as (_, streams):
        for _ in range(200):
            for stream in streams:
                await append(stream, count=1, size=BATCH)
    async with running(store, wal.reopen(), partitions=4, settings=SETTINGS) as (_, streams):
        offsets = dict.fromkeys(range(streams_read), 0)
        while any(offset < 200 for offset in offsets.values()):
            for number in offsets:
                if offsets[number] < 200:
                    offsets[number] += len(await streams[number].fetch(offsets[number], 300_000))
        stored = 200 * BATCH * streams_read
        assert store.bytes_read <= 1.2 * stored
        assert await read_all(streams[0], 1 << 20) == list(range(200))
