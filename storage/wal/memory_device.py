"""A simulated block device: seeded latency, completions out of order, torn writes, errors."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable

from lakehead.storage.wal.device import aligned_buffer

_TEAR = 512  # smaller than the sectors that are written, as on most real disks


class MemoryDevice:
    """A WalDevice in memory that can be crashed.

    Each operation takes a random time from `latency_s` (seconds, from and to), so that writes
    complete out of order; without a range they complete at the next iteration of the loop.
    `content` may be changed by tests to damage it. `may_write` is called when a write completes: a
    reservation held by another host refuses it, as a disk does.
    """

    name = "memory-device"

    def __init__(
        self,
        capacity: int,
        *,
        rng: random.Random,
        latency_s: tuple[float, float] | None = None,
        content: bytearray | None = None,
        locks: dict[tuple[int, int], MemoryDevice] | None = None,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self.capacity = capacity
        self.content = bytearray(capacity) if content is None else content
        self.writes = 0
        self.reads_fail = False
        self._rng = rng
        self._latency_s = latency_s
        self._in_flight: dict[asyncio.Future[None], tuple[int, memoryview]] = {}
        self._writes_before_error: int | None = None
        self._locks = {} if locks is None else locks
        self._may_write = may_write
        self._is_gone = False

    def fail_write(self, after: int = 0) -> None:
        """Let the write after the next `after` ones fail with EIO, its bytes partly written."""
        self._writes_before_error = after

    def attach(self, may_write: Callable[[], bool] = lambda: True) -> MemoryDevice:
        """Return the same disk as another process opens it: same bytes, same locks."""
        return MemoryDevice(
            self.capacity,
            rng=self._rng,
            latency_s=self._latency_s,
            content=self.content,
            locks=self._locks,
            may_write=may_write,
        )

    def grow(self, capacity: int) -> None:
        """Add zeros at the end, as a larger disk has them."""
        self.content.extend(bytes(capacity - self.capacity))
        self.capacity = capacity

    def kill(self) -> None:
        """End the process that has this device open: its writes are torn, its locks freed."""
        for offset, data in self._in_flight.values():
            self._tear(offset, data)
        self._in_flight.clear()
        self._is_gone = True
        self._free_locks()

    def crash(self) -> MemoryDevice:
        """Return the device as found after a loss of power.

        Of each write in flight any 512-byte pieces may have arrived. Its future never ends.
        """
        self.kill()
        return self.attach(self._may_write)

    def write(self, offset: int, buffer: memoryview) -> asyncio.Future[None]:
        """Start a write; see WalDevice."""
        assert offset % _TEAR == 0
        assert len(buffer) % _TEAR == 0
        assert 0 <= offset <= offset + len(buffer) <= self.capacity
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.writes += 1
        fails = self._writes_before_error == 0
        if self._writes_before_error is not None:
            self._writes_before_error -= 1
        if not self._is_gone:
            self._in_flight[future] = (offset, buffer)  # read when it completes: it must stay
            self._after_a_while(lambda: self._complete(future, fails))
        return future

    async def read(self, offset: int, length: int) -> memoryview:
        """Return the bytes at `offset`; see WalDevice."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._after_a_while(lambda: _finish(done, None))
        await done
        if self.reads_fail:
            raise OSError(errno.EIO, f"simulated read error at {offset}")
        buffer = aligned_buffer(length)
        buffer[:] = self.content[offset : offset + length]
        return buffer

    async def sync(self) -> None:
        """Do nothing: a write that completed is durable."""

    def lock(self, start: int, length: int) -> bool:
        """Take a range; a crash frees it."""
        end = start + length
        if any(start < e and s < end and o is not self for (s, e), o in self._locks.items()):
            return False
        self._locks[start, end] = self
        return True

    def unlock(self, start: int, length: int) -> None:
        """Give a range back; see WalDevice."""
        self._locks.pop((start, start + length), None)

    def _free_locks(self) -> None:
        for held in [held for held, owner in self._locks.items() if owner is self]:
            del self._locks[held]

    async def close(self) -> None:
        """Wait for the writes in flight."""
        if self._in_flight:
            await asyncio.wait(list(self._in_flight))
        self._free_locks()

    def _complete(self, future: asyncio.Future[None], fails: bool) -> None:
        if future not in self._in_flight:
            return
        offset, data = self._in_flight.pop(future)
        if not self._may_write():
            _finish(future, OSError(errno.EBADE, f"simulated reservation conflict at {offset}"))
            return
        if fails:
            self._tear(offset, data)
        else:
            self.content[offset : offset + len(data)] = data
        error = OSError(errno.EIO, f"simulated write error at {offset}") if fails else None
        _finish(future, error)

    def _tear(self, offset: int, data: memoryview) -> None:
        """Write none, some or all pieces."""
        share = self._rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        for at in range(0, len(data), _TEAR):
            if self._rng.random() < share:
                self.content[offset + at : offset + at + _TEAR] = data[at : at + _TEAR]

    def _after_a_while(self, act: Callable[[], object]) -> None:
        loop = asyncio.get_running_loop()
        if self._latency_s is None:
            loop.call_soon(act)
        else:
            loop.call_later(self._rng.uniform(*self._latency_s), act)


def _finish(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
