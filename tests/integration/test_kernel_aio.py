"""Transfers by the kernel's queue: they land, they fail as futures, and closing waits for them."""

import asyncio
import os
from pathlib import Path

import pytest

from lakehead.storage.kernel_aio import KernelAio
from lakehead.storage.wal.device import aligned_buffer


def open_direct(path: Path, flags: int) -> int:
    return os.open(path, flags | os.O_DIRECT | os.O_DSYNC)


async def test_many_writes_in_flight_land_where_they_belong(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(64 * 4096))
    fd = open_direct(path, os.O_RDWR)
    aio = KernelAio(depth=8)
    writes = []
    for number in range(64):
        buffer = aligned_buffer(4096)
        buffer[:] = bytes([number]) * 4096
        writes.append(aio.write(fd, number * 4096, buffer))
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
    aio = KernelAio()
    with pytest.raises(OSError, match="Bad file descriptor"):
        await aio.write(fd, 0, aligned_buffer(4096))
    await aio.close()
    os.close(fd)


async def test_closing_waits_for_a_write_whose_waiter_was_cancelled(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    fd = open_direct(path, os.O_RDWR)
    aio = KernelAio()
    buffer = aligned_buffer(1 << 20)
    buffer[:] = b"x" * (1 << 20)
    aio.write(fd, 0, buffer).cancel()
    await aio.close()
    os.close(fd)
    assert path.read_bytes() == bytes(buffer)


async def test_reads_bring_what_there_is_and_say_how_much(tmp_path: Path) -> None:
    path = tmp_path / "file"
    body = os.urandom(5 * 4096 + 100)
    path.write_bytes(body)
    fd = open_direct(path, os.O_RDONLY)
    aio = KernelAio()
    buffers = [aligned_buffer(2 * 4096) for _ in range(4)]
    reads = [aio.read(fd, 2 * 4096 * number, buffer) for number, buffer in enumerate(buffers)]
    os.close(fd)  # the kernel has it until the reads have ended
    assert await asyncio.gather(*reads) == [8192, 8192, 4096 + 100, 0]
    assert b"".join(map(bytes, buffers))[: len(body)] == body
    await aio.close()
