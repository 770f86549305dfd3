"""The stream engine over a memory WAL and a memory store: append, fetch hot and cold, restart."""

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager

import pytest

from lakehead.storage.clock import Clock, SystemClock
from lakehead.storage.errors import (
    CorruptObject,
    Fenced,
    OffsetOutOfRange,
    OutcomeUnknown,
    StorageError,
    StreamClosed,
    WalFailed,
)
from lakehead.storage.format.partition_state import StateSnapshot
from lakehead.storage.format.record_batch import patch, read_header
from lakehead.storage.format.stream_object import FOOTER_SIZE
from lakehead.storage.metadata.records import CreateStream, CreateTopic, DeleteTopic, Record
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.object_store.protocol import Buffer
from lakehead.storage.stream import engine as engine_module
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.log_cache import CachedBatch
from lakehead.storage.stream.settings import NodeIdentity, StorageSettings
from lakehead.storage.stream.stream import Stream
from lakehead.storage.tasks import OnError, TaskScope
from lakehead.storage.wal import MemoryWal
from tests.support.record_batches import TestRecord, encode_batch
from tests.support.rust_panic import Panic
from tests.support.wal_tools import opener

TOPIC = "0" * 31 + "1"
SMALL = StorageSettings(
    upload_size=8192, upload_age_s=3600, stream_object_size=2048, cache_size=16384
)


def create_topic(partitions: int):  # type: ignore[no-untyped-def]
    def plan(state: MetadataImage) -> list[Record]:
        if state.topics:
            return []
        streams = [
            CreateStream(stream_id=n, topic_id=TOPIC, partition=n) for n in range(partitions)
        ]
        return [CreateTopic(name="t", topic_id=TOPIC), *streams]

    return plan


@asynccontextmanager
async def running(
    store: MemoryStore,
    wal: MemoryWal,
    *,
    partitions: int = 1,
    settings: StorageSettings = SMALL,
    clean: bool = True,
    clock: Clock | None = None,
    on_crash: OnError | None = None,
) -> AsyncIterator[tuple[StreamEngine, list[Stream]]]:
    def crashed(name: str, error: BaseException) -> None:
        engine.fail(RuntimeError(f"{name}: {error!r}"))

    scope = TaskScope(on_crash or crashed)
    engine = await StreamEngine.open(
        store=store,
        open_wal=opener(wal),
        node=NodeIdentity(node_id=0, host="h", port=1),
        clock=clock or SystemClock(),
        rng=random.Random(len(store.objects)),
        settings=settings,
        scope=scope,
    )
    state = await engine.metadata.commit_with(create_topic(partitions))
    try:
        yield engine, await engine.open_streams(list(state.topics["t"].partitions))
        if clean:
            await engine.close()
    finally:
        await scope.close()


def make_batch(base: int, count: int, timestamp: int = 1000, size: int = 100) -> bytes:
    return encode_batch(
        [
            TestRecord(offset=base + n, timestamp=timestamp + n, key=None, value=b"v" * size)
            for n in range(count)
        ]
    )


async def append(stream: Stream, count: int = 3, timestamp: int = 1000, size: int = 100) -> int:
    """Append one batch, wait until it is durable, return its base offset."""
    base = stream.next_offset
    batch = bytearray(make_batch(base, count, timestamp, size))
    patch(batch, 0, base, stream.epoch)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_done(error: Exception | None) -> None:
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    stream.append(
        memoryview(batch), count=count, max_timestamp=timestamp + count - 1, on_done=on_done
    )
    await done
    return base


async def read_all(stream: Stream, max_bytes: int = 500) -> list[int]:
    """Read a stream to its end and return the base offsets of its batches."""
    bases, offset = [], stream.start_offset
    while offset < stream.confirmed_offset:
        for payload in await stream.fetch(offset, max_bytes):
            header = read_header(payload)
            bases.append(header.base_offset)
            offset = header.end_offset
    return bases


async def test_what_was_appended_is_read_hot_and_cold_and_after_a_clean_restart() -> None:
    store, wal = MemoryStore(), MemoryWal()
    async with running(store, wal, partitions=3) as (engine, streams):
        bases = {s.stream_id: [await append(s) for _ in range(40)] for s in streams[:2]}
        for stream in streams[:2]:
            assert await read_all(stream) == bases[stream.stream_id]
        assert engine.cache.size <= SMALL.cache_size + 4096  # older batches came from objects
        assert await streams[2].fetch(0, 100) == []
    async with running(store, wal.reopen(), partitions=3) as (engine, streams):
        assert [s.epoch for s in streams] == [1, 1, 1]
        assert [s.next_offset for s in streams] == [120, 120, 0]
        for stream in streams[:2]:
            assert await read_all(stream) == bases[stream.stream_id]


async def test_an_unexpected_error_of_one_acknowledgement_is_not_that_of_the_others() -> None:
    """Batches of one write are acknowledged together, and readers wait for the same."""
    async with running(MemoryStore(), MemoryWal(), partitions=2) as (engine, streams):
        acknowledged: list[int] = []

        def broken(*_: object) -> None:
            raise ZeroDivisionError("a defect")

        streams[0].on_advance = broken
        for number in range(4):
            stream = streams[number % 2]
            batch = bytearray(make_batch(0, 3))
            patch(batch, 0, stream.next_offset, stream.epoch)
            on_done = broken if number == 1 else lambda _, n=number: acknowledged.append(n)
            stream.append(memoryview(batch), count=3, max_timestamp=1, on_done=on_done)
        await engine.wait_durable()
        assert acknowledged == [0, 2, 3]
        assert await append(streams[1]) == 6
        assert not engine._failure.done()


async def test_the_failure_of_a_log_reaches_all_that_wait_though_one_of_them_raises() -> None:
    async with running(MemoryStore(), wal := MemoryWal(), clean=False) as (engine, [stream]):
        told: list[Exception | None] = []

        def broken(_error: Exception | None) -> None:
            raise ZeroDivisionError("a defect")

        for on_done in (broken, told.append):
            batch = bytearray(make_batch(0, 3))
            patch(batch, 0, stream.next_offset, stream.epoch)
            stream.append(memoryview(batch), count=3, max_timestamp=1, on_done=on_done)
        wal.break_with(OSError("EIO"))
        assert [type(error) for error in told] == [WalFailed]
        async with asyncio.timeout(10):
            await engine.close()


async def test_a_crash_loses_nothing_that_was_acknowledged() -> None:
    store, wal = MemoryStore(), MemoryWal()
    async with running(store, wal, clean=False) as (_, streams):
        bases = [await append(streams[0]) for _ in range(5)]
    assert not any(key.startswith("data/") for key in store.objects)
    async with running(store, wal.reopen(), clean=False) as (_, streams):
        assert await read_all(streams[0]) == bases
        assert await append(streams[0]) == 15


async def test_state_blobs_are_as_of_the_end_of_the_object() -> None:
    store, wal = MemoryStore(), MemoryWal()
    async with running(store, wal, clean=False) as (engine, streams):
        streams[0].state_snapshot = lambda _, end: StateSnapshot(str(end).encode())
        assert (await streams[0].load_state())[::2] == ([], 0)
        await append(streams[0])
        await engine.upload_now()
        await append(streams[0])
    async with running(store, wal.reopen()) as (_, streams):
        assert (await streams[0].load_state())[::2] == ([b"3"], 3)
        assert streams[0].next_offset == 6


async def test_timestamps_are_found_exactly_in_objects_and_in_memory() -> None:
    store, wal = MemoryStore(), MemoryWal()
    async with running(store, wal) as (engine, streams):
        stream = streams[0]
        for timestamp in range(1000, 1100, 10):
            await append(stream, timestamp=timestamp)
            if timestamp == 1050:
                await engine.upload_now()
        for wanted, offset in ((0, 0), (1000, 0), (1001, 1), (1003, 3), (1062, 20), (1092, 29)):
            found = await stream.offset_for_timestamp(wanted)
            assert found is not None
            assert found.offset == offset
        assert await stream.offset_for_timestamp(1093) is None
        assert await stream.offset_of_max_timestamp() == (29, 1092)


async def test_trim_moves_the_start_and_what_is_below_is_out_of_range() -> None:
    store, wal = MemoryStore(), MemoryWal()
    async with running(store, wal) as (engine, streams):
        for _ in range(4):
            await append(streams[0])
        await streams[0].trim(7)
        assert streams[0].start_offset == 7
        with pytest.raises(OffsetOutOfRange):
            await streams[0].fetch(6, 100)
        assert read_header((await streams[0].fetch(7, 1))[0]).base_offset == 6
        with pytest.raises(OffsetOutOfRange):
            await streams[0].trim(13)
        await streams[0].trim(12)
        assert engine.metadata.state.unreferenced_objects()


async def test_a_failed_wal_acknowledges_nothing_more() -> None:
    async with running(MemoryStore(), wal := MemoryWal(), clean=False) as (engine, streams):
        await append(streams[0])
        wal.break_with(OSError("EIO"))
        with pytest.raises((WalFailed, StreamClosed)):
            await append(streams[0])
        assert isinstance(await engine.wait_failed(), WalFailed)
        assert not engine.writable()
        assert streams[0].confirmed_offset == 3


async def test_a_second_incarnation_fences_the_first() -> None:
    store = MemoryStore()
    poll = StorageSettings(metadata_poll_s=0.01, metadata_poll_max_s=0.01)
    async with (
        running(store, MemoryWal(), clean=False, settings=poll) as (first, _),
        running(store, MemoryWal(), clean=False) as (second, _),
    ):
        assert second.node_epoch == first.node_epoch + 1
        async with asyncio.timeout(30):
            assert "fenced" in str(await first.wait_failed())


async def test_a_deleted_stream_does_not_stop_the_uploads_of_others() -> None:
    async with running(MemoryStore(), MemoryWal(), partitions=2) as (engine, streams):
        for stream in streams:
            await append(stream)
        await engine.metadata.commit([DeleteTopic(topic_id=TOPIC)])
        await engine.upload_now()
        with pytest.raises(StreamClosed):
            _ = streams[0].start_offset


class DefectiveStore(MemoryStore):
    """Its next write of data raises what no store should."""

    defect: BaseException | None = None

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        if self.defect is not None and key.startswith("data/"):
            defect, self.defect = self.defect, None
            raise defect
        await super().create(key, pieces)


NO_THREAD = RuntimeError("can't start new thread")


@pytest.mark.parametrize(
    "defect", [NO_THREAD, Panic("can't start new thread"), asyncio.CancelledError("no thread")]
)
async def test_a_stop_after_an_unexpected_error_of_an_upload_loses_no_acknowledged_record(
    defect: BaseException,
) -> None:
    """A node stops in order then. A stream that was closed, or a log that was trimmed, without the
    records of that upload would never get them back.
    """
    store, wal, crashes = DefectiveStore(), MemoryWal(), list[str]()
    node = running(store, wal, partitions=2, on_crash=lambda name, _: crashes.append(name))
    async with node as (engine, streams):
        bases = [await append(streams[0])]
        store.defect = defect
        with pytest.raises(StorageError, match="thread"):
            await engine.upload_now()
        assert "thread" in str(await engine.wait_failed())
        assert crashes == ["upload"]
    async with running(store, wal.reopen(), partitions=2) as (_, streams):
        assert await read_all(streams[0]) == bases


async def test_an_upload_behind_one_that_failed_unexpectedly_trims_nothing() -> None:
    store, wal = DefectiveStore(), MemoryWal()
    node = running(store, wal, partitions=2, clean=False, on_crash=lambda _name, _error: None)
    async with node as (engine, streams):
        bases, others = [await append(streams[0])], [await append(streams[1])]
        store.defect = NO_THREAD
        engine._uploads.start_ahead([0])
        with pytest.raises(StorageError, match="can't start new thread"):
            await engine.upload_now()
        assert wal.trimmed_position == 0
    async with running(store, wal.reopen(), partitions=2) as (_, streams):
        assert [await read_all(one) for one in streams] == [bases, others]


async def test_records_of_an_upload_that_could_not_be_begun_stay_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are sealed, and in no other upload."""

    def broken(coro: Coroutine[None, None, None], *, name: str) -> None:
        coro.close()
        raise MemoryError(name)

    store, wal = MemoryStore(), MemoryWal()
    async with running(store, wal, partitions=2, clean=False) as (engine, streams):
        bases = [await append(streams[0])]
        with monkeypatch.context() as patched:
            patched.setattr(engine._scope, "spawn", broken)
            with pytest.raises(StorageError, match="MemoryError"):
                await engine.upload_now()
        with pytest.raises(StorageError, match="MemoryError"):
            await engine.upload_now()
        assert wal.trimmed_position == 0
    async with running(store, wal.reopen(), partitions=2) as (_, streams):
        assert await read_all(streams[0]) == bases


async def test_an_upload_that_ends_with_its_node_before_it_began_is_not_taken_for_done() -> None:
    """A stop would close its streams, and the log would be marked as uploaded."""
    store, wal = MemoryStore(), MemoryWal()
    async with running(store, wal, clean=False) as (engine, [stream]):
        bases = [await append(stream)]
        uploading = asyncio.ensure_future(engine.upload_now())
        await asyncio.sleep(0)
        await engine._scope.close()
        with pytest.raises(StorageError, match="CancelledError"):
            await uploading
        assert wal.trimmed_position == 0
    async with running(store, wal.reopen()) as (_, [stream]):
        assert await read_all(stream) == bases


async def test_an_object_of_another_writer_under_a_name_of_this_node_is_not_committed() -> None:
    """No name should be given twice. If one is, as of a copy of metadata and objects of two times,
    the old object would be read in the place of acknowledged records.
    """
    other = MemoryStore()
    async with running(other, MemoryWal()) as (_, [stream]):
        await append(stream, count=9)
    taken = {key: body for key, body in other.objects.items() if key.startswith("data/")}
    store, wal = MemoryStore(dict(taken)), MemoryWal()
    async with running(store, wal, clean=False) as (engine, [stream]):
        bases = [await append(stream)]
        with pytest.raises(Fenced, match="in epoch 0 already"):
            await engine.upload_now()
        assert wal.trimmed_position == 0
    async with running(store, wal.reopen()) as (_, [stream]):
        assert await read_all(stream) == bases


class SpoilingStore(MemoryStore):
    """Loses the response to the first put of data, and spoils the first reads of what it put."""

    def __init__(self, spoils: int) -> None:
        super().__init__()
        self.spoils = spoils
        self.lost = 0

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        await super().create(key, pieces)
        if key.startswith("data/") and not self.lost:
            self.lost += 1
            raise OutcomeUnknown("the response is lost")

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        body, size = await super().get_suffix(key, length)
        if not key.startswith("data/") or not self.spoils:
            return body, size
        self.spoils -= 1
        return bytes(len(body) - FOOTER_SIZE) + body[-FOOTER_SIZE:], size


async def test_a_spoilt_read_of_an_own_object_is_repeated_before_the_node_ends() -> None:
    store = SpoilingStore(2)
    async with running(store, MemoryWal()) as (engine, [stream]):
        bases = [await append(stream)]
        await engine.upload_now()
        assert (store.lost, store.spoils) == (1, 0)
        assert engine.metadata.state.streams[0].end_offset == 3
        assert await read_all(stream) == bases


async def test_an_own_object_that_is_damaged_for_good_ends_the_node() -> None:
    store = SpoilingStore(1 << 30)
    async with running(store, wal := MemoryWal(), clean=False) as (engine, [stream]):
        await append(stream)
        with pytest.raises(CorruptObject):
            await engine.upload_now()
        assert wal.trimmed_position == 0


async def test_records_whose_state_cannot_be_described_stay_in_the_log() -> None:
    """The batches of such an upload are sealed, and belong to no upload."""
    store, wal = MemoryStore(), MemoryWal()
    async with running(store, wal, partitions=2, clean=False) as (engine, streams):
        bases = [await append(streams[0])]

        def broken(_start: int, _end: int) -> StateSnapshot:
            raise ZeroDivisionError("a defect")

        streams[0].state_snapshot = broken
        others = [await append(streams[1])]
        with pytest.raises(StorageError, match="a defect"):
            await engine.upload_now()
        with pytest.raises(StorageError, match="a defect"):
            await engine.upload_now()
        assert wal.trimmed_position == 0
    async with running(store, wal.reopen(), partitions=2) as (_, streams):
        assert [await read_all(one) for one in streams] == [bases, others]


@pytest.mark.parametrize("is_in_log", [True, False])
async def test_no_offset_is_given_twice_in_a_log_after_an_unexpected_error_of_an_append(
    is_in_log: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recovery would take the record that was not acknowledged, and leave the other one out."""

    def broken(*given: object) -> None:
        if is_in_log:
            log_append(*given)  # type: ignore[arg-type]
        raise MemoryError

    store, wal = MemoryStore(), MemoryWal()
    log_append = wal.append
    async with running(store, wal, clean=False) as (engine, [stream]):
        bases = [await append(stream)]
        with monkeypatch.context() as patched:
            if is_in_log:
                patched.setattr(wal, "append", broken)
            else:
                patched.setattr(engine_module, "PendingAppend", broken)
            with pytest.raises(MemoryError):
                await append(stream, count=9)
        with pytest.raises(StreamClosed):
            await append(stream)
        assert "MemoryError" in str(await engine.wait_failed())
    async with running(store, wal.reopen()) as (_, [stream]):
        assert (await read_all(stream))[:1] == bases


async def test_an_unexpected_error_between_log_and_cache_ends_the_engine() -> None:
    """A batch that has not come to the cache is in no upload, though the log has released it."""
    store, wal = MemoryStore(), MemoryWal()
    async with running(store, wal, partitions=2, clean=False) as (engine, streams):
        bases = [await append(streams[0])]
        add = engine.cache.add

        def broken(stream_id: int, batch: CachedBatch) -> None:
            if stream_id == 1:
                raise MemoryError
            add(stream_id, batch)

        engine.cache.add = broken  # type: ignore[method-assign]
        lost = asyncio.ensure_future(append(streams[1]))
        async with asyncio.timeout(30):
            assert "MemoryError" in str(await engine.wait_failed())
        with pytest.raises(StorageError, match="MemoryError"):
            await engine.upload_now()
        assert wal.trimmed_position == 0
        lost.cancel()
    async with running(store, wal.reopen(), partitions=2) as (_, streams):
        assert await read_all(streams[0]) == bases
        assert await read_all(streams[1]) == [0]


async def test_a_batch_on_its_way_to_a_deleted_stream_is_charged_to_the_cache_no_more() -> None:
    """A charge that stayed would leave the cache less room with each topic that is deleted."""
    async with running(MemoryStore(), MemoryWal(), partitions=2) as (engine, streams):
        await append(streams[0])
        await engine.metadata.commit([DeleteTopic(topic_id=TOPIC)])
        late = asyncio.ensure_future(append(streams[0]))
        await asyncio.sleep(0)
        assert streams[0].confirmed_offset < streams[0].next_offset
        engine.close_deleted(streams[0])
        await late
        await engine.upload_now()
        assert (engine.cache.uncommitted, engine.cache.size) == (0, 0)
