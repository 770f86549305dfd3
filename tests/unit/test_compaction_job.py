"""Compaction of a whole stream: what consumers read after it, whatever happens meanwhile."""

import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from lakehead.storage.clock import SystemClock
from lakehead.storage.compaction.dirtiness import dirtiness
from lakehead.storage.compaction.log_compaction import (
    LogCompaction,
    LogCompactionResult,
    LogCompactionSettings,
    Superseded,
)
from lakehead.storage.errors import OffsetOutOfRange
from lakehead.storage.format.control_batch import Marker, encode_marker
from lakehead.storage.format.partition_state import StateSnapshot
from lakehead.storage.format.record_batch import patch, read_header
from lakehead.storage.format.records import KafkaRecord, iter_kafka_records
from lakehead.storage.garbage import check_leaks
from lakehead.storage.metadata.records import COMPACTED, TrimStream
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.settings import StorageSettings
from lakehead.storage.stream.stream import Stream
from lakehead.storage.wal import MemoryWal
from tests.support.record_batches import CODECS, TestRecord, compress, encode_batch, seal_batch
from tests.unit.test_stream_engine import running

FOREVER = 1 << 62
PLAIN = StorageSettings(upload_size=1 << 30, upload_age_s=3600, cache_size=1 << 26)


@asynccontextmanager
async def opened(partitions: int = 1) -> AsyncIterator[tuple[StreamEngine, list[Stream]]]:
    async with running(MemoryStore(), MemoryWal(), partitions=partitions, settings=PLAIN) as both:
        yield both


class Writer:
    """Appends batches of (key, value) to a stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.time = 1_700_000_000_000

    def append(
        self,
        *pairs: tuple[bytes | None, bytes | None],
        producer_id: int = -1,
        transactional: bool = False,
        codec: str = "none",
    ) -> None:
        self.time += 1
        records = [
            TestRecord(offset=n, timestamp=self.time, key=key, value=value)
            for n, (key, value) in enumerate(pairs)
        ]
        batch = encode_batch(
            records, codec=codec, producer_id=producer_id, transactional=transactional
        )
        self._append(bytearray(batch))

    def end(self, producer_id: int, *, is_commit: bool) -> None:
        marker = Marker(is_commit, 0)
        self._append(
            encode_marker(marker, producer_id=producer_id, producer_epoch=0, timestamp_ms=self.time)
        )

    def _append(self, batch: bytearray) -> None:
        header = read_header(batch)
        patch(batch, 0, self.stream.next_offset, self.stream.epoch)
        self.stream.append(
            memoryview(batch),
            count=header.last_offset_delta + 1,
            max_timestamp=header.max_timestamp,
        )


def job(
    engine: StreamEngine,
    stream: Stream,
    *,
    now_ms: int = 0,
    memory: int = 1 << 20,
    group_size: int = 1 << 20,
    until_ms: int = FOREVER,
) -> LogCompaction:
    class Clock(SystemClock):
        def now_ms(self) -> int:
            return now_ms

    return LogCompaction(
        engine.reader._store,
        engine.metadata,
        Clock(),
        random.Random(3),
        stream_id=stream.stream_id,
        settings=LogCompactionSettings(
            until_ms=until_ms, delete_retention_ms=100, map_memory=memory, group_size=group_size
        ),
    )


async def upload(engine: StreamEngine) -> None:
    await engine.wait_durable()
    await engine.upload_now()


async def compact(engine: StreamEngine, stream: Stream, **options: int) -> LogCompactionResult:
    await upload(engine)
    return await job(engine, stream, **options).run()


async def read(stream: Stream, offset: int | None = None) -> list[KafkaRecord]:
    """Read to the end, as a consumer does; control batches are left out."""
    found: list[KafkaRecord] = []
    engine = stream._engine
    assert isinstance(engine, StreamEngine)
    await engine.wait_durable()
    at = stream.start_offset if offset is None else offset
    while at < stream.confirmed_offset:
        batches = await stream.fetch(at, 1000)
        for batch in batches:
            header = read_header(batch)
            assert header.end_offset > at
            at = header.end_offset
            if not header.is_control:
                found += iter_kafka_records(batch)
    return [record for record in found if record.offset >= (offset or 0)]


def newest(records: Sequence[KafkaRecord]) -> list[tuple[int, bytes | None, bytes | None]]:
    last = {record.key: record for record in records}
    return sorted((r.offset, r.key, r.value) for r in last.values())


def plain(records: Sequence[KafkaRecord]) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(r.offset, r.key, r.value) for r in records]


@pytest.mark.parametrize("group_size", [1, 1 << 20])
async def test_the_newest_record_of_each_key_stays_at_its_offset(group_size: int) -> None:
    rng = random.Random(1)
    async with opened() as (engine, (stream,)):
        writer = Writer(stream)
        for _ in range(5):
            for number in range(20):
                pairs = [(b"k%d" % rng.randrange(30), b"v%d" % number) for _ in range(3)]
                writer.append(*pairs, codec=rng.choice(["none", "zstd", "gzip"]))
            await upload(engine)
        before = await read(stream)
        result = await compact(engine, stream, group_size=group_size)
        after = await read(stream)
        assert plain(after) == newest(before)
        assert result.bytes_after < result.bytes_before
        state = engine.metadata.state.streams[stream.stream_id]
        assert {engine.metadata.state.objects[e.object_key].kind for e in state.extents} == {
            COMPACTED
        }
        assert (state.extents[0].start_offset, state.extents[-1].end_offset) == (0, 300)
        for offset in range(300):  # every offset leads to what follows it
            assert plain(await read(stream, offset)) == [
                r for r in newest(before) if r[0] >= offset
            ]
        assert not (await compact(engine, stream)).passes


async def test_again_and_again_gives_what_once_would() -> None:
    """Random traffic, and compaction at random moments: a model of keys tells what is right."""
    for seed in range(8):
        rng = random.Random(seed)
        async with opened() as (engine, (stream,)):
            writer, values, passes = Writer(stream), dict[bytes, tuple[int, bytes]](), 0
            for _ in range(60):
                pairs = [
                    (b"k%d" % rng.randrange(12), b"%d" % rng.randrange(99))
                    for _ in range(rng.randint(1, 4))
                ]
                for number, (key, value) in enumerate(pairs):
                    values[key] = (stream.next_offset + number, value)
                writer.append(*pairs, producer_id=rng.choice([-1, 7, 8]))
                if rng.random() < 0.3:
                    await upload(engine)
                if rng.random() < 0.2:
                    size = rng.choice([1, 400, 1 << 20])
                    done = await compact(engine, stream, memory=24 * 16, group_size=size)
                    passes += done.passes
            await compact(engine, stream, memory=24 * 16, group_size=300)
            found = {r.key: (r.offset, r.value) for r in await read(stream)}
            assert found == values, seed
            assert passes > 1


async def test_a_map_that_is_too_small_takes_more_passes() -> None:
    """Also where one object alone has more keys than the map: it is cut."""
    async with opened() as (engine, (stream,)):
        writer = Writer(stream)
        for round_ in range(3):
            for number in range(100):
                writer.append((b"k%d" % number, b"%d" % round_))
        before = await read(stream)
        result = await compact(engine, stream, memory=24 * 40)
        assert result.passes > 5
        assert plain(await read(stream)) == newest(before)


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
@pytest.mark.parametrize("body", [b"", b"\xff" * 40, bytes(7 * 5000)], ids=["empty", "no", "long"])
async def test_a_batch_that_counts_more_records_than_it_has_is_not_waited_for(
    codec: str, body: bytes
) -> None:
    """However many that are: it stays, counted as unreadable, and what lies around is compacted."""
    async with opened() as (engine, (stream,)):
        writer = Writer(stream)
        for count in (5000, 2**31 - 1):
            writer.append((b"a", b"%d" % count), (b"b", b"%d" % count))
            attributes = CODECS.index(codec)
            damaged = seal_batch(
                compress(codec, body),
                base_offset=0,
                last_offset_delta=4999,  # what it may be is a rule of the broker's
                record_count=count,
                attributes=attributes,
            )
            writer._append(bytearray(damaged))
        writer.append((b"a", b"last"))
        result = await compact(engine, stream, memory=24 * 40)
        assert result.passes >= 1
        assert result.unreadable == 2
        await engine.metadata.refresh()
        assert not dirtiness(
            engine.metadata.state, engine.metadata.state.streams[stream.stream_id], until_ms=FOREVER
        ).dirty
        assert plain(await read_good(stream)) == [
            (5003, b"b", b"2147483647"),
            (10004, b"a", b"last"),
        ]


async def test_a_batch_with_more_keys_than_the_map_waits_for_a_larger_one() -> None:
    """Nothing of it or of what follows is compacted, and nothing is lost."""
    async with opened() as (engine, (stream,)):
        writer = Writer(stream)
        writer.append((b"k1", b"old"))
        writer.append(*((b"k%d" % number, b"new") for number in range(100)))
        before = await read(stream)
        assert (await compact(engine, stream, memory=24 * 40)).passes == 1, "what lies before it"
        for _ in range(2):
            result = await compact(engine, stream, memory=24 * 40)
            assert (result.passes, result.unreadable) == (0, 0)
            assert plain(await read(stream)) == plain(before)
        assert (await compact(engine, stream, memory=24 * 400)).passes == 1
        assert plain(await read(stream)) == newest(before)


async def read_good(stream: Stream) -> list[KafkaRecord]:
    """Read to the end, past batches that nothing can read."""
    found: list[KafkaRecord] = []
    at = stream.start_offset
    while at < stream.confirmed_offset:
        for batch in await stream.fetch(at, 1000):
            at = read_header(batch).end_offset
            with contextlib.suppress(ValueError):
                found += iter_kafka_records(batch)
    return found


async def test_a_tombstone_goes_after_its_time_and_the_end_of_the_log_stays() -> None:
    async with opened() as (engine, (stream,)):
        writer = Writer(stream)
        writer.append((b"a", b"1"), (b"b", b"2"))
        writer.append((b"a", None))
        await compact(engine, stream, now_ms=1000)
        assert plain(await read(stream)) == [(1, b"b", b"2"), (2, b"a", None)]
        writer.append((b"c", b"3"), (b"d", None))
        await compact(engine, stream, now_ms=1099)
        assert [r.offset for r in await read(stream)] == [1, 2, 3, 4]
        writer.append((b"c", None))
        await compact(engine, stream, now_ms=1200)
        assert plain(await read(stream)) == [(1, b"b", b"2"), (5, b"c", None)]
        writer.append((b"b", None))
        await compact(engine, stream, now_ms=1201)
        writer.append((b"b", None))
        await compact(engine, stream, now_ms=9000)
        writer.append((None, b"no key"))
        await compact(engine, stream, now_ms=99_000)
        assert not await read(stream)
        assert (stream.start_offset, stream.confirmed_offset) == (0, 9)
        writer.append((b"e", b"4"))
        assert plain(await read(stream)) == [(9, b"e", b"4")]


async def test_transactions_are_taken_whole_or_not_at_all() -> None:
    async with opened() as (engine, (stream,)):
        writer = Writer(stream)
        writer.append((b"a", b"old"), (b"b", b"old"), (b"c", b"old"), (b"d", b"old"))
        writer.append((b"a", b"committed"), producer_id=1, transactional=True)
        writer.append((b"b", b"aborted"), producer_id=2, transactional=True)
        writer.end(1, is_commit=True)
        writer.end(2, is_commit=False)
        await upload(engine)
        open_from = stream.next_offset
        writer.append((b"c", b"open"), producer_id=1, transactional=True)
        writer.append((b"d", b"after"))
        await compact(engine, stream)
        found = plain(await read(stream))
        assert found == [
            (1, b"b", b"old"),
            (2, b"c", b"old"),
            (3, b"d", b"old"),
            (4, b"a", b"committed"),
            (open_from, b"c", b"open"),
            (open_from + 1, b"d", b"after"),
        ]
        writer.end(1, is_commit=False)
        await compact(engine, stream)
        assert plain(await read(stream)) == [
            (1, b"b", b"old"),
            (2, b"c", b"old"),
            (4, b"a", b"committed"),
            (open_from + 1, b"d", b"after"),
        ]


async def test_a_deleted_key_does_not_come_back_while_transactions_are_open() -> None:
    """Its tombstone may be gone before the newest record, beyond the open ones, counts."""
    async with opened() as (engine, (stream,)):
        writer = Writer(stream)
        for pair, producer_id in (
            ((b"a", b"old"), -1),
            ((b"a", None), -1),
            ((b"x", b"1"), 1),
            ((b"y", b"1"), 2),
            ((b"a", b"new"), -1),
        ):
            writer.append(pair, producer_id=producer_id, transactional=producer_id > 0)
            await upload(engine)
        await compact(engine, stream, now_ms=1000)
        assert [r.offset for r in await read(stream)] == [1, 2, 3, 4]
        writer.end(1, is_commit=True)
        await compact(engine, stream, now_ms=2000)
        assert [r.offset for r in await read(stream)] == [2, 3, 4]


async def test_markers_go_when_nothing_of_the_transaction_is_left() -> None:
    async def markers() -> list[int]:
        at, found = 0, []
        while at < stream.confirmed_offset:
            for batch in await stream.fetch(at, 1):
                header = read_header(batch)
                at = header.end_offset
                if header.is_control:
                    found.append(header.base_offset)
        return found

    async with opened() as (engine, (stream,)):
        writer = Writer(stream)
        for number, is_commit in enumerate((True, False, True)):
            writer.append((b"k%d" % number, b"1"), producer_id=1, transactional=True)
            writer.end(1, is_commit=is_commit)
        writer.append((b"k0", b"2"))
        await compact(engine, stream, now_ms=1000)
        assert await markers() == [1, 3, 5]
        writer.append((b"x", b"2"))
        await compact(engine, stream, now_ms=1099)
        assert await markers() == [1, 3, 5]
        writer.append((b"x", b"3"))
        await compact(engine, stream, now_ms=1100)
        assert await markers() == [5]


async def test_records_that_are_too_young_are_left_alone() -> None:
    async with opened() as (engine, (stream,)):
        writer = Writer(stream)
        writer.append((b"a", b"1"))
        writer.append((b"a", b"2"))
        await upload(engine)
        old = writer.time
        writer.append((b"a", b"3"))
        await compact(engine, stream, until_ms=old)
        assert [r.offset for r in await read(stream)] == [1, 2]
        state = engine.metadata.state
        left = dirtiness(state, state.streams[stream.stream_id], until_ms=FOREVER)
        assert left.first_dirty == 2
        assert 0 < left.ratio < 1


async def test_a_trim_or_a_deletion_in_between_wins() -> None:
    async with opened() as (engine, (stream,)):
        writer = Writer(stream)
        for number in range(4):
            writer.append((b"a", b"%d" % number), (b"b%d" % number, b"x"))
            await upload(engine)
        compaction = job(engine, stream, group_size=1)
        store, create = engine.reader._store, engine.reader._store.create

        async def trimming(key: str, pieces: Sequence[bytes]) -> None:
            await create(key, pieces)
            if not key.startswith("data/"):
                return
            await engine.metadata.commit([TrimStream(stream_id=stream.stream_id, start_offset=3)])

        with pytest.MonkeyPatch.context() as patching:
            patching.setattr(store, "create", trimming)
            with pytest.raises(Superseded):
                await compaction.run()
        left = (await check_leaks(store, engine.metadata)).uploading
        assert left == (), "no entry can name what came too late"
        assert [r.offset for r in await read(stream)] == [2, 3, 4, 5, 6, 7]
        await compact(engine, stream)
        assert [r.offset for r in await read(stream)] == [3, 5, 6, 7]
        with pytest.raises(OffsetOutOfRange):
            await stream.fetch(2, 1)


async def test_the_state_of_a_partition_survives_its_objects() -> None:
    """The newest whole state goes along; what it was made of is given up."""
    async with opened() as (engine, (stream,)):
        states = iter([b"first", b"second", b"third"])
        stream.state_snapshot = lambda _, end: StateSnapshot(next(states))
        writer = Writer(stream)
        for number in range(3):
            writer.append((b"a", b"%d" % number), producer_id=5)
            await upload(engine)
        old = [e.object_key for e in engine.metadata.state.streams[stream.stream_id].extents]
        assert (await stream.load_state())[::2] == ([b"third"], 3)
        await job(engine, stream).run()
        assert (await stream.load_state())[::2] == ([b"third"], 3)
        assert set(engine.metadata.state.unreferenced) == set(old)
        assert [b async for b in stream.state_batches(3)] == []


async def test_headers_that_a_state_is_made_of_survive_too() -> None:
    """Where no state was uploaded since a crash: they are needed after the whole one, and alone."""
    async with opened() as (engine, (stream,)):
        writer = Writer(stream)
        for has_state in (False, True, False, False):
            stream.state_snapshot = (lambda _, n: StateSnapshot(b"state")) if has_state else None
            writer.append((b"a", b"x"), producer_id=5)
            writer.append((b"a", b"y"))
            await upload(engine)
        before = [b async for b in stream.state_batches(4) if b.header.producer_id == 5]
        assert [b.header.base_offset for b in before] == [4, 6]
        await job(engine, stream).run()
        assert (await stream.load_state())[::2] == ([b"state"], 4)
        assert [b async for b in stream.state_batches(4)] == before
        assert [r.offset for r in await read(stream)] == [7]


async def test_an_object_that_streams_share_stays_for_the_others() -> None:
    async with opened(partitions=3) as (engine, streams):
        for stream in streams:
            writer = Writer(stream)
            writer.append((b"a", b"1"))
            writer.append((b"a", b"2"))
        await compact(engine, streams[1])
        assert [[r.offset for r in await read(one)] for one in streams] == [[0, 1], [1], [0, 1]]
        assert not engine.metadata.state.unreferenced
        report = await check_leaks(engine.reader._store, engine.metadata)
        assert (report.missing, report.leaked, report.strange) == ((), (), ())


async def test_what_nothing_is_removed_from_is_not_written_anew() -> None:
    async with opened() as (engine, (stream,)):
        writer, keys = Writer(stream), list[str]()
        for number in range(3):
            writer.append((b"k%d" % number, b"1"))
            result = await compact(engine, stream, group_size=1)
            assert result.objects == 1
            keys.append(engine.metadata.state.streams[0].extents[-1].object_key)
        assert [e.object_key for e in engine.metadata.state.streams[0].extents] == keys
