"""The cost of encryption at rest: CPU of a store and of a block WAL, with and without it.

Store and device are in memory, so that nothing but the work of this process is measured. CPU time
of all threads: the machine may have other load.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from bench.figures import Figure
from lakehead.storage.clock import SystemClock
from lakehead.storage.encryption.data_keys import data_keys
from lakehead.storage.encryption.key_file import add_key
from lakehead.storage.encryption.settings import EncryptionSettings
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.object_store.encrypted import EncryptedStore
from lakehead.storage.wal.block_settings import BlockWalSettings
from lakehead.storage.wal.memory_device import MemoryDevice
from lakehead.storage.wal.volume import format_device, open_slice, volume_image

PART = "encryption"
MIB = 1 << 20
OBJECT = 64 * MIB
RANGE = MIB
BATCHES = (1024, 16 * 1024, 256 * 1024)
RING = 256 * MIB


async def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure; `folder` gets a file of keys."""
    keys = _key_file(folder)
    on = EncryptionSettings(provider="file", key_file=str(keys))
    rounds = 4 if quick else 16
    without, with_ = [await _objects(one, rounds) for one in (EncryptionSettings(), on)]
    figures = [_figure(what, with_[what], without[what], "s/GB") for what in without]
    for size in BATCHES:
        count = min(200_000, (128 if quick else 1024) * MIB // size)
        times = [await _appends(one, size, count) for one in (EncryptionSettings(), on)]
        name = f"append of {size // 1024} KB to a block WAL"
        figures.append(_figure(name, times[1] * 1e6, times[0] * 1e6, "us"))
    return figures


def _key_file(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    keys = folder / "keys"
    if not keys.exists():
        add_key(keys, "bench", rng=random.SystemRandom())
    return keys


def _figure(name: str, value: float, without: float, unit: str) -> Figure:
    return Figure(
        part=PART,
        name=f"CPU: {name}",
        value=value,
        unit=unit,
        peer="without",
        peer_value=without,
        more_is_better=False,
    )


async def _objects(settings: EncryptionSettings, rounds: int) -> dict[str, float]:
    """Return the CPU seconds of a gigabyte written, read whole, and read by ranges."""
    rng, inner = random.Random(1), MemoryStore()
    keys = data_keys(settings, "bench", clock=SystemClock(), rng=random.SystemRandom())
    store = EncryptedStore(inner, keys)
    body = rng.randbytes(OBJECT)
    views = [memoryview(body)[at : at + 100_000] for at in range(0, OBJECT, 100_000)]
    target = memoryview(bytearray(RANGE))

    async def write() -> None:
        inner.objects.clear()
        await store.create("data/00/1-1-1", views)

    async def ranges() -> None:
        for at in range(0, OBJECT, RANGE):
            await store.get_range_into("data/00/1-1-1", at, target)

    async def whole() -> None:
        await store.get("data/00/1-1-1")

    return {
        "objects of 64 MiB written": await _cpu_of(write, rounds),
        "objects of 64 MiB read whole": await _cpu_of(whole, rounds),
        "ranges of 1 MiB read": await _cpu_of(ranges, rounds),
    }


async def _cpu_of(work: Callable[[], Awaitable[None]], rounds: int) -> float:
    await work()
    began = time.process_time()
    for _ in range(rounds):
        await work()
    return (time.process_time() - began) * 1e9 / (rounds * OBJECT)


class _Released:
    """The listener of a log: lets it be waited for."""

    def __init__(self) -> None:
        self.position = 0

    def released(self, position: int) -> None:
        self.position = position

    def failed(self, error: Exception) -> None:
        raise error


async def _appends(settings: EncryptionSettings, size: int, count: int) -> float:
    """Return the CPU seconds of an append and its share of the write."""
    rng = random.Random(1)
    device = MemoryDevice(RING, rng=rng)
    image = volume_image(
        volume_id=bytes(16), capacity=RING, node_id=0, host_id="bench", cluster_id="bench"
    )
    await format_device(device, image)
    wal = await open_slice(device, node_id=0, settings=BlockWalSettings())
    wal.use_keys(data_keys(settings, "", clock=SystemClock(), rng=random.SystemRandom()))
    listener = _Released()
    async for _ in wal.recover():
        pass
    await wal.start(epoch=1, listener=listener)
    payload = rng.randbytes(size)
    at_once, end = max(1, 4 * MIB // size), 0
    began = time.process_time()
    for first in range(0, count, at_once):
        for number in range(first, min(first + at_once, count)):
            end = wal.append(1, 1, number, 1, payload)
        while listener.position < end:  # noqa: ASYNC110 - the device completes in this loop
            await asyncio.sleep(0)
        await wal.trim(end)
    spent = time.process_time() - began
    await wal.close()
    return spent / count
