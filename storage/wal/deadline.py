"""A deadline for calls of a device: a call that has not returned by then is stuck.

The kernel may wait for a disk for ever (Amazon Linux sets `nvme_core.io_timeout` to its maximum),
and a call in it can be neither cancelled nor killed. So the caller stops waiting: the call fails
with `DeviceStuck`, its outcome is unknown as after any error, and what it still does counts for
nothing.

Time is counted in ticks of the event loop, one at most in each of its turns. A process that was
stopped, or whose loop was busy, so finds out what has completed meanwhile before it judges.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from lakehead.storage.event_logger import event_logger
from lakehead.storage.wal.device import WalDevice

_SLOWEST_BYTES_PER_S = 10_000_000
"""Large transfers have more time: so much for each second of it."""
_TICKS = 8
_log = event_logger("storage.wal")


class DeviceStuck(OSError):
    """A call to a device has missed its deadline (ETIMEDOUT). Its outcome is unknown."""


OnStuck = Callable[[str], None]
"""Takes the reason. May be called by any thread, and several times."""


_Expire = Callable[[DeviceStuck], None]


def _ignore(_reason: str) -> None:
    """Do nothing: the error of the call is enough."""


class _Call(msgspec.Struct, frozen=True):
    what: str
    due: int
    expire: _Expire


class Deadline:
    """The deadline of one device, in seconds. `is_stuck` once a call has missed it, for good.

    `on_stuck` is called then: the owner of a log has to end, since the kernel may never end the
    call.
    """

    def __init__(self, name: str, timeout_s: float, on_stuck: OnStuck | None = None) -> None:
        self.name = name
        self.timeout_s = timeout_s
        self.is_stuck = False
        self._on_stuck = on_stuck or _ignore
        self._loop = asyncio.get_running_loop()
        self._tick_s = timeout_s / _TICKS
        self._ticks = 0
        self._is_ticking = False
        self._calls: dict[object, _Call] = {}

    def watch(self, call: asyncio.Future[Any], what: str, size: int = 0) -> None:
        """Fail `call` with DeviceStuck if it is not done in time; `size` in bytes."""

        def expire(error: DeviceStuck) -> None:
            if not call.done():
                call.set_exception(error)

        self._add(call, what, size, expire)
        call.add_done_callback(self._forget)

    @asynccontextmanager
    async def limit(self, what: str, size: int = 0) -> AsyncIterator[None]:
        """Cancel the body if it does not end in time. Raises DeviceStuck then."""
        errors: list[DeviceStuck] = []
        limit = asyncio.timeout(None)

        def expire(error: DeviceStuck) -> None:
            errors.append(error)
            limit.reschedule(self._loop.time())

        try:
            async with limit:
                self._add(limit, what, size, expire)
                yield
        except TimeoutError:
            if errors:
                raise errors[0] from None
            raise
        finally:
            self._forget(limit)

    def missed(self, what: str) -> None:
        """Take note that a call has not returned in time. From any thread."""
        is_first, self.is_stuck = not self.is_stuck, True
        reason = f"{self.name}: {what} has not returned for {self.timeout_s:g} s"
        if is_first:
            _log.error(
                "wal_device_stuck",
                device=self.name,
                call=what,
                timeout_s=self.timeout_s,
                calls_under_way=len(self._calls),
                meaning="nothing more is acknowledged from this log",
            )
        self._on_stuck(reason)

    def _add(
        self, key: object, what: str, size: int, expire: Callable[[DeviceStuck], None]
    ) -> None:
        extra = int(size / (_SLOWEST_BYTES_PER_S * self._tick_s))
        # One more: the present tick has begun already.
        self._calls[key] = _Call(what, self._ticks + 1 + _TICKS + extra, expire)
        if not self._is_ticking:
            self._is_ticking = True
            self._loop.call_later(self._tick_s, self._tick)

    def _forget(self, key: object) -> None:
        self._calls.pop(key, None)

    def _tick(self) -> None:
        self._ticks += 1
        for key, call in list(self._calls.items()):
            if call.due <= self._ticks:
                self.missed(call.what)
                self._forget(key)
                call.expire(
                    DeviceStuck(
                        errno.ETIMEDOUT, f"{call.what} has not returned for {self.timeout_s:g} s"
                    )
                )
        self._is_ticking = bool(self._calls)
        if self._is_ticking:
            self._loop.call_later(self._tick_s, self._tick)


class DeadlineDevice:
    """A WalDevice whose every call has a deadline. One that is stuck is let go without waiting: its
    descriptor and its locks go when its calls return, or with the process.
    """

    def __init__(self, device: WalDevice, deadline: Deadline) -> None:
        self.name = device.name
        self._device = device
        self._deadline = deadline
        self._submissions: Submissions | None = None

    @property
    def capacity(self) -> int:
        """See WalDevice."""
        return self._device.capacity

    def watch_submissions(self) -> None:
        """Look, from a thread, for a write whose very start blocks the event loop: the kernel's
        queue takes some only when there is room.
        """
        self._submissions = Submissions(self._deadline)

    def write(self, offset: int, buffer: memoryview) -> asyncio.Future[None]:
        """Start a write; see WalDevice."""
        what = f"a write of {len(buffer)} bytes at {offset}"
        submissions = self._submissions
        if submissions is not None:
            submissions.begin(what)
        try:
            write = self._device.write(offset, buffer)
        finally:
            if submissions is not None:
                submissions.end()
        self._deadline.watch(write, what, len(buffer))
        return write

    async def read(self, offset: int, length: int) -> memoryview:
        """Return the bytes at `offset`; see WalDevice."""
        async with self._deadline.limit(f"a read of {length} bytes at {offset}", length):
            return await self._device.read(offset, length)

    async def sync(self) -> None:
        """Make durable what was written before; see WalDevice."""
        async with self._deadline.limit("a flush"):
            await self._device.sync()

    def lock(self, start: int, length: int) -> bool:
        """See WalDevice."""
        return self._device.lock(start, length)

    def unlock(self, start: int, length: int) -> None:
        """See WalDevice."""
        self._device.unlock(start, length)

    async def close(self) -> None:
        """See WalDevice. Waits for what is under way until the deadline, and not at all once the
        device is stuck.
        """
        if self._submissions is not None:
            self._submissions.stop()
        try:
            if self._deadline.is_stuck:
                async with asyncio.timeout(0):
                    await self._device.close()
            else:
                async with self._deadline.limit("the end of what is under way"):
                    await self._device.close()
        except (TimeoutError, DeviceStuck):
            _log.warning("wal_device_abandoned", device=self.name)


class Submissions:
    """Calls on the event loop that may block it, watched by a thread of their own."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._number = 0
        self._what = ""
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, name="wal-deadline", daemon=True).start()

    def begin(self, what: str) -> None:
        """Say that such a call begins."""
        self._number += 1
        self._what = what

    def end(self) -> None:
        """Say that it has returned."""
        self._what = ""

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def _watch(self) -> None:
        seen, times = -1, 0
        # As the loop's ticks: time in which this process was stopped counts once at most.
        while not self._stopped.wait(self._deadline.timeout_s / _TICKS):
            number, what = self._number, self._what
            times = times + 1 if what and number == seen else 0
            seen = number
            if times > _TICKS:
                self._deadline.missed(what)
                return
