"""Cold reads: in sequence, every byte is fetched about once, by however many streams."""

import pytest

from storage.object_store import MemoryStore
from storage.stream.engine import StorageSettings
from storage.wal import MemoryWal
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
