"""Passes over a scan: again and again, closed in the middle, from coroutines, in bounded memory."""

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import pyarrow as pa
import pytest

import lakehead
from lakehead.lake.errors import ScanClosed
from lakehead.lake.store_reader import FETCH_BYTES
from lakehead.storage.errors import CorruptObject, UnknownTopic
from lakehead.storage.object_store import FileStore, MemoryStore, ObjectStore
from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import TestRecord, encode_batch

MIB = 1 << 20


class WatchedStore(MemoryStore):
    """Counts what is read, and holds reads back between `hold` and `release`."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self._gate: Future[None] = Future()
        self.release()

    def hold(self) -> None:
        self._gate = Future()

    def release(self) -> None:
        self._gate.set_result(None)

    async def get_range_into(self, key: str, start: int, target: memoryview) -> None:
        self.reads += 1
        await asyncio.shield(asyncio.wrap_future(self._gate))
        await super().get_range_into(key, start, target)


def fill(store: str | ObjectStore, *, batches: int, size: int = MIB, codec: str = "none") -> None:
    """Topic `orders` of one partition: one record of `size` bytes in each batch."""
    made = LakeCluster(store)
    made.create_topic("orders")
    made.write(
        {
            ("orders", 0): [
                encode_batch([TestRecord(offset=n, key=b"%d" % n, value=b"v" * size)], codec=codec)
                for n in range(batches)
            ]
        }
    )


def test_a_scan_is_read_as_often_as_one_likes(tmp_path: Path) -> None:
    fill(str(tmp_path), batches=5, size=20)
    scan = lakehead.scan(str(tmp_path), "orders", rows_max=2)
    assert scan.length == (tmp_path / "data/00/1-1-1").stat().st_size - _tail(tmp_path)
    first, second = iter(scan), iter(scan)
    counts = [next(first).num_rows, next(second).num_rows, next(first).num_rows]
    assert counts == [2, 2, 2]
    assert [batch.num_rows for batch in first] == [1]
    assert next(first, None) is None
    assert [batch.num_rows for batch in second] == [2, 1]
    assert scan.read_all() == pa.table(scan) == scan.to_reader().read_all()


def _tail(root: Path) -> int:
    """Bytes of index and footer."""
    body = (root / "data/00/1-1-1").read_bytes()
    return len(body) - int.from_bytes(body[6:10], "big") - 10


def test_nothing_is_fetched_before_it_is_asked_for_nor_far_ahead() -> None:
    store = WatchedStore()
    fill(store, batches=100)
    scan = lakehead.scan(store, "orders")
    assert store.reads == 0
    batches = iter(scan)
    assert store.reads == 0
    next(batches)
    assert store.reads <= 1 + 3
    assert scan.length // FETCH_BYTES > 8


def test_closing_stops_fetching_and_says_so_to_who_goes_on() -> None:
    store = WatchedStore()
    fill(store, batches=100)
    with lakehead.scan(store, "orders") as scan:
        passes = [iter(scan), iter(scan)]
        for one in passes:
            next(one)
        store.hold()
        before = pa.total_allocated_bytes()
    for one in passes:
        with pytest.raises(ScanClosed, match="topic 'orders' is closed"):
            next(one)
    with pytest.raises(ScanClosed):
        scan.read_all()
    assert pa.total_allocated_bytes() < before
    scan.close()


def test_closing_ends_the_query_of_an_engine_with_an_error() -> None:
    store = WatchedStore()
    fill(store, batches=100)
    scan = lakehead.scan(store, "orders")
    stream = pa.RecordBatchReader.from_stream(scan)
    stream.read_next_batch()
    scan.close()
    with pytest.raises(Exception, match="the scan of topic 'orders' is closed"):
        stream.read_all()


def test_a_pass_may_be_closed_while_another_thread_waits_for_it() -> None:
    store = WatchedStore()
    fill(store, batches=100)
    scan = lakehead.scan(store, "orders", columns=["offset"])
    batches = iter(scan)
    first = next(batches)
    seen: list[object] = []

    def go_on() -> None:
        try:
            seen.extend(batches)
        except ScanClosed as error:
            seen.append(error)

    reader = threading.Thread(target=go_on)
    reader.start()
    scan.close()
    reader.join(30)
    assert not reader.is_alive()
    # it had read all before the end, or was told
    rows = first.num_rows + sum(
        batch.num_rows for batch in seen if isinstance(batch, pa.RecordBatch)
    )
    assert isinstance(seen[-1], ScanClosed) != (rows == 100)


def test_views_point_into_what_was_fetched(tmp_path: Path) -> None:
    """Values of a scan lie in the buffers that the store filled, header bytes around them."""
    fill(str(tmp_path), batches=3, size=5000)
    body = (tmp_path / "data/00/1-1-1").read_bytes()
    (batch,) = list(lakehead.scan(str(tmp_path), "orders", columns=["value"]))
    column = batch.column(0)
    assert column.type == pa.binary_view()
    _, views, data, _ = column.buffers()
    assert bytes(data) == body[: data.size]  # the object itself, from its first byte
    for row in range(3):
        view = memoryview(views)[row * 16 : row * 16 + 16].tobytes()
        length, buffer, at = (int.from_bytes(view[n : n + 4], "little") for n in (0, 8, 12))
        assert (length, buffer) == (5000, 0)
        assert memoryview(data)[at : at + length].tobytes() == column[row].as_py()
    # and slices and tables of them still do
    table = pa.table([batch.slice(1).column(0)], names=["value"])
    assert table.column(0).chunk(0).buffers()[2].address == data.address


def test_inflated_values_are_not_copied_either(tmp_path: Path) -> None:
    fill(str(tmp_path), batches=3, size=5000, codec="zstd")
    (batch,) = list(lakehead.scan(str(tmp_path), "orders", columns=["value"]))
    _, views, _, inflated = batch.column(0).buffers()
    for row in range(3):
        view = memoryview(views)[row * 16 : row * 16 + 16].tobytes()
        length, buffer, at = (int.from_bytes(view[n : n + 4], "little") for n in (0, 8, 12))
        assert (length, buffer) == (5000, 1)
        assert memoryview(inflated)[at : at + length].tobytes() == b"v" * 5000


async def test_a_coroutine_reads_a_topic(tmp_path: Path) -> None:
    await asyncio.to_thread(fill, str(tmp_path), batches=5, size=20)
    offsets = []
    async with lakehead.scan_async(
        str(tmp_path), "orders", columns=["offset"], rows_max=2
    ) as batches:
        async for batch in batches:
            offsets += batch.column("offset").to_pylist()
    assert offsets == list(range(5))
    with pytest.raises(ScanClosed):
        await anext(batches)
    with pytest.raises(UnknownTopic):
        await anext(lakehead.scan_async(str(tmp_path), "nothing"))


async def test_a_wait_that_is_cancelled_loses_no_batch() -> None:
    store = WatchedStore()
    await asyncio.to_thread(fill, store, batches=40)
    store.hold()
    batches = lakehead.scan_async(store, "orders", columns=["offset"], rows_max=1)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await anext(batches)
    store.release()
    found = [batch.column(0)[0].as_py() async for batch in batches]
    assert found == list(range(40))
    await batches.aclose()


async def test_a_coroutine_may_leave_early() -> None:
    store = WatchedStore()
    await asyncio.to_thread(fill, store, batches=100)
    batches = lakehead.scan_async(store, "orders")
    await anext(batches)
    await batches.aclose()
    await batches.aclose()
    with pytest.raises(ScanClosed):
        await anext(batches)
    # What was asked for ahead may still have begun when it closed, but no more than that.
    assert store.reads <= 1 + 3


async def test_what_is_wrong_is_told_to_the_coroutine(tmp_path: Path) -> None:
    await asyncio.to_thread(fill, str(tmp_path), batches=3, size=5000)
    path = tmp_path / "data/00/1-1-1"
    body = bytearray(path.read_bytes())
    body[9000] ^= 1
    path.chmod(0o644)
    path.write_bytes(body)
    async with lakehead.scan_async(str(tmp_path), "orders") as batches:
        with pytest.raises(CorruptObject, match="orders-0"):
            await anext(batches)


READ_BOUNDED = """
import resource, sys
import lakehead
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
for batch in lakehead.scan(sys.argv[1], "warm"):
    pass
before, size = peak(), 0
for batch in lakehead.scan(sys.argv[1], "orders"):
    size += batch.column("value").nbytes - 16 * batch.num_rows
print(size >> 20, peak() - before)
"""


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_pass_holds_a_bounded_part_of_a_topic(tmp_path: Path, codec: str) -> None:
    """Of 400 MB and more, as stored or inflated, no more than a sixth is ever in memory."""
    made = LakeCluster(FileStore(tmp_path))
    for topic, count in (("warm", 3), ("orders", 400)):
        made.create_topic(topic)
        value = bytes(range(256)) * 4096
        batches = [
            encode_batch([TestRecord(offset=n, value=value)], codec=codec) for n in range(count)
        ]
        made.write({(topic, 0): batches})
    done = subprocess.run(
        [sys.executable, "-c", READ_BOUNDED, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    _, grown = map(int, done.stdout.split())
    assert grown < 70
