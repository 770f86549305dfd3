"""The write-ahead logs that a simulated node may have, and what may go wrong with each."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable
from typing import Protocol

from storage.object_store.protocol import ObjectStore
from storage.wal import BlockWalSettings, MemoryWal, WriteAheadLog
from storage.wal.volume import format_device, open_slice, volume_image
from tests.simulation.hostile_device import Platter
from tests.simulation.lives import Life

OpenWal = Callable[[str], Awaitable[WriteAheadLog]]


class NodeWal(Protocol):
    """What of a node's WAL outlives its processes."""

    async def prepare(self) -> None:
        """Make it, empty."""

    def opener(self, life: Life, store: ObjectStore) -> OpenWal:
        """Return what opens it for a process."""

    def break_soon(self) -> None:
        """Let one of the next writes of the present process fail, if writes can."""

    def slow_down(self) -> None:
        """Let writes of the present process take long, if they can."""

    def lose_power(self) -> None:
        """Lose what a power loss loses, beyond what a dead process does."""


class DiskWal:
    """A block WAL on a disk of its own."""

    _CAPACITY = 256 * 1024

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random) -> None:
        self._rng = rng
        self._platter = Platter(self._CAPACITY, rng=rng, latency_s=(0.0001, 0.01))

    async def prepare(self) -> None:
        """See `NodeWal`."""
        image = volume_image(
            volume_id=bytes(16), capacity=self._CAPACITY, node_id=0, host_id="", cluster_id=""
        )
        await format_device(self._platter.attach("mkfs"), image)

    def opener(self, life: Life, store: ObjectStore) -> OpenWal:
        """See `NodeWal`."""

        async def open_wal(_: str) -> WriteAheadLog:
            attachment = self._platter.attach(life.name)
            life.on_death.append(attachment.lose)
            settings = BlockWalSettings(block_size=8 * 1024, window_size=32 * 1024)
            return await open_slice(attachment, node_id=0, settings=settings)

        return open_wal

    def break_soon(self) -> None:
        """See `NodeWal`."""
        if self._platter.attached is not None:
            error = self._rng.choice([errno.EIO, errno.ENOSPC])
            self._platter.attached.fail_write(self._rng.randrange(10), error)

    def slow_down(self) -> None:
        """See `NodeWal`."""
        if self._platter.attached is not None:
            self._platter.attached.slowness = 100.0

    def lose_power(self) -> None:
        """See `NodeWal`."""
        if self._platter.attached is None:
            self._platter.lose_power()


class ProcessWal:
    """The WAL in memory, as if its memory outlived the process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random) -> None:
        self._wal = MemoryWal(capacity=128 * 1024)

    async def prepare(self) -> None:
        """See `NodeWal`."""

    def opener(self, life: Life, store: ObjectStore) -> OpenWal:
        """See `NodeWal`."""

        async def open_wal(_: str) -> WriteAheadLog:
            self._wal = self._wal.reopen()
            return self._wal

        return open_wal

    def break_soon(self) -> None:
        """See `NodeWal`."""
        self._wal.break_with(OSError(errno.EIO, "simulated"))

    def slow_down(self) -> None:
        """See `NodeWal`."""

    def lose_power(self) -> None:
        """See `NodeWal`."""


WALS: dict[str, Callable[[asyncio.AbstractEventLoop, random.Random], NodeWal]] = {
    "block": DiskWal,
    "memory": ProcessWal,
}
