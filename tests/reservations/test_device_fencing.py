"""The WAL's fencing on a device with real persistent reservations, reached by two paths.

`make reservations` runs these in a guest (`rig.py`); elsewhere they are skipped, unless
`LAKEHEAD_PR_DISKS` names two paths to one disk that may be overwritten, as two hosts see it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from storage.errors import Fenced, SettingsError
from storage.wal import BlockWal, open_wal, take_wal
from storage.wal.device import IoThreads, aligned_buffer
from storage.wal.reservation import reservation_key
from storage.wal.reservation_ioctl import IoctlReservation
from tests.support.wal_tools import append_released, recovered, started

DISKS = [Path(path) for path in os.environ.get("LAKEHEAD_PR_DISKS", "").split(",") if path]
pytestmark = pytest.mark.skipif(
    len(DISKS) != 2, reason="needs a disk with persistent reservations: make reservations"
)
# PREEMPT AND ABORT hangs in LIO's loopback of Linux 6.1, so plain preemption is what is tried here.
OPTIONS = "preempt=plain"
KEY = {"a": reservation_key("c", "a"), "b": reservation_key("c", "b")}


@pytest.fixture
async def ports() -> AsyncIterator[dict[str, IoctlReservation]]:
    """Both paths, with nothing reserved and nothing on the disk."""
    threads = IoThreads(2)
    ports = {
        host: IoctlReservation.open(disk, threads.run, aborts=False)
        for host, disk in zip("ab", DISKS, strict=True)
    }
    await ports["a"].register(1)
    await ports["a"].clear(1)
    with DISKS[0].open("r+b") as disk:
        disk.write(bytes(2 << 20))
        disk.seek(-(1 << 20), os.SEEK_END)
        disk.write(bytes(1 << 20))
    yield ports
    await ports["a"].register(1)
    await ports["a"].clear(1)
    for port in ports.values():
        await port.close()
    await threads.close()


async def open_on(host: str, disk: Path, *, node_id: int = 0, more: str = "") -> BlockWal:
    wal = await open_wal(
        f"block:{disk}?format=yes&slices=2&{OPTIONS}{more}",
        rng=random.Random(1),
        node_id=node_id,
        host_id=host,
        cluster_id="c",
    )
    assert isinstance(wal, BlockWal)
    return wal


def write_directly(disk: Path, at: int) -> int:
    """Try one sector; 0, or the error number."""
    fd = os.open(disk, os.O_RDWR | os.O_DIRECT | os.O_DSYNC)
    try:
        os.pwrite(fd, aligned_buffer(4096), at)
    except OSError as error:
        return error.errno or -1
    finally:
        os.close(fd)
    return 0


async def test_the_device_behaves_as_the_simulated_one(ports: dict[str, IoctlReservation]) -> None:
    """The table that `MemoryReservation` follows, row by row."""
    a, b = ports["a"], ports["b"]
    with pytest.raises(OSError, match="RESERVE was refused"):  # not registered: an illegal request
        await a.reserve(1)
    await a.register(1)
    assert await a.reserve(1)
    assert await a.reserve(1), "the holder may ask again"
    await a.register(1)
    assert await a.reserve(1), "registering again keeps the reservation"
    await b.register(2)
    assert not await b.reserve(2)
    assert write_directly(DISKS[1], 8 << 20) == errno.EBADE
    assert write_directly(DISKS[0], 8 << 20) == 0
    assert not await b.preempt(2, 77), "no such victim"
    assert await b.preempt(2, 1)
    assert write_directly(DISKS[0], 8 << 20) == errno.EBADE
    assert write_directly(DISKS[1], 8 << 20) == 0
    await a.register(1)
    assert not await a.reserve(1)
    assert write_directly(DISKS[0], 8 << 20) == errno.EBADE, "registered again, and still fenced"
    assert await a.clear(1)
    assert write_directly(DISKS[0], 8 << 20) == write_directly(DISKS[1], 8 << 20) == 0


async def test_a_volume_held_by_another_host_is_refused(ports: dict[str, IoctlReservation]) -> None:
    wal = await open_on("a", DISKS[0])
    second = await open_on("a", DISKS[0], node_id=1)
    await append_released(second, await started(second, 1), b"two nodes of a host share it")
    with pytest.raises(SettingsError, match="held by another host"):
        await open_on("b", DISKS[1], node_id=5)
    await wal.close()
    await second.close()
    await (await open_on("a", DISKS[0])).close()


async def test_a_takeover_fences_a_writer_that_is_alive_and_loses_nothing(
    ports: dict[str, IoctlReservation],
) -> None:
    """The old owner writes all the while; what it released is recovered, and it is told."""
    wal = await open_on("a", DISKS[0])
    listener = await started(wal, 1)
    released: list[tuple[float, int]] = []
    offset = 0

    async def write() -> None:
        nonlocal offset
        while not listener.errors:
            end = wal.append(1, 1, offset, 1, b"%d" % offset * 100)
            offset += 1
            while not listener.errors and wal.released_position < end:  # noqa: ASYNC110
                await asyncio.sleep(0)
            if not listener.errors:
                released.append((time.monotonic(), end))

    writer = asyncio.create_task(write())
    while len(released) < 100:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    taken = await take_wal(f"block:{DISKS[1]}?{OPTIONS}", node_id=0, host_id="b", cluster_id="c")
    fenced_at = time.monotonic()
    records = await recovered(taken)
    await listener.wait_failed()
    await writer
    assert isinstance(listener.errors[0], Fenced)
    assert "another host" in str(listener.errors[0])
    assert [r.base_offset for r in records] == list(range(len(records)))
    assert records[-1].end_position >= released[-1][1], "released, and not recovered"
    assert released[-1][0] <= fenced_at
    await taken.trim(records[-1].end_position)
    await taken.close()
    await wal.close()


async def test_the_old_owner_stays_out_until_it_takes_its_volume_back(
    ports: dict[str, IoctlReservation],
) -> None:
    wal = await open_on("a", DISKS[0])
    end = await append_released(wal, await started(wal, 1), b"x")
    taken = await take_wal(f"block:{DISKS[1]}?{OPTIONS}", node_id=0, host_id="b", cluster_id="c")
    assert [r.end_position for r in await recovered(taken)] == [end]
    await taken.trim(end)
    await taken.close()
    await wal.close()
    with pytest.raises(SettingsError, match=r"held by another host \(b\)"):
        await open_on("a", DISKS[0])
    back = await take_wal(f"block:{DISKS[0]}?{OPTIONS}", node_id=0, host_id="a", cluster_id="c")
    listener = await started(back, 2)
    await append_released(back, listener, b"y")
    await back.close()


async def test_a_taker_that_is_preempted_in_turn_can_trim_nothing(
    ports: dict[str, IoctlReservation],
) -> None:
    wal = await open_on("a", DISKS[0])
    end = await append_released(wal, await started(wal, 1), b"x")
    first = await take_wal(f"block:{DISKS[1]}?{OPTIONS}", node_id=0, host_id="b", cluster_id="c")
    assert len(await recovered(first)) == 1
    await wal.close()
    second = await take_wal(f"block:{DISKS[0]}?{OPTIONS}", node_id=0, host_id="a", cluster_id="c")
    with pytest.raises(Fenced):
        await first.trim(end)
    assert len(await recovered(second)) == 1
    await first.close()
    await second.close()
