"""A disk of a simulated host: what lies on it, and what each process that opened it may do.

The platter outlives processes. A write that was on its way when its process died may land, in part,
in any order, as noise even; what landed without being acknowledged may sit in a cache that a later
loss of power takes back, unless somebody synced. A process attaches; attaching preempts whoever
was attached before, as a reservation does: from then on the old one's writes fail.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable

from lakehead.storage.wal.device import aligned_buffer
from tests.simulation.lives import outside

_SECTOR = 512  # smaller than what is written at once, as on most real disks


class Platter:
    """The bytes of a disk, and which of them only a cache holds."""

    def __init__(
        self, capacity: int, *, rng: random.Random, latency_s: tuple[float, float]
    ) -> None:
        self.capacity = capacity
        self.rng = rng
        self.latency_s = latency_s
        self.content = bytearray(capacity)
        self.attached: Attachment | None = None
        self._volatile: dict[int, bytes] = {}

    def copy(self) -> Platter:
        """Return another disk with the same bytes: a snapshot."""
        copied = Platter(self.capacity, rng=self.rng, latency_s=self.latency_s)
        copied.content[:] = self.content
        return copied

    def attach(self, name: str) -> Attachment:
        """Open the disk for a process, in place of whoever had it."""
        if self.attached is not None:
            self.attached.lose()
        self.attached = Attachment(self, name)
        return self.attached

    def store(self, offset: int, data: bytes | memoryview) -> None:
        """Write durably."""
        self.content[offset : offset + len(data)] = data
        for at in range(offset, offset + len(data), _SECTOR):
            self._volatile.pop(at, None)

    def tear(self, offset: int, data: memoryview) -> None:
        """Write none, some or all sectors, some as noise; a cache may hold them."""
        share = self.rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        in_cache = self.rng.random() < 0.5
        for at in range(0, len(data), _SECTOR):
            if self.rng.random() >= share:
                continue
            sector = bytes(data[at : at + _SECTOR])
            if self.rng.random() < 0.03:
                sector = self._damaged(sector)
            place = slice(offset + at, offset + at + _SECTOR)
            if in_cache:
                self._volatile.setdefault(offset + at, bytes(self.content[place]))
            else:
                self._volatile.pop(offset + at, None)
            self.content[place] = sector

    def sync(self) -> None:
        """Make durable what is there."""
        self._volatile.clear()

    def lose_power(self) -> None:
        """Forget some of what only a cache held."""
        for offset, before in self._volatile.items():
            if self.rng.random() < 0.5:
                self.content[offset : offset + _SECTOR] = before
        self._volatile.clear()

    def _damaged(self, sector: bytes) -> bytes:
        if self.rng.random() < 0.5:
            return self.rng.randbytes(_SECTOR)
        damaged = bytearray(sector)
        damaged[self.rng.randrange(_SECTOR)] ^= 1 << self.rng.randrange(8)
        return bytes(damaged)


class Attachment:
    """A WalDevice: the disk as one process has it open."""

    def __init__(self, platter: Platter, name: str) -> None:
        self.name = f"disk of {name}"
        self.capacity = platter.capacity
        self.slowness = 1.0
        self._platter = platter
        self._in_flight: dict[asyncio.Future[None], tuple[int, memoryview]] = {}
        self._writes_before_error: int | None = None
        self._error = errno.EIO
        self._is_lost = False
        self._hangs = False
        self._stuck: list[Callable[[], None]] = []

    def hang(self) -> None:
        """Let nothing return any more: what is in flight, and what is still to come."""
        self._hangs = True

    def heal(self) -> None:
        """Let all that was stuck return."""
        self._hangs = False
        for stuck in self._stuck:
            stuck()
        self._stuck.clear()

    def fail_write(self, after: int, error: int) -> None:
        """Let the write after the next `after` ones fail, its bytes partly written."""
        self._writes_before_error = after
        self._error = error

    def lose(self) -> None:
        """The process is gone or preempted: of what is in flight any part may land, then none."""
        if self._is_lost:
            return
        self._is_lost = True
        for future, (offset, data) in self._in_flight.items():
            self._platter.tear(offset, data)
            _finish(future, OSError(errno.EBADE, "reservation conflict"))
        self._in_flight.clear()
        if self._platter.attached is self:
            self._platter.attached = None

    def write(self, offset: int, buffer: memoryview) -> asyncio.Future[None]:
        """See WalDevice."""
        assert offset % _SECTOR == len(buffer) % _SECTOR == 0
        assert 0 <= offset <= offset + len(buffer) <= self.capacity
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        fails = self._writes_before_error == 0
        if self._writes_before_error is not None:
            self._writes_before_error -= 1
        self._in_flight[future] = (offset, buffer)  # read when it completes: it must stay
        self._later(lambda: self._complete(future, fails))
        return future

    async def read(self, offset: int, length: int) -> memoryview:
        """See WalDevice."""
        await self._pause()
        buffer = aligned_buffer(length)
        buffer[:] = self._platter.content[offset : offset + length]
        return buffer

    async def sync(self) -> None:
        """See WalDevice."""
        await self._pause()
        if self._is_lost:
            raise OSError(errno.EBADE, "reservation conflict")
        self._platter.sync()

    def lock(self, start: int, length: int) -> bool:
        """See WalDevice: whoever attaches has preempted the others."""
        return not self._is_lost

    def unlock(self, start: int, length: int) -> None:
        """See WalDevice: nothing is shared here."""

    async def close(self) -> None:
        """See WalDevice."""
        if self._in_flight:
            await asyncio.wait(list(self._in_flight))

    def _complete(self, future: asyncio.Future[None], fails: bool) -> None:
        if future not in self._in_flight:
            return
        if self._hangs:
            self._stuck.append(lambda: self._complete(future, fails))
            return
        offset, data = self._in_flight.pop(future)
        if self._is_lost:
            _finish(future, OSError(errno.EBADE, "reservation conflict"))
        elif fails:
            self._platter.tear(offset, data)
            _finish(future, OSError(self._error, f"simulated write error at {offset}"))
        else:
            self._platter.store(offset, data)
            _finish(future, None)

    async def _pause(self) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def end() -> None:
            if self._hangs:
                self._stuck.append(end)
            else:
                _finish(done, None)

        self._later(end)
        await done

    def _later(self, act: Callable[[], object]) -> None:
        delay = self._platter.rng.uniform(*self._platter.latency_s) * self.slowness
        outside(asyncio.get_running_loop().call_later, delay, act)


def _finish(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
