"""Reservations in software, FOR TESTS: they fence nothing but a simulated device.

Effects and refusals of the calls follow measurements of a Linux SCSI target: an unregistered host
cannot reserve, a second RESERVE conflicts and one by the holder does not, a wrong key conflicts,
all hosts with a preempted key are unregistered (the caller, too, if it is its own and the holder
has another), and under write exclusive (type 1) one that registers again stays fenced.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from lakehead.storage.event_logger import event_logger

T = TypeVar("T")

_log = event_logger(__name__)


@dataclass(slots=True)
class ReservationTable:
    """The state of a device: the key of each host, and the host that holds the reservation."""

    keys: dict[str, int] = field(default_factory=dict)
    holder: str | None = None

    def may_write(self, host: str) -> bool:
        """Return true if the device takes a write of this host."""
        return self.holder in {None, host}


class MemoryReservation:
    """A Reservation over a table that simulated hosts share. Says so when it is made."""

    def __init__(self, table: ReservationTable, host: str) -> None:
        self._table = table
        self._host = host
        _log.warning("wal_reservation_is_simulated", host=host, fences="nothing real")

    def may_write(self) -> bool:
        """Return true if this host's writes are taken; a MemoryDevice calls this at each write."""
        return self._table.may_write(self._host)

    async def register(self, key: int) -> None:
        """Register this host; see Reservation."""
        await asyncio.sleep(0)
        self._table.keys[self._host] = key

    async def reserve(self, key: int) -> bool:
        """Hold the device; see Reservation."""
        await asyncio.sleep(0)
        if self._table.keys.get(self._host) != key or not self.may_write():
            return False
        self._table.holder = self._host
        return True

    async def preempt(self, key: int, victim: int) -> bool:
        """Fence a host; see Reservation."""
        await asyncio.sleep(0)
        table = self._table
        victims = [host for host, registered in table.keys.items() if registered == victim]
        if table.keys.get(self._host) != key or not victims:
            return False
        is_holder_among = table.holder in victims
        for host in victims:
            if not (is_holder_among and host == self._host):
                del table.keys[host]
        if is_holder_among:
            table.holder = self._host
        return True

    async def clear(self, key: int) -> bool:
        """Free the device; see Reservation."""
        await asyncio.sleep(0)
        if self._table.keys.get(self._host) != key:
            return False
        self._table.keys.clear()
        self._table.holder = None
        return True

    async def holder(self) -> int | None:
        """Cannot be read, as on most kernels in use."""
        return None

    async def close(self) -> None:
        """Nothing to let go of."""


class FaultyReservation:
    """A MemoryReservation whose `nth` call from now fails with EIO, before or after it had its
    effect.
    """

    def __init__(self, inner: MemoryReservation, *, nth: int, has_effect: bool) -> None:
        self._inner = inner
        self._calls_left = nth
        self._has_effect = has_effect

    async def register(self, key: int) -> None:
        """See Reservation."""
        await self._call(lambda: self._inner.register(key))

    async def reserve(self, key: int) -> bool:
        """See Reservation."""
        return await self._call(lambda: self._inner.reserve(key))

    async def preempt(self, key: int, victim: int) -> bool:
        """See Reservation."""
        return await self._call(lambda: self._inner.preempt(key, victim))

    async def clear(self, key: int) -> bool:
        """See Reservation."""
        return await self._call(lambda: self._inner.clear(key))

    async def holder(self) -> int | None:
        """See Reservation."""
        return await self._inner.holder()

    async def close(self) -> None:
        """See Reservation."""
        await self._inner.close()

    async def _call(self, act: Callable[[], Awaitable[T]]) -> T:
        self._calls_left -= 1
        fails = self._calls_left == -1
        if fails and not self._has_effect:
            raise OSError(errno.EIO, "simulated: a reservation call failed")
        result = await act()
        if fails:
            raise OSError(errno.EIO, "simulated: the response to a reservation call was lost")
        return result
