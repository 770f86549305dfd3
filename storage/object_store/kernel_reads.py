"""Long reads of local objects past the page cache, by the kernel's own queue.

A read by a thread is handed over twice, and the thread waits for the interpreter's lock when the
disk is done. The kernel takes a read from the event loop by one call. Files stay open between the
reads of a consumer that follow each other; they are opened by a thread, since that may wait for a
disk.
"""

import asyncio
import ctypes
import os
from collections import OrderedDict
from collections.abc import Callable

from lakehead.storage.kernel_aio import KernelAio

READS_MAX = 3
"""Under way at once: more do not come sooner from one disk, and a write of the log on it waits
behind them.
"""
SECTOR = 4096
FILES_MAX = 16
IDLE_S = 5.0
"""Files are closed when there was no read for this long: the space of one that is deleted is used
until then.
"""
WATCHED = 8
_AT_ONCE_MAX = 4
"""So many of the first `WATCHED` reads may have ended by the time that they were started. Beyond
that the file system does not read asynchronously, and would hold the event loop.
"""


class KernelReads:
    """Reads of files by the queue of the running event loop."""

    def __init__(self, aio: KernelAio, opened: Callable[[str], asyncio.Future[int]]) -> None:
        """`opened(key)` opens the file of an object with `O_DIRECT`."""
        self.loop = aio.loop
        self.is_asynchronous = True
        """False once the file system was seen to read before it returns."""
        self._aio = aio
        self._opened = opened
        self._files: OrderedDict[str, int] = OrderedDict()
        self._room = asyncio.Semaphore(READS_MAX)
        self._watched = self._at_once = 0
        self._read_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def read(self, key: str, start: int, length: int) -> tuple[memoryview, int]:
        """Return a range of an object, less if it ends before, and the object's size. Raises
        OSError and the errors of `opened`.
        """
        await self._room.acquire()
        read: asyncio.Future[int] | None = None
        try:
            position, skipped, target = whole_sectors(start, length)
            filled = 0
            while True:
                file, size = await self._file(key)
                read = self._aio.read(file, position + filled, target[filled:])
                if self._watched < WATCHED:
                    self._watch(read)
                done = await asyncio.shield(read)
                filled += done
                if filled == len(target) or not done or done % SECTOR:
                    break  # all of it, or the end of the file
            return target[skipped : min(skipped + length, filled)].toreadonly(), size
        finally:
            if read is None or read.done():
                self._room.release()
            else:  # the caller gave up, and the disk goes on
                read.add_done_callback(lambda _: self._room.release())

    def forget(self, key: str) -> None:
        """Close the file of an object that is deleted."""
        file = self._files.pop(key, None)
        if file is not None:
            os.close(file)

    async def close(self) -> None:
        """Wait for reads under way, also for those that wait for their turn, and close all files.
        None may be started any more.
        """
        if not self.loop.is_closed():
            for _ in range(READS_MAX):
                await self._room.acquire()
        self._close_files()
        await self._aio.close()

    async def _file(self, key: str) -> tuple[int, int]:
        """Return the open file of an object, until the next `await`, and its size."""
        file = self._files.get(key)
        found = None if file is None else os.fstat(file)
        if file is None or found is None or not found.st_nlink:
            self.forget(key)
            file = await self._open(key)
            self.forget(key)  # another read may have opened it meanwhile
            self._files[key] = file
            found = os.fstat(file)
            if len(self._files) > FILES_MAX:
                self.forget(next(iter(self._files)))
        self._files.move_to_end(key)
        self._read_at = self.loop.time()
        if self._timer is None:
            self._timer = self.loop.call_later(IDLE_S, self._close_idle)
        return file, found.st_size

    async def _open(self, key: str) -> int:
        opening = self._opened(key)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_opened)
            raise

    def _close_idle(self) -> None:
        left = self._read_at + IDLE_S - self.loop.time()
        if left > 0:
            self._timer = self.loop.call_later(left, self._close_idle)
        else:
            self._close_files()

    def _close_files(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for key in tuple(self._files):
            self.forget(key)

    def _watch(self, read: asyncio.Future[int]) -> None:
        self._aio.collect()
        self._watched += 1
        self._at_once += read.done()
        if self._at_once > _AT_ONCE_MAX:
            self.is_asynchronous = False


def _close_opened(opening: asyncio.Future[int]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        os.close(opening.result())


def whole_sectors(start: int, length: int) -> tuple[int, int, memoryview]:
    """Return where the sectors of a range begin, what of them is before it, and memory for them.

    It is the allocator's, which gives out again what was used: a mapping of its own for each read
    costs a page fault for each of its pages, twice the CPU of the whole read.
    """
    first = start // SECTOR * SECTOR
    skipped = start - first
    size = -(-(skipped + length) // SECTOR) * SECTOR
    memory = bytearray(size + SECTOR)
    shift = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % SECTOR
    return first, skipped, memoryview(memory)[shift : shift + size]
