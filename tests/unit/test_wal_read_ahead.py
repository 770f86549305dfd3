"""A scan of a log reads ahead of its records, and no further than it has come."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.storage.wal import block_recovery
from lakehead.storage.wal.block_format import SECTOR
from lakehead.storage.wal.block_recovery import Ring, RingReader
from lakehead.storage.wal.memory_device import MemoryDevice

CHUNK = 4 * SECTOR
START = 3 * SECTOR
RING = Ring(start=START, length=9 * CHUNK + 2 * SECTOR, seed=1)


class CountingDevice(MemoryDevice):
    """Counts the bytes that were read."""

    read_bytes = 0

    async def read(self, offset: int, length: int) -> memoryview:
        self.read_bytes += length
        return await super().read(offset, length)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_recovery, "_CHUNK", CHUNK)


def device(seed: int) -> CountingDevice:
    rng = random.Random(seed)
    content = bytearray(rng.randbytes(START + RING.length))
    return CountingDevice(len(content), rng=rng, latency_s=(0.0, 0.001), content=content)


steps = st.lists(
    st.tuples(
        st.one_of(st.just(0), st.integers(0, SECTOR), st.integers(-2 * CHUNK, 2 * CHUNK)),
        st.one_of(st.integers(1, SECTOR), st.integers(1, 3 * CHUNK)),
    ),
    max_size=60,
)


@given(first=st.integers(0, 2 * RING.length), walk=steps, seed=st.integers(0, 99))
def test_a_view_has_the_rings_bytes_wherever_a_scan_goes_next(
    first: int, walk: list[tuple[int, int]], seed: int
) -> None:
    async def run() -> None:
        disk = device(seed)
        reader = RingReader(disk, RING)
        position = first
        for skipped, length in walk:
            position = max(0, position + skipped)
            wanted = min(length, RING.left_in_lap(position))
            at = RING.offset_of(position)
            assert await reader.view(position, length) == disk.content[at : at + wanted]
            position += wanted
        await reader.close()

    asyncio.run(run())


async def test_a_scan_that_ends_in_its_first_chunk_reads_that_one_alone() -> None:
    disk = device(1)
    reader = RingReader(disk, RING)
    for position in range(0, CHUNK, SECTOR):
        await reader.view(position, SECTOR)
    await reader.close()
    assert disk.read_bytes == CHUNK


async def test_an_error_of_a_read_ahead_is_that_of_the_view_that_needs_it() -> None:
    disk = device(1)
    reader = RingReader(disk, RING)
    await reader.view(0, CHUNK)
    await reader.view(CHUNK, CHUNK)  # reads ahead from here
    disk.reads_fail = True
    with pytest.raises(OSError, match="simulated read error"):
        for position in range(2 * CHUNK, 9 * CHUNK, CHUNK):
            await reader.view(position, CHUNK)
    await reader.close()
