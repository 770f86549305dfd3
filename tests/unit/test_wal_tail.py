"""`tail=wal`: what is acknowledged and not uploaded yet, read from WAL objects in place."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lakehead.lake.offsets import resolve
from lakehead.lake.planner import Split
from lakehead.lake.positions import TopicPartition
from lakehead.lake.source.options import ReadOptions, batch_options
from lakehead.lake.source.rows import RecordRows
from lakehead.lake.source.splits import read_split, splits_of_read
from lakehead.lake.source.view import View, Viewer
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError
from lakehead.storage.format.record_batch import patch
from lakehead.storage.metadata.records import CreateStream, CreateTopic, Record
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import FileStore
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.settings import NodeIdentity, StorageSettings
from lakehead.storage.stream.stream import Stream
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal import ObjectWal, WalOwner, WriteAheadLog
from tests.support.object_wal_tools import QUICK
from tests.support.record_batches import TestRecord, encode_batch
from tests.support.waiting import wait_until

LAZY = StorageSettings(upload_size=1 << 24, upload_age_s=3600)
EAGER = StorageSettings(upload_size=4096, upload_age_s=3600, stream_object_size=2048)
ZERO = TopicPartition("t", 0)


def two_partitions(state: MetadataImage) -> list[Record]:
    if "t" in state.topics:
        return []
    topic_id = "a" * 32
    streams = [CreateStream(stream_id=n, topic_id=topic_id, partition=n) for n in range(2)]
    return [CreateTopic(name="t", topic_id=topic_id), *streams]


@asynccontextmanager
async def broker(
    folder: Path,
    settings: StorageSettings,
    *,
    node_id: int = 0,
    wal: str = "object:",
    seed: int = 0,
) -> AsyncIterator[tuple[StreamEngine, list[Stream]]]:
    """An engine over the object WAL, with two partitions if it is the first one there; at the end
    it crashes.
    """
    store = FileStore(folder)

    async def open_wal(owner: WalOwner) -> WriteAheadLog:
        return ObjectWal(owner.store, owner, QUICK, are_shared=True)

    scope = TaskScope(lambda name, error: engine.fail(RuntimeError(f"{name}: {error!r}")))
    engine = await StreamEngine.open(
        store=store,
        open_wal=open_wal,
        node=NodeIdentity(node_id=node_id, host="h", port=1, wal=wal),
        clock=SystemClock(),
        rng=random.Random(seed),
        settings=settings,
        scope=scope,
    )
    try:
        state = await engine.metadata.commit_with(two_partitions)
        opened = list(state.topics["t"].partitions) if node_id == 0 else []
        yield engine, await engine.open_streams(opened)
    finally:
        await scope.close()
        await store.close()  # what it was about to delete is gone


async def append(stream: Stream, count: int = 10, **options: Any) -> int:
    """Append a batch; return the offset after it once it is acknowledged."""
    base = stream.next_offset
    records = [TestRecord(offset=base + n, value=b"%d" % (base + n)) for n in range(count)]
    batch = bytearray(encode_batch(records, **options))
    patch(batch, 0, base, stream.epoch)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_done(error: Exception | None) -> None:
        done.set_result(None) if error is None else done.set_exception(error)

    newest = max(record.timestamp for record in records)
    stream.append(memoryview(batch), count=count, max_timestamp=newest, on_done=on_done)
    await done
    return base + count


def options(folder: Path, **given: str) -> ReadOptions:
    return batch_options({"path": str(folder), "subscribe": "t", "tail": "wal"} | given)


def plan(given: ReadOptions, view: View) -> Sequence[Split]:
    asked = resolve(view.snapshot, list(view.logs.values()), given.bounds)
    return splits_of_read(given, view.snapshot, asked)


def read(given: ReadOptions, splits: Sequence[Split]) -> dict[int, list[int]]:
    """Return the offsets in each partition; each record has its offset as its value."""
    found: dict[int, list[int]] = {0: [], 1: []}
    rows = RecordRows(record_columns=("partition", "offset", "value"))
    for split in splits:
        for batch in read_split(given, rows, split):
            for row in batch.to_pylist():
                assert row["value"] == b"%d" % row["offset"]
                found[row["partition"]].append(row["offset"])
    return found


def look_and_read(given: ReadOptions) -> dict[int, list[int]]:
    return read(given, Viewer(given).look(lambda view: plan(given, view)))


async def test_what_is_acknowledged_is_there_at_once(tmp_path: Path) -> None:
    given = options(tmp_path)
    async with broker(tmp_path, LAZY) as (engine, streams):
        viewer = Viewer(given)
        for round_ in range(1, 4):
            assert await append(streams[0]) == round_ * 10
            view = await asyncio.to_thread(viewer.now)
            assert view.logs[ZERO].end_offset == round_ * 10
            assert viewer.now() is view  # nothing has changed
        await engine.upload_now()
        await append(streams[1], 7)
        await append(streams[0], 5)
        found = await asyncio.to_thread(look_and_read, given)
        assert found == {0: list(range(35)), 1: list(range(7))}
        objects = await asyncio.to_thread(look_and_read, options(tmp_path, tail="objects"))
        assert objects == {0: list(range(30)), 1: []}


async def test_what_is_uploaded_between_plan_and_read_is_found_again(tmp_path: Path) -> None:
    given = options(tmp_path)
    async with broker(tmp_path, LAZY) as (engine, streams):
        for _ in range(5):
            await append(streams[0])
            await append(streams[1])
        view = await asyncio.to_thread(Viewer(given).now)
        splits = plan(given, view)
        await engine.upload_now()
        assert await asyncio.to_thread(
            wait_until, lambda: not list(tmp_path.glob("wal/0/*/*")), deadline_s=20
        )
        found = await asyncio.to_thread(read, given, splits)
        assert found == {0: list(range(50)), 1: list(range(50))}


async def test_nothing_is_missed_or_doubled_beside_uploads(tmp_path: Path) -> None:
    given = options(tmp_path)
    acknowledged = [0, 0]
    async with broker(tmp_path, EAGER) as (engine, streams):

        async def produce(number: int) -> None:
            while True:
                acknowledged[number] = await append(streams[number], 20)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(produce(number)) for number in range(2)]
            looks = 0
            while looks < 10 or engine.metadata.state.nodes[0].wal_floor < 10:
                looks, before = looks + 1, tuple(acknowledged)
                found = await asyncio.to_thread(look_and_read, given)
                for number, least in enumerate(before):
                    assert found[number] == list(range(len(found[number])))
                    assert len(found[number]) >= least
            for task in tasks:
                task.cancel()


async def test_what_a_crash_left_is_read_before_and_after_its_recovery(tmp_path: Path) -> None:
    given = options(tmp_path)
    async with broker(tmp_path, LAZY) as (_, streams):
        for _ in range(3):
            await append(streams[0])
    assert (await asyncio.to_thread(look_and_read, given))[0] == list(range(30))
    async with broker(tmp_path, LAZY, seed=1) as (_, streams):
        assert (await asyncio.to_thread(look_and_read, given))[0] == list(range(30))
        await append(streams[0])
        assert (await asyncio.to_thread(look_and_read, given))[0] == list(range(40))


async def test_a_partition_that_moves_takes_its_tail_along(tmp_path: Path) -> None:
    given = options(tmp_path)
    async with (
        broker(tmp_path, LAZY) as (first, streams),
        broker(tmp_path, LAZY, node_id=1, seed=1) as (second, _),
    ):
        for stream in streams:
            await append(stream)
        moved = streams[0].stream_id
        await first.hand_over([moved])
        await second.metadata.refresh()
        (stream,) = await second.open_streams([moved])
        await append(stream, 5)
        found = await asyncio.to_thread(look_and_read, given)
        assert found == {0: list(range(15)), 1: list(range(10))}


async def test_an_open_transaction_in_the_tail_ends_what_is_committed(tmp_path: Path) -> None:
    async with broker(tmp_path, LAZY) as (_, streams):
        await append(streams[0])
        await append(streams[0], producer_id=7, transactional=True)
        await append(streams[0])
        found = await asyncio.to_thread(look_and_read, options(tmp_path))
        assert found[0] == list(range(10))
        level = {"kafka.isolation.level": "read_uncommitted"}
        found = await asyncio.to_thread(look_and_read, options(tmp_path, **level))
        assert found[0] == list(range(30))


async def test_a_log_elsewhere_is_an_error_that_names_it(tmp_path: Path) -> None:
    async with broker(tmp_path, LAZY, wal="block:/dev/disk") as (_, streams):
        await append(streams[0])
        with pytest.raises(SettingsError, match="that of node 0 is block:/dev/disk: start"):
            await asyncio.to_thread(Viewer(options(tmp_path)).now)
