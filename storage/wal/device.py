"""The device of a block WAL: the interface, and its implementation by a file or a disk.

A write is durable when its future is done, so there is no flush for writes of one's own; `sync()`
is for what an earlier process may have left in a cache. Offsets and lengths are whole sectors.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol, TypeVar

from lakehead.storage.errors import Fenced, StorageError, WalFailed
from lakehead.storage.kernel_aio import KernelAio, open_aio
from lakehead.storage.wal.zero_fill import PIECE, Extent, ZeroFill, unwritten_extents

T = TypeVar("T")

_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux, native byte order
_HUGE_PAGE = 2 * 1024 * 1024
_REFUSES_DIRECT = {errno.EINVAL, errno.EOPNOTSUPP}


class WalDevice(Protocol):
    """A block device. Errors are OSError; a write that failed has an unknown outcome."""

    @property
    def name(self) -> str:
        """The name in messages: a path."""

    @property
    def capacity(self) -> int:
        """Bytes, from the first to the last usable one."""

    def write(self, offset: int, buffer: memoryview) -> asyncio.Future[None]:
        """Start a write; the future is done when the bytes are durable.

        The buffer is page-aligned and left alone until then, even if the future is cancelled, or
        failed by a caller that waits no longer: what the write still does counts for nothing.
        """

    async def read(self, offset: int, length: int) -> memoryview:
        """Return the bytes at `offset`, in a buffer of their own."""

    async def sync(self) -> None:
        """Make durable what any process wrote here before."""

    def lock(self, start: int, length: int) -> bool:
        """Take a range for the life of this device; False if another process holds part of it."""

    def unlock(self, start: int, length: int) -> None:
        """Give a range back earlier."""

    async def close(self) -> None:
        """Wait for what is running and let go, locks included."""


def aligned_buffer(size: int) -> memoryview:
    """Return zeroed memory that starts on a page, as direct I/O requires. It has huge pages if it
    is large: a page fault for each 4 KiB takes longer than reading them.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_DONTFORK)  # open(2): else no direct I/O while a process forks
    if size >= _HUGE_PAGE:
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


class IoThreads:
    """A few threads for calls that block; results come back on the loop."""

    def __init__(self, count: int) -> None:
        """Raises StorageError if the system has no thread left."""
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._running = 0
        self._counting = threading.Lock()
        self._last: Callable[[], None] = lambda: None
        self.has_ended = False
        """True if all calls have returned, after `close`."""
        for number in range(count):
            thread = threading.Thread(target=self._work, name=f"wal-io-{number}", daemon=True)
            self._running += 1
            try:
                thread.start()
            except RuntimeError as error:
                self._running -= 1
                self._stop()
                raise StorageError(f"no thread is left for a write-ahead log: {error}") from error

    def run(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run `call` on a thread; its result or its error becomes the future's."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put(lambda: self._perform(call, future))
        return future

    async def close(self, then: Callable[[], None] = lambda: None) -> None:
        """Wait until all calls have returned, and `then` on a thread. Cancelled, this goes on
        without a caller: a call that is stuck uses its descriptor until it returns.
        """
        await asyncio.shield(self.end(then))

    def end(self, then: Callable[[], None]) -> asyncio.Future[None]:
        """Take no more calls; the future is done when all have returned, and `then` as well, which
        the thread calls that ends last: there may be no other one to be had.
        """
        ended: asyncio.Future[None] = self._loop.create_future()

        def last() -> None:
            then()
            self.has_ended = True
            self._settle(_resolve, ended, None)

        self._last = last
        self._stop()
        return ended

    def _stop(self) -> None:
        for _ in range(self._running):
            self._jobs.put(None)

    def _work(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                job()
        finally:
            with self._counting:
                self._running -= 1
                is_last = not self._running
            if is_last:
                self._last()

    def _perform(self, call: Callable[[], T], future: asyncio.Future[T]) -> None:
        try:
            result = call()
        except Exception as error:  # noqa: BLE001 - the root of a thread: handed to the waiter
            self._settle(_reject, future, error)
        else:
            self._settle(_resolve, future, result)

    def _settle(self, settle: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop was closed: a call was stuck, and left behind
            self._loop.call_soon_threadsafe(settle, *arguments)


class FileDevice:
    """A file or a disk, by `O_DIRECT` and `O_DSYNC`; by `fdatasync` where the first is refused.

    Raises OSError from `open` and from every operation.
    """

    def __init__(self, path: Path, fd: int, capacity: int, threads: IoThreads, *, direct: bool):
        self.name = str(path)
        self.capacity = capacity
        self.is_direct = direct
        self._fd = fd
        self._threads = threads
        self._aio: KernelAio | None = None
        self._may_have_aio = direct
        self._zero_fill: ZeroFill | None = None
        self._closed = False
        self._flushing = threading.Lock()

    @classmethod
    def open(cls, path: Path, threads: IoThreads) -> FileDevice:
        """Open an existing file or disk for reading and writing. Blocks shortly."""
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            fd = os.open(path, flags | os.O_DIRECT | os.O_DSYNC)
            direct = True
        except OSError as error:
            if error.errno not in _REFUSES_DIRECT:
                raise
            fd = os.open(path, flags)
            direct = False
            # A failed write-back leaves clean pages that the disk does not have: read the disk.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return cls(path, fd, os.lseek(fd, 0, os.SEEK_END), threads, direct=direct)

    def unwritten(self, start: int, end: int) -> list[Extent]:
        """Return what was never written from `start` to `end`. Blocks shortly."""
        return unwritten_extents(self._fd, start, end)

    def fill(self, extents: list[Extent]) -> None:
        """Write zeros to `extents` beside the writes from now on. They were never written, and
        this process has them locked.
        """
        if extents:
            self._zero_fill = ZeroFill(
                self.name, extents, aligned_buffer(PIECE), fill=self._in_thread, write=self._start
            )

    def write(self, offset: int, buffer: memoryview) -> asyncio.Future[None]:
        """Start a write; see WalDevice."""
        if self._zero_fill is not None:
            if self._zero_fill.left:
                return self._zero_fill.write(offset, buffer)
            self._zero_fill = None
        return self._start(offset, buffer)

    def _start(self, offset: int, buffer: memoryview) -> asyncio.Future[None]:
        if self._may_have_aio:
            self._may_have_aio = False
            self._aio = open_aio()  # here, since it belongs to the loop
        if self._aio is not None:
            return self._aio.write(self._fd, offset, buffer)
        return self._in_thread(offset, buffer)

    def _in_thread(self, offset: int, buffer: memoryview) -> asyncio.Future[None]:
        return self._threads.run(lambda: self._write(offset, buffer))

    async def read(self, offset: int, length: int) -> memoryview:
        """Return the bytes at `offset`; see WalDevice."""
        return await self._threads.run(lambda: self._read(offset, length))

    async def sync(self) -> None:
        """Flush the device's own cache; see WalDevice."""
        await self._threads.run(lambda: os.fdatasync(self._fd))

    def lock(self, start: int, length: int) -> bool:
        """Take an open-file-description lock: it ends with this device or with the process.

        The kernel frees it when the last write under way has ended, so a lock that can be had says
        that nothing of an earlier holder is on its way any more.
        """
        return lock_range(self._fd, start, length)

    def unlock(self, start: int, length: int) -> None:
        """Give a range back; see WalDevice."""
        unlocked = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, start, length, 0)
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, unlocked)

    async def close(self) -> None:
        """Close the file after the last call has returned, even if this is cancelled before."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._zero_fill is not None:
                await self._zero_fill.stop()
            if self._aio is not None:
                await self._aio.close()
        finally:
            # By a thread: one that is stuck in a call must not find another file behind its number.
            ended = self._threads.end(lambda: os.close(self._fd))
        await asyncio.shield(ended)

    def _write(self, offset: int, buffer: memoryview) -> None:
        if self.is_direct:
            self._write_whole(offset, buffer)
            return
        # The kernel reports a lost write to the first flush of this file, and only to that one: a
        # write and its flush stay together, so that it is the write's own.
        with self._flushing:
            self._write_whole(offset, buffer)
            os.fdatasync(self._fd)

    def _write_whole(self, offset: int, buffer: memoryview) -> None:
        written = os.pwrite(self._fd, buffer, offset)
        if written != len(buffer):
            raise OSError(errno.EIO, f"only {written} of {len(buffer)} bytes written at {offset}")

    def _read(self, offset: int, length: int) -> memoryview:
        buffer = aligned_buffer(length)
        got = os.preadv(self._fd, [buffer], offset)
        if got != length:
            raise OSError(errno.EIO, f"only {got} of {length} bytes read at {offset}")
        return buffer


def lock_range(fd: int, start: int, length: int) -> bool:
    """Take an exclusive OFD lock (`fcntl(2)`, F_OFD_SETLK); length 0 reaches to the end."""
    wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, wanted)
    except OSError as error:
        if error.errno in {errno.EAGAIN, errno.EACCES}:
            return False
        raise
    return True


def write_failure(what: str, error: BaseException) -> WalFailed | Fenced:
    """Return the owner's error: fenced by another host, or a failure of the device."""
    match getattr(error, "errno", None):
        case errno.EBADE:
            fenced = Fenced(f"{what}: another host has taken the device over")
            fenced.__cause__ = error
            return fenced
        case errno.ENOSPC:
            advice = ": the disk below it is full: make room, then start again"
        case errno.EROFS | errno.EACCES:
            advice = ": it has become read-only: repair and remount it, then start again"
        case errno.ETIMEDOUT:
            advice = (
                ": the device does not respond: look at the volume and the kernel's log; the "
                "process may be unable to end before the device does"
            )
        case errno.EIO:
            advice = ": the device reports an error: look at the kernel's log, then start again"
        case _:
            advice = ""
    failed = WalFailed(f"{what}: {error!r}{advice}")
    failed.__cause__ = error
    return failed


def _resolve(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _reject(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
