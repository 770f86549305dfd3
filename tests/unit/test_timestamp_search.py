"""Offsets by timestamp, against a plain list of records: wherever they lie, trimmed meanwhile or
before, beside batches that nobody can read, and without holding up the loop.
"""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.storage.format.record_batch import patch
from lakehead.storage.format.records import RecordTime
from lakehead.storage.metadata.records import TrimStream
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.stream.settings import StorageSettings
from lakehead.storage.stream.stream import Stream
from lakehead.storage.stream.timestamp_search import INFLATED_SIZE_MAX
from lakehead.storage.wal import MemoryWal
from tests.support.record_batches import TestRecord, encode_batch, encode_record, seal_batch
from tests.support.repetitions import examples
from tests.unit.test_stream_engine import running

SETTINGS = StorageSettings(upload_size=1 << 30, upload_age_s=3600, stream_object_size=1000)


async def append(stream: Stream, timestamps: list[int], codec: str = "none") -> list[RecordTime]:
    base = stream.next_offset
    records = [
        TestRecord(offset=base + n, timestamp=time, key=None, value=b"v" * 50)
        for n, time in enumerate(timestamps)
    ]
    await append_bytes(stream, encode_batch(records, codec=codec), len(records), max(timestamps))
    return [RecordTime(record.offset, record.timestamp) for record in records]


async def append_bytes(stream: Stream, encoded: bytes, count: int, max_timestamp: int) -> None:
    batch = bytearray(encoded)
    patch(batch, 0, stream.next_offset, stream.epoch)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    stream.append(
        memoryview(batch),
        count=count,
        max_timestamp=max_timestamp,
        on_done=lambda _: done.set_result(None),
    )
    await done


batches = st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=4), min_size=1, max_size=10)


@settings(max_examples=examples(80), deadline=None)
@given(batches=batches, uploads=st.integers(0, 2**10 - 1), share=st.floats(0, 1))
def test_the_records_of_a_plain_list_are_found(
    batches: list[list[int]], uploads: int, share: float
) -> None:
    """With timestamps in no order, and a start that may lie inside a batch."""

    async def life() -> None:
        known: list[RecordTime] = []
        async with running(MemoryStore(), MemoryWal(), settings=SETTINGS) as (engine, streams):
            stream = streams[0]
            for number, timestamps in enumerate(batches):
                known += await append(stream, timestamps)
                if uploads >> number & 1:
                    await engine.upload_now()
            start = int(share * len(known))
            await stream.trim(start)
            left = [record for record in known if record.offset >= start]
            for timestamp in range(-1, 43, 4):
                first = next((one for one in left if one.timestamp >= timestamp), None)
                assert await stream.offset_for_timestamp(timestamp) == first
            latest = max(left, key=lambda one: (one.timestamp, -one.offset), default=None)
            assert await stream.offset_of_max_timestamp() == latest

    asyncio.run(life())


class HeldStore(MemoryStore):
    """Reads of data wait while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_asked = asyncio.Event()

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.is_asked.set()
        await self.gate.wait()
        return await super().get_range(key, start, length)


@pytest.mark.timeout(20)
async def test_a_search_ends_though_what_it_looks_at_is_trimmed() -> None:
    store = HeldStore()
    async with running(store, MemoryWal(), settings=SETTINGS) as (engine, streams):
        stream = streams[0]
        await append(stream, [1])
        await append(stream, [2])
        await append(stream, [1, 9])  # the answer, were it not trimmed
        await engine.upload_now()
        (later, _) = await append(stream, [8, 7])
        engine.cache.forget(0)
        await engine.upload_now()
        store.gate.clear()
        searches = [
            asyncio.ensure_future(stream.offset_for_timestamp(8)),
            asyncio.ensure_future(stream.offset_of_max_timestamp()),
        ]
        await store.is_asked.wait()
        await engine.metadata.commit([TrimStream(stream_id=0, start_offset=later.offset)])
        store.gate.set()
        assert await asyncio.gather(*searches) == [later, later]


def odd_batch(count: int, body: bytes, *, attributes: int = 0, base_timestamp: int = 20) -> bytes:
    """A batch with a right checksum and a header that says 20, over whatever there is."""
    return seal_batch(
        body,
        base_offset=0,
        last_offset_delta=count - 1,
        record_count=count,
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=20,
    )


ONE = encode_record(TestRecord(offset=0, timestamp=1), 0, 0)
FAR = encode_record(TestRecord(offset=9, timestamp=1), 0, 0)
ODD = {
    "no lz4": odd_batch(3, b"no lz4", attributes=3),
    "records that end early": odd_batch(3, ONE),
    "an offset of another batch": odd_batch(3, FAR * 3),
    "a time that no field holds": odd_batch(3, ONE * 3, base_timestamp=2**63 - 1),
}


@pytest.mark.parametrize("odd", ODD)
async def test_a_batch_that_nobody_can_read_stands_for_itself_and_spoils_no_other(odd: str) -> None:
    async with running(MemoryStore(), MemoryWal(), settings=SETTINGS) as (engine, streams):
        stream = streams[0]
        await append(stream, [10, 11])
        await append_bytes(stream, ODD[odd], 3, 20)
        await append(stream, [15, 30, 25], codec="lz4")
        for _ in range(2):  # from memory, then from objects
            assert await stream.offset_for_timestamp(11) == (1, 11)
            found = await stream.offset_for_timestamp(12)
            assert found in {(2, 20), (2, 21)}
            assert await stream.offset_for_timestamp(22) == (6, 30)
            assert await stream.offset_of_max_timestamp() == (6, 30)
            await engine.upload_now()
            engine.cache.forget(0)


async def test_a_batch_that_inflates_beyond_all_measure_is_not_inflated() -> None:
    import cramjam

    body = bytes(cramjam.zstd.compress(bytes(INFLATED_SIZE_MAX + 1)))
    async with running(MemoryStore(), MemoryWal(), settings=SETTINGS) as (_, streams):
        await append_bytes(streams[0], odd_batch(1, body, attributes=4), 1, 20)
        assert await streams[0].offset_for_timestamp(5) == (0, 20)


async def test_a_search_gives_way_to_other_work() -> None:
    rng = random.Random(1)
    turns = 0

    async def other_work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with running(MemoryStore(), MemoryWal(), settings=SETTINGS) as (_, streams):
        known = await append(streams[0], [rng.randrange(100) for _ in range(20_000)] + [100])
        working = asyncio.ensure_future(other_work())
        assert await streams[0].offset_for_timestamp(100) == known[-1]
        assert turns >= 20
        turns = 0
        assert await streams[0].offset_of_max_timestamp() == known[-1]
        assert turns >= 20
        working.cancel()
