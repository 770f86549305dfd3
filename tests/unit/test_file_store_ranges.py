"""Long ranges of local objects come past the page cache, and from it when an object is read again;
either way they are the object's bytes.
"""

import asyncio
import contextlib
import ctypes
import errno
import mmap
import os
import random
import resource
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.storage.errors import CorruptObject, ObjectNotFound
from lakehead.storage.kernel_aio import KernelAio
from lakehead.storage.object_store import FileStore, file, kernel_reads
from lakehead.storage.stream.block_cache import BlockCache

SECTOR, KIB, MIB = 4096, 1 << 10, 1 << 20
SIZE = 3 * MIB + 777
BODY = random.Random(7).randbytes(SIZE)
PLACES = st.one_of(
    st.integers(0, SIZE),
    st.sampled_from((0, 1, SECTOR - 1, SECTOR, SECTOR + 1, MIB, SIZE - 256 * KIB, SIZE)),
)


def is_cached(path: Path) -> bool:
    """Return true if the page cache has the first bytes of a file. A read would bring them in."""
    pages = (ctypes.c_ubyte * 1)()
    with path.open("rb") as file, mmap.mmap(file.fileno(), SECTOR, mmap.MAP_PRIVATE) as mapped:
        place = ctypes.c_char.from_buffer(mapped)
        assert (
            ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(place)), SECTOR, pages) == 0
        )
        del place
    return bool(pages[0] & 1)


async def read(folder: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Return ranges of an object with this body, read one after another."""
    store = FileStore(folder)
    await store.create("a/b", [BODY])
    found = [bytes(await store.get_range("a/b", first, end - first)) for first, end in ranges]
    await store.close()
    return found


def without_kernel_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have long ranges read by threads, as where the kernel has no queue."""
    monkeypatch.setattr(file, "open_aio", lambda: None)


def open_files(folder: Path) -> list[str]:
    """Return the files below a folder that this process has open, also those that are deleted."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(link.readlink()))
    return [name for name in found if name.startswith(str(folder))]


@given(st.lists(st.tuples(PLACES, PLACES).map(sorted), min_size=1, max_size=12))
@settings(max_examples=40, deadline=None)
def test_every_range_is_its_part_of_the_object(bounds: Sequence[Sequence[int]]) -> None:
    ranges = [(first, end) for first, end in bounds]
    with tempfile.TemporaryDirectory() as folder:
        assert asyncio.run(read(folder, ranges)) == [BODY[first:end] for first, end in ranges]


async def test_a_long_range_beyond_the_end_is_an_error_that_has_the_size(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    await store.create("a/b", [BODY])
    for start in (SIZE - 1, SIZE - MIB + 1, SIZE, SIZE + 5 * MIB, 2 * MIB + SECTOR):
        with pytest.raises(CorruptObject, match=f"the object has {SIZE}"):
            await store.get_range("a/b", start, MIB + 1_000_000)
    with pytest.raises(ObjectNotFound):
        await store.get_range("a/c", 0, MIB)
    await store.close()


async def test_an_object_that_lost_its_end_is_an_error(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    await store.create("a/b", [BODY])
    assert await store.get_range("a/b", 0, MIB) == BODY[:MIB]
    os.truncate(tmp_path / "a" / "b", MIB // 2)
    with pytest.raises(CorruptObject, match=f"the object has {MIB // 2}"):
        await store.get_range("a/b", 0, MIB)
    await store.close()


async def test_the_page_cache_has_objects_that_are_read_again_and_no_others(
    tmp_path: Path,
) -> None:
    store = FileStore(tmp_path)
    await store.create("a/b", [BODY])
    if is_cached(tmp_path / "a" / "b"):
        pytest.skip("this file system writes through the page cache")
    half = SIZE // 2
    for start in (0, half):
        assert not is_cached(tmp_path / "a" / "b")
        assert await store.get_range("a/b", start, half + 1) == BODY[start : start + half + 1]
    assert not is_cached(tmp_path / "a" / "b"), "one reader has read all of it, once"
    assert await store.get_range("a/b", 0, half) == BODY[:half]
    assert is_cached(tmp_path / "a" / "b"), "a second one may be followed by more"
    await store.close()


async def test_reads_past_the_page_cache_use_memory_again(tmp_path: Path) -> None:
    """A new mapping for each read took twice the CPU of the reads: each page of it is a fault."""
    store = FileStore(tmp_path)
    await store.create("a/b", [BODY[:MIB]] * 64)
    faults = []
    for start in range(0, 64 * MIB, MIB):
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        assert await store.get_range("a/b", start, MIB) == BODY[:MIB]
    each = (faults[-1] - faults[8]) / (len(faults) - 9)
    assert each < MIB / SECTOR / 4
    await store.close()


async def test_a_file_system_without_reads_past_its_cache_is_as_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some FUSE file systems refuse the flag; no such file system can be mounted here."""
    really_open, refused = os.open, 0

    def refusing(path: Path, flags: int, *rest: int, **more: int) -> int:
        nonlocal refused
        if flags & os.O_DIRECT and not flags & os.O_WRONLY:
            refused += 1
            raise OSError(errno.EINVAL, "invalid argument")
        return really_open(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refusing)
    store = FileStore(tmp_path)
    await store.create("a/b", [BODY])
    for _ in range(3):
        assert await store.get_range("a/b", 5, MIB) == BODY[5 : 5 + MIB]
    assert refused == 1, "it is not tried again"
    await store.close()


async def test_a_read_is_charged_with_all_of_its_memory(tmp_path: Path) -> None:
    store, cache = FileStore(tmp_path), BlockCache(10 * MIB)
    await store.create("a/b", [BODY])
    data = memoryview(await store.get_range("a/b", SECTOR - 1, MIB))
    cache.add({}, data, None)
    assert cache.size == memoryview(data.obj).nbytes > MIB
    await store.close()


async def test_long_reads_leave_room_for_writes_and_short_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_read, held, reached = os.preadv, threading.Event(), threading.Event()
    at_once: set[int] = set()

    def waiting(file: int, buffers: Sequence[memoryview], offset: int) -> int:
        at_once.add(threading.get_ident())
        reached.set()
        held.wait(60)
        return really_read(file, buffers, offset)

    without_kernel_queue(monkeypatch)
    store = FileStore(tmp_path)
    await store.create("a/b", [BODY])
    monkeypatch.setattr(os, "preadv", waiting)
    reads = [asyncio.ensure_future(store.get_range("a/b", 4 * n, MIB)) for n in range(12)]
    await asyncio.to_thread(reached.wait, 60)
    await store.create("a/small", [b"small"])
    assert await store.get_range("a/small", 0, 5) == b"small"
    assert 1 <= len(at_once) <= 3, "each has the disk for milliseconds"
    held.set()
    for number, found in enumerate(await asyncio.gather(*reads)):
        assert found == BODY[4 * number : 4 * number + MIB]
    await store.close()


async def test_threads_read_the_same_where_the_kernel_has_no_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_kernel_queue(monkeypatch)
    store = FileStore(tmp_path)
    await store.create("a/b", [BODY])
    for start in (0, 5, SECTOR, SIZE - MIB):
        assert await store.get_range("a/b", start, MIB) == BODY[start : start + MIB]
    with pytest.raises(CorruptObject, match=f"the object has {SIZE}"):
        await store.get_range("a/b", SIZE - 5, MIB)
    await store.close()


async def test_few_long_reads_are_with_the_kernel_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write of the log waits behind them on the same disk."""
    really_read, under_way, most = KernelAio.read, 0, 0

    def counted(aio: KernelAio, fd: int, offset: int, buffer: memoryview) -> asyncio.Future[int]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        read = really_read(aio, fd, offset, buffer)

        def ended(_: asyncio.Future[int]) -> None:
            nonlocal under_way
            under_way -= 1

        read.add_done_callback(ended)
        return read

    monkeypatch.setattr(KernelAio, "read", counted)
    store = FileStore(tmp_path)
    await store.create("a/b", [BODY])
    reads = [store.get_range("a/b", 4 * n, MIB) for n in range(12)]
    for number, found in enumerate(await asyncio.gather(*reads)):
        assert found == BODY[4 * number : 4 * number + MIB]
    assert 1 <= most <= kernel_reads.READS_MAX
    await store.close()


async def test_reads_whose_callers_gave_up_are_among_those_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_read, most = KernelAio.read, 0

    def counted(aio: KernelAio, fd: int, offset: int, buffer: memoryview) -> asyncio.Future[int]:
        nonlocal most
        read = really_read(aio, fd, offset, buffer)
        most = max(most, len(aio._transfers))
        return read

    store = FileStore(tmp_path)
    await store.create("a/b", [BODY])
    await store.get_range("a/b", 0, MIB)
    monkeypatch.setattr(KernelAio, "read", counted)
    for _ in range(4):
        reads = [asyncio.ensure_future(store.get_range("a/b", 4 * n, MIB)) for n in range(3)]
        await asyncio.sleep(0)
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
    await store.close()
    assert 1 <= most <= kernel_reads.READS_MAX


async def test_a_file_system_that_holds_the_caller_is_read_by_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some FUSE file systems take the call, and return when they have read."""
    started = 0

    def holding(aio: KernelAio, fd: int, offset: int, buffer: memoryview) -> asyncio.Future[int]:
        nonlocal started
        started += 1
        read: asyncio.Future[int] = aio.loop.create_future()
        read.set_result(os.preadv(fd, [buffer], offset))
        return read

    monkeypatch.setattr(KernelAio, "read", holding)
    store = FileStore(tmp_path)
    await store.create("a/b", [BODY[:MIB]] * 30)
    for number in range(30):
        assert await store.get_range("a/b", number * MIB, MIB) == BODY[:MIB]
    assert started <= kernel_reads.WATCHED
    await store.close()


async def test_an_object_that_was_deleted_is_not_found_and_not_kept_open(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for key in ("a/b", "a/c"):
        await store.create(key, [BODY])
        assert await store.get_range(key, 0, MIB) == BODY[:MIB]
    await store.delete(["a/b"])
    assert open_files(tmp_path) == [str(tmp_path / "a" / "c")]
    (tmp_path / "a" / "c").unlink()  # by another process
    for key in ("a/b", "a/c"):
        with pytest.raises(ObjectNotFound):
            await store.get_range(key, MIB, MIB)
    assert open_files(tmp_path) == []
    await store.close()


async def test_files_are_closed_when_nothing_is_read_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_reads, "IDLE_S", 0.01)
    store = FileStore(tmp_path)
    for number in range(40):
        await store.create(f"a/{number}", [BODY])
        assert await store.get_range(f"a/{number}", 0, MIB) == BODY[:MIB]
        assert len(open_files(tmp_path)) <= kernel_reads.FILES_MAX
    async with asyncio.timeout(60):
        while open_files(tmp_path):  # noqa: ASYNC110 - closing a file is no event
            await asyncio.sleep(0.01)
    assert await store.get_range("a/0", 0, MIB) == BODY[:MIB]
    await store.close()
    assert open_files(tmp_path) == []


async def test_a_read_whose_caller_gave_up_leaves_the_others_alone(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    await store.create("a/b", [BODY])
    reads = [asyncio.ensure_future(store.get_range("a/b", 4 * n, MIB)) for n in range(12)]
    await asyncio.sleep(0)
    for read in reads[::2]:
        read.cancel()
    found = await asyncio.gather(*reads, return_exceptions=True)
    for number in range(1, 12, 2):
        assert found[number] == BODY[4 * number : 4 * number + MIB]
    assert all(isinstance(one, asyncio.CancelledError) for one in found[::2])
    await store.close()


def test_a_second_event_loop_reads_by_threads(tmp_path: Path) -> None:
    """The queue belongs to the first one."""
    store = FileStore(tmp_path)
    asyncio.run(store.create("a/b", [BODY]))
    for start in (0, MIB):
        assert asyncio.run(store.get_range("a/b", start, MIB)) == BODY[start : start + MIB]
    asyncio.run(store.close())
    assert open_files(tmp_path) == []


async def test_closing_waits_for_reads_that_wait_for_their_turn(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    await store.create("a/b", [BODY])
    reads = [asyncio.ensure_future(store.get_range("a/b", 4 * n, MIB)) for n in range(12)]
    await asyncio.sleep(0)
    await store.close()
    async with asyncio.timeout(60):
        for number, found in enumerate(await asyncio.gather(*reads)):
            assert found == BODY[4 * number : 4 * number + MIB]
    assert open_files(tmp_path) == []
