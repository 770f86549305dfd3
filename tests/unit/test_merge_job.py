"""Merging small objects: readers, partitions and the next owner see what they saw before."""

import random
from collections.abc import Sequence

import pytest

from lakehead.broker.partition.producer_state import ProducerStates
from lakehead.storage.clock import SystemClock
from lakehead.storage.compaction.object_compaction import MergeResult, ObjectCompaction
from lakehead.storage.compaction.object_compaction_plan import (
    MergeItem,
    MergeRules,
    RebatchSettings,
    plan_merges,
)
from lakehead.storage.errors import CorruptObject
from lakehead.storage.format.partition_state import StateSnapshot, decode_packed, newest
from lakehead.storage.format.producer_headers import StateBatch
from lakehead.storage.format.record_batch import BatchHeader
from lakehead.storage.garbage import check_leaks
from lakehead.storage.metadata.records import COMPACTED, TrimStream
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.stream import Stream
from tests.support.stored_states import TINY
from tests.unit.test_compaction_job import Writer, compact, opened, plain, read, upload

ALL = MergeRules(target_bytes=1 << 30, count_min=2)


def whole(engine: StreamEngine) -> MergeItem:
    """Return an item of all there is."""
    state = engine.metadata.state
    keys = tuple(key for key, known in state.objects.items() if known.stream_ids)
    return MergeItem(sources=keys, streams=tuple(state.streams), size=0)


def merge(engine: StreamEngine, item: MergeItem, *, small: int = 16384) -> ObjectCompaction:
    return ObjectCompaction(
        engine.reader._store,
        engine.metadata,
        SystemClock(),
        random.Random(4),
        item,
        RebatchSettings(small_bytes=small),
    )


async def run_all(engine: StreamEngine, rules: MergeRules) -> list[MergeResult]:
    items = plan_merges(engine.metadata.state, rules)
    return [await merge(engine, item).run() for item in items]


def extents(engine: StreamEngine, stream: Stream) -> list[tuple[int, int]]:
    held = engine.metadata.state.streams[stream.stream_id].extents
    return [(one.start_offset, one.end_offset) for one in held]


async def fill(engine: StreamEngine, streams: Sequence[Stream], uploads: int) -> None:
    rng, writers = random.Random(7), [Writer(stream) for stream in streams]
    for _ in range(uploads):
        for writer in writers:
            for _ in range(rng.randint(0, 3)):
                pairs = [(b"k", b"v" * rng.randrange(50)) for _ in range(rng.randint(1, 3))]
                writer.append(*pairs, codec=rng.choice(["none", "zstd"]))
        await upload(engine)


async def test_many_objects_become_few_and_every_offset_stays() -> None:
    async with opened(partitions=5) as (engine, streams):
        await fill(engine, streams, 12)
        before = [await read(stream) for stream in streams]
        count = len(engine.metadata.state.objects)
        result = await merge(engine, whole(engine)).run()
        assert (result.is_done, result.objects_before, result.objects_after) == (True, count, 1)
        assert result.batches_after < result.batches_before
        assert [extents(engine, stream) for stream in streams] == [
            [(0, stream.confirmed_offset)] for stream in streams
        ]
        assert [await read(stream) for stream in streams] == before
        for offset in range(0, streams[0].confirmed_offset, 3):
            found = await read(streams[0], offset)
            assert plain(found) == [one for one in plain(before[0]) if one[0] >= offset]
        assert not plan_merges(engine.metadata.state, ALL)
        report = await check_leaks(engine.reader._store, engine.metadata)
        assert (report.missing, report.leaked, report.uploading) == ((), (), ())


async def test_incremental_states_are_put_together() -> None:
    """Those of neighbours in one range, by merging; and by compaction of what is left."""
    async with opened(partitions=1) as (engine, (stream,)):
        stored = await stream.load_state()
        producers, offsets = ProducerStates(since=-1, limits=TINY), 0
        stream.state_snapshot = producers.snapshot
        writer = Writer(stream)
        for number in range(12):
            for producer_id in (5, 6 + number):
                writer.append((b"a", b"1"), producer_id=producer_id)
                header = BatchHeader(0, 100, 0, 2, 0, 0, 0, 0, 0, producer_id, 0, number, 1)
                producers.add(header, offsets, offsets, number)
                offsets += 1
            await upload(engine)
        before = await stream.load_state()
        assert len(before.states) > 2 > len(stored.states)
        assert (await merge(engine, whole(engine)).run()).is_done
        after = await stream.load_state()
        assert len(after.states) == 1
        assert after[1:] == before[1:]
        assert dict(newest([decode_packed(one) for one in after.states]).records()) == dict(
            newest([decode_packed(one) for one in before.states]).records()
        )
        restored = ProducerStates.restore(
            after.states, since=after.since, end_offset=after.end_offset
        )
        assert {producer_id for producer_id, _ in restored} == {5, *range(6, 18)}
        (place,) = extents(engine, stream)
        assert place == (0, 24)


def as_of(_: int, end_offset: int) -> StateSnapshot:
    return StateSnapshot(b"state %d" % end_offset)


async def test_states_headers_and_transactions_are_what_they_were() -> None:
    async with opened(partitions=2) as (engine, streams):
        writers = [Writer(stream) for stream in streams]
        for number, has_state in enumerate((True, False, True, False, False, False)):
            for stream, writer in zip(streams, writers, strict=True):
                stream.state_snapshot = as_of if has_state else None
                writer.append((b"a", b"1"), producer_id=5)
                writer.append((b"b", b"2"), producer_id=6, transactional=True)
                writer.end(6, is_commit=number % 2 == 0)
                writer.append((b"c", b"3"), producer_id=5)
            await upload(engine)
        for stream in streams:
            stream.state_snapshot = None

        async def told() -> list[tuple[list[bytes], int, list[StateBatch]]]:
            found = []
            for stream in streams:
                states, _, offset = await stream.load_state()
                found.append((states, offset, [one async for one in stream.state_batches(offset)]))
            return found

        before, rows = await told(), [await read(stream) for stream in streams]
        assert (await merge(engine, whole(engine)).run()).is_done
        for (*state, old), (*state_after, new) in zip(before, await told(), strict=True):
            assert state_after == state
            dropped = [one for one in old if one not in new]
            assert [one for one in old if one in new] == new
            assert [one.header.base_offset for one in dropped] == [12], "a sixth of its producer"
        assert [await read(stream) for stream in streams] == rows
        assert extents(engine, streams[0]) == [(0, 12), (12, 24)], "a whole state ends a range"


async def test_twice_at_once_one_of_them_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as (engine, (stream,)):
        await fill(engine, [stream], 10)
        before = await read(stream)
        item = whole(engine)
        first, second = merge(engine, item), merge(engine, item)
        store, create = engine.reader._store, engine.reader._store.create
        others: list[MergeResult] = []
        begun: list[str] = []

        async def racing(key: str, pieces: Sequence[bytes]) -> None:
            await create(key, pieces)
            if not begun:
                begun.append(key)
                others.append(await second.run())

        monkeypatch.setattr(store, "create", racing)
        assert not (await first.run()).is_done
        assert [one.is_done for one in others] == [True]
        assert await read(stream) == before
        report = await check_leaks(store, engine.metadata)
        assert (report.uploading, report.leaked) == ((), ()), "the loser has cleaned up"


async def test_what_changed_meanwhile_is_left_out_and_the_rest_is_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(partitions=4) as (engine, streams):
        await fill(engine, streams, 6)
        before = [await read(stream) for stream in streams]
        store, create = engine.reader._store, engine.reader._store.create
        done: list[str] = []

        async def interfering(key: str, pieces: Sequence[bytes]) -> None:
            await create(key, pieces)
            if key.startswith("data/") and not done:
                done.append(key)
                end = extents(engine, streams[0])[1][1]
                await engine.metadata.commit([TrimStream(stream_id=0, start_offset=end)])
                await compact(engine, streams[1])

        monkeypatch.setattr(store, "create", interfering)
        assert (await merge(engine, whole(engine)).run()).is_done
        assert len(extents(engine, streams[0])) > 1
        assert [len(extents(engine, stream)) for stream in streams[2:]] == [1, 1]
        state = engine.metadata.state
        held = state.streams[1].extents
        assert {state.objects[one.object_key].kind for one in held} == {COMPACTED}
        assert [await read(stream) for stream in streams[2:]] == before[2:]
        start = streams[0].start_offset
        assert await read(streams[0]) == [one for one in before[0] if one.offset >= start]


async def test_nothing_is_rewritten_often() -> None:
    """Of a stream that grows by small objects, each byte is written a few times, not many."""
    rules = MergeRules(target_bytes=200_000, count_min=4)
    async with opened() as (engine, (stream,)):
        writer, written = Writer(stream), 0
        for _ in range(400):
            writer.append((b"k", bytes(900)))
            await upload(engine)
            for result in await run_all(engine, rules):
                assert result.objects_after == 1
                written += result.bytes_after
        sizes = [one.size for one in engine.metadata.state.streams[0].extents]
        assert max(sizes) <= 200_000
        assert sum(size >= 100_000 for size in sizes) >= 2
        assert len(sizes) < 16
        assert written < 400 * 1000 * 6


async def test_what_is_damaged_is_said_and_nothing_is_replaced() -> None:
    async with opened() as (engine, (stream,)):
        await fill(engine, [stream], 5)
        item, store = whole(engine), engine.reader._store
        key = item.sources[2]
        body = bytearray(await store.get(key))
        body[50] ^= 1
        await store.delete([key])
        await store.create(key, [bytes(body)])
        before = extents(engine, stream)
        with pytest.raises(CorruptObject, match=key):
            await merge(engine, item).run()
        assert extents(engine, stream) == before
