"""Writes by the kernel's queue: they land, they fail as futures, and closing waits for them."""

import asyncio
import os
from pathlib import Path

import pytest

from lakehead.storage.wal.device import aligned_buffer
from lakehead.storage.wal.kernel_aio import KernelAio


def open_direct(path: Path, flags: int) -> int:
    return os.open(path, flags | os.O_DIRECT | os.O_DSYNC)


async def test_many_writes_in_flight_land_where_they_belong(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(64 * 4096))
    fd = open_direct(path, os.O_RDWR)
    aio = KernelAio(fd, depth=8)
    writes = []
    for number in range(64):
        buffer = aligned_buffer(4096)
        buffer[:] = bytes([number]) * 4096
        writes.append(aio.write(number * 4096, buffer))
        if len(writes) % 8 == 0:
            await asyncio.gather(*writes)
    await asyncio.gather(*writes)
    await aio.close()
    os.close(fd)
    assert path.read_bytes() == b"".join(bytes([n]) * 4096 for n in range(64))


async def test_a_write_that_the_kernel_refuses_fails_its_future(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    fd = open_direct(path, os.O_RDONLY)
    aio = KernelAio(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        await aio.write(0, aligned_buffer(4096))
    await aio.close()
    os.close(fd)


async def test_closing_waits_for_a_write_whose_waiter_was_cancelled(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    fd = open_direct(path, os.O_RDWR)
    aio = KernelAio(fd)
    buffer = aligned_buffer(1 << 20)
    buffer[:] = b"x" * (1 << 20)
    aio.write(0, buffer).cancel()
    await aio.close()
    os.close(fd)
    assert path.read_bytes() == bytes(buffer)
