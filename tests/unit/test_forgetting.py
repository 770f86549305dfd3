"""Records of forgotten keys leave the objects of a stream, and nothing else changes."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from lakehead.storage.certificates import key_hash
from lakehead.storage.clock import SystemClock
from lakehead.storage.compaction.batches import sealed
from lakehead.storage.compaction.forgetting import (
    Findings,
    GivenKeys,
    HashedKeys,
    ObjectRewrite,
    RewrittenObject,
    Superseded,
    find_in_object,
)
from lakehead.storage.errors import FeatureNotEnabled
from lakehead.storage.format.record_batch import HEADER_SIZE, crc_ok, read_header
from lakehead.storage.format.record_check import RecordChecker
from lakehead.storage.format.records import KafkaRecord
from lakehead.storage.format.stream_object import read_index
from lakehead.storage.garbage import check_leaks
from lakehead.storage.metadata.records import COMPACTED, TrimStream
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.stream import Stream
from lakehead.storage.verification import SAMPLE_ALL, expected_objects, verify_object
from lakehead.storage.wal import MemoryWal
from tests.support.record_batches import CODECS
from tests.unit.test_compaction_job import PLAIN, Writer, compact, opened, plain, read, upload
from tests.unit.test_merge_job import merge, whole
from tests.unit.test_stream_engine import running

KEY = b"forget-me"


async def noted(made: RewrittenObject) -> None:
    """No test here reads the note."""


def rewrite(
    engine: StreamEngine, key: str, keys: Iterable[bytes], ends: dict[int, int]
) -> ObjectRewrite:
    rng = random.Random(5)
    return ObjectRewrite(
        store=engine.reader._store,
        metadata=engine.metadata,
        clock=SystemClock(),
        rng=rng,
        key=key,
        keys=GivenKeys(tuple(keys), rng),
        ends=ends,
        certificate=1,
    )


async def forget(
    engine: StreamEngine, streams: Sequence[Stream], *keys: bytes, end: int | None = None
) -> Findings:
    """Forget keys in all objects of some streams."""
    state = engine.metadata.state
    ends = {
        one.stream_id: state.stream(one.stream_id).end_offset if end is None else end
        for one in streams
    }
    found = Findings()
    for key in sorted(state.objects):
        if state.objects[key].stream_ids & ends.keys():
            made = await rewrite(engine, key, keys, ends).run(noted)
            if made is not None:
                found.records += made.findings.records
                found.batches += made.findings.batches
    return found


async def batches_of(stream: Stream) -> list[memoryview]:
    """Every batch, as it is fetched."""
    found, at = [], stream.start_offset
    while at < stream.confirmed_offset:
        for batch in await stream.fetch(at, 1 << 20):
            found.append(batch)
            at = read_header(batch).end_offset
    return found


async def check_objects(engine: StreamEngine) -> None:
    """Everything is what `lakehead verify` wants."""
    state = engine.metadata.state
    for one in expected_objects(state, topic=None, sample_percent=SAMPLE_ALL, seed=0):
        report = await verify_object(engine.reader._store, one, RecordChecker())
        assert not report.damages, report.damages


def without(records: Sequence[KafkaRecord], *keys: bytes) -> list[KafkaRecord]:
    return [one for one in records if one.key not in keys]


async def test_no_merged_object_has_records_that_were_forgotten_while_it_was_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Streams of several objects share the new one; a key of one is forgotten between its reading
    and its commit. No reader would find the records there, but the object would have them. It is
    written again without that stream, and without what `forget` has rewritten with it.
    """
    async with opened(partitions=4) as (engine, streams):
        for some in (streams[:2], streams[2:]) * 3:
            for stream in some:
                Writer(stream).append((KEY, b"1"), (b"k", b"2"))
            await upload(engine)
        store, create = engine.reader._store, engine.reader._store.create
        done: list[str] = []

        async def interfering(key: str, pieces: Sequence[bytes]) -> None:
            await create(key, pieces)
            if not done:
                done.append(key)
                assert (await forget(engine, streams[:1], KEY)).records == 3

        monkeypatch.setattr(store, "create", interfering)
        assert (await merge(engine, whole(engine)).run()).is_done
        monkeypatch.undo()
        state, keys = engine.metadata.state, GivenKeys((KEY,), random.Random(5))
        for key in (one for one, known in state.objects.items() if known.stream_ids):
            index = await read_index(store, key)
            found = await find_in_object(store, index, keys, {streams[0].stream_id: 1 << 62})
            assert found.records == 0
        report = await check_leaks(store, engine.metadata)
        assert (report.missing, report.uploading, report.leaked) == ((), (), ())
        assert (await merge(engine, whole(engine)).run()).is_done


@pytest.mark.parametrize("codec", CODECS)
async def test_batches_keep_offsets_producer_and_checksum_and_lose_the_records(codec: str) -> None:
    async with opened() as (engine, (stream,)):
        writer = Writer(stream)
        writer.append((KEY, b"1"), (b"a", KEY), (KEY + b"x", b"2"), codec=codec, producer_id=7)
        writer.append((KEY, b"3"), (KEY, None), codec=codec, producer_id=7)
        writer.append((None, KEY), (b"", b"4"), codec=codec)
        await upload(engine)
        before, old = await read(stream), await batches_of(stream)
        found = await forget(engine, [stream], KEY)
        assert (found.records, found.batches) == (3, 2)
        assert plain(await read(stream)) == plain(without(before, KEY))
        new = await batches_of(stream)
        assert all(map(crc_ok, new))
        for one, other in zip(map(read_header, old), map(read_header, new), strict=True):
            same = (one.base_offset, one.last_offset_delta, one.producer_id, one.producer_epoch)
            assert same == (
                *(other.base_offset, other.last_offset_delta),
                *(other.producer_id, other.producer_epoch),
            )
            assert (one.base_sequence, one.leader_epoch) == (
                other.base_sequence,
                other.leader_epoch,
            )
        assert [read_header(one).record_count for one in new] == [2, 0, 2]
        assert bytes(new[2]) == bytes(old[2])
        await check_objects(engine)


async def test_an_empty_key_and_many_keys_are_found_too() -> None:
    async with opened() as (engine, (stream,)):
        writer = Writer(stream)
        keys = [b"", *(b"k%d" % n for n in range(40))]
        for number in range(60):
            writer.append((b"k%d" % number, b"v"), (b"", b"v"), (None, b"v"))
        await upload(engine)
        before = await read(stream)
        assert (await forget(engine, [stream], *keys)).records == 100
        assert plain(await read(stream)) == plain(without(before, *keys))


async def test_random_traffic_loses_what_a_model_says() -> None:
    for seed in range(12):
        rng = random.Random(seed)
        async with opened(partitions=2) as (engine, streams):
            writers = [Writer(stream) for stream in streams]
            for _ in range(40):
                writer = rng.choice(writers)
                pairs = [
                    (rng.choice([None, b"", b"a", b"aa", b"aaa", b"b"]), b"%d" % rng.randrange(99))
                    for _ in range(rng.randint(1, 5))
                ]
                producer = rng.choice([-1, 7, 8])
                is_part = producer == 8 and rng.random() < 0.5
                writer.append(
                    *pairs,
                    producer_id=producer,
                    transactional=is_part,
                    codec=rng.choice(["none", "none", "zstd", "lz4"]),
                )
                if is_part:
                    writer.end(8, is_commit=rng.random() < 0.5)
                if rng.random() < 0.3:
                    await upload(engine)
            await upload(engine)
            before = [await read(stream) for stream in streams]
            chosen = rng.sample([b"", b"a", b"aa", b"b"], rng.randint(1, 2))
            end = rng.choice([None, rng.randrange(60)])
            await forget(engine, streams, *chosen, end=end)
            for stream, records in zip(streams, before, strict=True):
                limit = 1 << 60 if end is None else end
                left = [r for r in records if r.key not in chosen or r.offset >= limit]
                assert plain(await read(stream)) == plain(left), seed
            await check_objects(engine)
            again = await forget(engine, streams, *chosen, end=end)
            assert (again.records, again.batches) == (0, 0)


async def test_other_streams_of_the_object_and_later_records_stay() -> None:
    """The object goes as a whole: so what it has of other streams moves too."""
    async with opened(partitions=2) as (engine, streams):
        for stream in streams:
            Writer(stream).append((KEY, b"1"), (b"a", b"2"))
            Writer(stream).append((KEY, b"3"))
        await upload(engine)
        (old,) = engine.metadata.state.objects
        assert (await forget(engine, streams[:1], KEY, end=2)).records == 1
        state = engine.metadata.state
        assert set(state.unreferenced) == {old}
        assert [(r.key, r.value) for r in await read(streams[0])] == [(b"a", b"2"), (KEY, b"3")]
        assert len(await read(streams[1])) == 3
        await check_objects(engine)


async def test_the_kind_of_an_object_stays_so_that_log_compaction_goes_on() -> None:
    async with opened() as (engine, (stream,)):
        writer = Writer(stream)
        writer.append((b"a", b"1"), (KEY, b"2"), (b"a", b"3"))
        await compact(engine, stream)
        writer.append((KEY, b"4"), (b"b", b"5"), (b"b", b"6"))
        await upload(engine)
        assert (await forget(engine, [stream], KEY)).records == 2
        state = engine.metadata.state
        kinds = [
            state.objects[one.object_key].kind == COMPACTED
            for one in state.stream(stream.stream_id).extents
        ]
        assert kinds == [True, False]
        await compact(engine, stream)
        assert [(r.key, r.value) for r in await read(stream)] == [(b"a", b"3"), (b"b", b"6")]
        await check_objects(engine)


async def test_a_batch_that_cannot_be_read_stays_and_is_counted() -> None:
    async with opened() as (engine, (stream,)):
        writer = Writer(stream)
        writer.append((b"a", b"1"), codec="zstd")
        writer.append((KEY, b"1"), codec="zstd")
        await engine.wait_durable()
        bad = bytearray(stream._engine.cache.batches_from(stream.stream_id, 0)[0].payload)
        bad[HEADER_SIZE:] = b"\xff" * (len(bad) - HEADER_SIZE)
        whole = memoryview(bad)
        writer._append(bytearray(sealed(read_header(whole), whole)))
        await upload(engine)
        (key,) = engine.metadata.state.objects
        made = await rewrite(engine, key, [KEY], {stream.stream_id: 3}).run(noted)
        assert made is not None
        assert made.findings.records == 1
        assert made.findings.unreadable == {stream.stream_id: [(2, 3)]}


async def test_by_a_keyed_hash_the_same_records_are_found() -> None:
    async with opened() as (engine, (stream,)):
        writer = Writer(stream)
        for codec in ("none", "zstd"):
            writer.append((KEY, b"1"), (b"a", b"2"), (None, b"3"), (b"", b"4"), codec=codec)
        await upload(engine)
        (name,) = engine.metadata.state.objects
        index = await read_index(engine.reader._store, name)
        salt, ends, rng = b"s" * 32, {stream.stream_id: 7}, random.Random(1)
        for key, count in ((KEY, 2), (b"", 1), (b"b", 0)):
            hashed = HashedKeys(salt, [key_hash(salt, key)], rng)
            for keys in (hashed, GivenKeys([key], rng)):
                found = await find_in_object(engine.reader._store, index, keys, ends)
                assert found.records == count


async def test_what_changed_since_it_was_read_is_left_and_reported() -> None:
    async with opened() as (engine, (stream,)):
        Writer(stream).append((KEY, b"1"), (b"a", b"2"))
        await upload(engine)
        (key,) = engine.metadata.state.objects

        async def trim(_: RewrittenObject) -> None:
            await engine.metadata.commit([TrimStream(stream_id=stream.stream_id, start_offset=2)])

        with pytest.raises(Superseded):
            await rewrite(engine, key, [KEY], {stream.stream_id: 2}).run(trim)
        assert [one.key for one in await engine.reader._store.list("data/")] == [key]


async def test_neither_log_cache_nor_block_cache_has_the_records_after_the_entry() -> None:
    async with opened() as (engine, (stream,)):
        writer = Writer(stream)
        writer.append((KEY, b"1"), (b"a", b"2"))
        await upload(engine)
        assert len(await read(stream)) == 2  # from the log cache
        (old,) = engine.metadata.state.objects
        held = engine.cache.fetch(stream.stream_id, 0, 1000)
        assert held is not None
        engine.cache.replaced(stream.stream_id, 2)
        assert len(await read(stream)) == 2  # from the object, by the block cache
        assert engine.reader.blocks.object_keys() == {old}
        assert engine.reader.indexes.get_cached(old) is not None
        await forget(engine, [stream], KEY)
        assert engine.cache.fetch(stream.stream_id, 0, 1000) is None
        assert engine.reader.blocks.object_keys() == set()
        assert engine.reader.indexes.get_cached(old) is None
        assert [r.key for r in await read(stream)] == [b"a"]


async def test_an_upload_that_is_replaced_before_its_node_knows_it_leaves_the_cache() -> None:
    """The entry that replaces may be met before the uploading task goes on."""
    async with opened() as (engine, (stream,)):
        Writer(stream).append((KEY, b"1"))
        await engine.wait_durable()
        cache = engine.cache
        block = cache.seal()
        cache.replaced(stream.stream_id, 1)
        assert cache.fetch(stream.stream_id, 0, 1000) is not None  # not committed: it stays
        cache.committed(block)
        assert cache.fetch(stream.stream_id, 0, 1000) is None
        assert cache.size == cache.uncommitted == 0


async def test_entries_that_were_passed_over_empty_the_caches_of_what_is_in_objects() -> None:
    async with opened() as (engine, (stream,)):
        Writer(stream).append((KEY, b"1"))
        await upload(engine)
        Writer(stream).append((b"a", b"2"))
        await engine.wait_durable()
        engine.cache.follow(engine.metadata.state, None)
        engine.reader.follow(engine.metadata.state, None)
        assert engine.cache.fetch(stream.stream_id, 0, 1000) is None
        assert engine.cache.fetch(stream.stream_id, 1, 1000) is not None
        assert len(await read(stream)) == 2


async def test_a_cluster_at_an_earlier_level_is_left_as_it_is() -> None:
    """Its nodes would not know that their caches have to go."""
    async with running(MemoryStore(), MemoryWal(), settings=PLAIN) as (engine, (stream,)):
        Writer(stream).append((KEY, b"1"))
        await upload(engine)
        (key,) = engine.metadata.state.objects
        state = engine.metadata.state
        reader = engine.metadata._reader
        reader.state = replace(state, features=state.features.set("metadata.version", 1))
        with pytest.raises(FeatureNotEnabled, match="ReplaceObjects"):
            await rewrite(engine, key, [KEY], {stream.stream_id: 1}).run(noted)


async def test_trimmed_records_in_an_object_that_other_partitions_need_go_too() -> None:
    async with opened(partitions=2) as (engine, (first, second)):
        Writer(first).append((KEY, b"1"))
        Writer(second).append((b"a", b"2"))
        await upload(engine)
        (old,) = engine.metadata.state.objects
        await engine.metadata.commit([TrimStream(stream_id=first.stream_id, start_offset=1)])
        await forget(engine, [first, second], KEY)
        state = engine.metadata.state
        (new,) = [one.object_key for one in state.stream(second.stream_id).extents]
        assert new != old
        assert KEY not in await engine.reader._store.get(new)
        assert [r.key for r in await read(second)] == [b"a"]
        await check_objects(engine)
