"""The zeros of a new write-ahead log, written beside its first writes.

A new file only reserves its space, which takes milliseconds. The first write to reserved space also
changes the file's extents, and with O_DSYNC that is one more commit of the file system's journal
before the write is acknowledged. So zeros are written to all of it soon after the start.

A zero is written only where the file system says that nothing was ever written, and so where any
reader finds zeros already: a crash leaves nothing to recover, and the next start goes on with the
space that is left. Writes of the log come first. A piece is never begun where one has begun, and a
write to the piece that is being filled waits for it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from lakehead.storage.event_logger import event_logger

PIECE = 512 * 1024
"""Bytes that a write of the log waits for at most."""
_log = event_logger(__name__)

Extent = tuple[int, int]
"""Start and end, in bytes."""
Write = Callable[[int, memoryview], asyncio.Future[None]]
"""Starts a durable write at an offset."""


def unwritten_extents(fd: int, start: int, end: int) -> list[Extent]:
    """Return the extents between `start` and `end` that were never written, in order. A disk has
    none, and a file where the file system cannot say. Blocks shortly.
    """
    found: list[Extent] = []
    with suppress(OSError):
        end = min(end, os.lseek(fd, 0, os.SEEK_END))
        while (hole := os.lseek(fd, start, os.SEEK_HOLE)) < end:
            start = end
            with suppress(OSError):  # ENXIO: there is no data up to the end of the file
                start = min(end, os.lseek(fd, hole, os.SEEK_DATA))
            found.append((hole, start))
            if start == end:
                break
    return found


class ZeroFill:
    """Fills extents, and carries out the writes of a log meanwhile. `zeros` has PIECE bytes; `fill`
    writes a piece of it, `write` what the log writes.
    """

    def __init__(
        self, name: str, extents: list[Extent], zeros: memoryview, *, fill: Write, write: Write
    ) -> None:
        self._name = name
        self._extents = extents[::-1]  # the next one is the last
        self._zeros = zeros
        self._fill = fill
        self._write = write
        self._loop = asyncio.get_running_loop()
        self._piece: Extent = (0, 0)
        self._held: list[tuple[int, memoryview, asyncio.Future[None]]] = []
        self._was_written = False
        self._is_stopping = False
        self._idle = asyncio.Event()
        self._next()

    @property
    def left(self) -> int:
        """Bytes that are not filled yet."""
        return sum(end - start for start, end in self._extents) + self._piece[1] - self._piece[0]

    def write(self, offset: int, buffer: memoryview) -> asyncio.Future[None]:
        """Start a write of the log, or begin it after the piece that is being filled there."""
        self._was_written = True
        end = offset + len(buffer)
        self._leave_out(offset, end)
        if offset >= self._piece[1] or end <= self._piece[0]:
            return self._write(offset, buffer)
        future: asyncio.Future[None] = self._loop.create_future()
        self._held.append((offset, buffer, future))
        return future

    async def stop(self) -> None:
        """Begin no more pieces, and wait for the present one and for the start of held writes."""
        self._is_stopping = True
        while self._piece[1]:
            self._idle.clear()
            await self._idle.wait()

    def _leave_out(self, start: int, end: int) -> None:
        if not any(first < end and start < last for first, last in self._extents):
            return
        cut = [
            part
            for first, last in self._extents
            for part in ((max(first, end), last), (first, min(last, start)))
            if part[0] < part[1]
        ]
        self._extents = cut

    def _next(self) -> None:
        if self._is_stopping or not self._extents:
            return
        start, end = self._extents.pop()
        stop = min(end, start + PIECE)
        if stop < end:
            self._extents.append((stop, end))
        self._piece, self._was_written = (start, stop), False
        began = self._loop.time()
        filling = self._fill(start, self._zeros[: stop - start])
        filling.add_done_callback(lambda done: self._filled(done, self._loop.time() - began))

    def _filled(self, done: asyncio.Future[None], took_s: float) -> None:
        self._piece = (0, 0)
        held, self._held = self._held, []
        for offset, buffer, future in held:
            if not future.done():  # the log waits for it still
                self._write(offset, buffer).add_done_callback(partial(_pass_on, to=future))
        self._idle.set()
        if done.cancelled() or (error := done.exception()) is not None:
            reason = "cancelled" if done.cancelled() else str(error)
            _log.warning("wal_not_filled", device=self._name, left=self.left, reason=reason)
            self._extents.clear()
        elif self._was_written:
            self._loop.call_later(took_s, self._next)  # the log has half of the device's time
        else:
            self._next()


def _pass_on(written: asyncio.Future[None], to: asyncio.Future[None]) -> None:
    if to.done():
        return
    if written.cancelled():
        to.cancel()
    elif (error := written.exception()) is not None:
        to.set_exception(error)
    else:
        to.set_result(None)
