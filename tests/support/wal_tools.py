"""What the tests of write-ahead logs share: a listener that remembers, and logs on devices."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from lakehead.storage.encryption.data_keys import DataKeys
from lakehead.storage.wal import BlockWal, BlockWalSettings, WalOwner, WalRecord, WriteAheadLog
from lakehead.storage.wal.block_format import RING_OFFSET, SLICES_START
from lakehead.storage.wal.memory_device import MemoryDevice
from lakehead.storage.wal.volume import format_device, open_slice, volume_image

DEADLINE_S = 60.0
RING_START = SLICES_START + RING_OFFSET
SMALL = BlockWalSettings(block_size=16 * 1024, window_size=32 * 1024)


class Listener:
    """Remembers what it was told and lets tests wait for it."""

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.errors: list[Exception] = []
        self._changed = asyncio.Event()

    def released(self, position: int) -> None:
        assert not self.errors, "nothing is released after a failure"
        assert not self.positions or position > self.positions[-1], "released positions grow"
        self.positions.append(position)
        self._changed.set()

    def failed(self, error: Exception) -> None:
        self.errors.append(error)
        self._changed.set()

    async def wait_released(self, position: int) -> None:
        await self._wait(lambda: bool(self.positions) and self.positions[-1] >= position)

    async def wait_failed(self) -> Exception:
        await self._wait(lambda: bool(self.errors))
        return self.errors[0]

    async def _wait(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not is_true():
                self._changed.clear()
                await self._changed.wait()


def opener(wal: WriteAheadLog) -> Callable[[WalOwner], Awaitable[WriteAheadLog]]:
    """What `StreamEngine.open` takes, for a WAL that is open already."""

    async def open_wal(_: WalOwner) -> WriteAheadLog:
        return wal

    return open_wal


async def recovered(wal: WriteAheadLog) -> list[WalRecord]:
    return [record async for record in wal.recover()]


async def started(wal: WriteAheadLog, epoch: int) -> Listener:
    await recovered(wal)
    listener = Listener()
    await wal.start(epoch=epoch, listener=listener)
    return listener


async def append_released(wal: WriteAheadLog, listener: Listener, payload: bytes) -> int:
    end = wal.append(1, 1, 0, 1, payload)
    await listener.wait_released(end)
    return end


async def new_device(
    *,
    ring_length: int = 256 * 1024,
    seed: int = 0,
    latency_s: tuple[float, float] | None = None,
    node_id: int = 0,
) -> MemoryDevice:
    rng = random.Random(seed)
    capacity = RING_START + ring_length
    device = MemoryDevice(capacity, rng=rng, latency_s=latency_s)
    image = volume_image(
        volume_id=rng.randbytes(16),
        capacity=capacity,
        node_id=node_id,
        host_id="host",
        cluster_id="cluster",
    )
    await format_device(device, image)
    return device


async def open_small(
    device: MemoryDevice, settings: BlockWalSettings = SMALL, data_keys: DataKeys | None = None
) -> BlockWal:
    wal = await open_slice(device, node_id=0, settings=settings)
    if data_keys is not None:
        wal.use_keys(data_keys)
    return wal
