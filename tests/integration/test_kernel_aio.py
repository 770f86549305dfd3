"""Transfers by the kernel's queue: they land, they fail as futures, and closing waits for them."""

import asyncio
import gc
import os
from contextlib import suppress
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


async def test_more_transfers_than_the_depth_all_end(tmp_path: Path) -> None:
    """The kernel takes more, and one look finds all of them: it is woken for each only once."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(12 * 4096))
    fd = open_direct(path, os.O_RDONLY)
    aio = KernelAio(depth=2)
    reads = [aio.read(fd, 4096 * number, aligned_buffer(4096)) for number in range(12)]
    async with asyncio.timeout(60):
        assert await asyncio.gather(*reads) == [4096] * 12
    await aio.close()
    os.close(fd)


async def test_closing_waits_for_a_transfer_that_follows_another(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20))
    fd = open_direct(path, os.O_RDONLY)
    aio = KernelAio()

    async def read_twice() -> list[int]:
        return [await aio.read(fd, 0, aligned_buffer(1 << 20)) for _ in range(2)]

    reads = asyncio.ensure_future(read_twice())
    await asyncio.sleep(0)
    await aio.close()
    async with asyncio.timeout(60):
        assert await reads == [1 << 20] * 2
    with pytest.raises(OSError, match="queue is closed"):
        await aio.read(fd, 0, aligned_buffer(4096))
    os.close(fd)


def eventfds() -> int:
    """Return how many eventfds this process has open."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found += "eventfd" in str(link.readlink())
    return found


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_queue_whose_event_loop_has_ended_is_given_back(
    tmp_path: Path, *, is_closed: bool
) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20))
    fd = open_direct(path, os.O_RDONLY)

    async def leave() -> KernelAio:
        aio = KernelAio()
        aio.read(fd, 0, aligned_buffer(1 << 20)).cancel()
        return aio

    gc.collect()
    before = eventfds()
    aio = asyncio.run(leave())
    assert eventfds() == before + 1
    if is_closed:
        asyncio.run(aio.close())
    del aio
    gc.collect()
    assert eventfds() == before
    os.close(fd)
