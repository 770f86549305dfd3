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
from functools import partial
from pathlib import Path

import pytest

from lakehead.storage.errors import Fenced, SettingsError
from lakehead.storage.wal import BlockWal, open_wal, take_wal
from lakehead.storage.wal.device import IoThreads, aligned_buffer
from lakehead.storage.wal.protocol import Claim
from lakehead.storage.wal.reservation import reservation_key
from lakehead.storage.wal.reservation_ioctl import IoctlReservation
from tests.support.wal_tools import append_released, recovered, started

DISKS = [Path(path) for path in os.environ.get("LAKEHEAD_PR_DISKS", "").split(",") if path]
pytestmark = pytest.mark.skipif(
    len(DISKS) != 2, reason="needs a disk with persistent reservations: make reservations"
)


class Ports:
    """Two hosts' ways to one disk, and the calls of both."""

    def __init__(self, preempt: str, threads: IoThreads) -> None:
        self.preempt = preempt
        self.a, self.b = (
            IoctlReservation.open(disk, threads.run, aborts=preempt == "abort") for disk in DISKS
        )

    async def clear(self) -> None:
        await self.a.register(1)
        await self.a.clear(1)

    async def open(self, host: str, *, node_id: int = 0) -> BlockWal:
        wal = await open_wal(
            f"block:{DISKS['ab'.index(host)]}?format=yes&slices=2&preempt={self.preempt}",
            rng=random.Random(),  # another volume each time: stale slices are nobody's
            node_id=node_id,
            host_id=host,
            cluster_id="c",
        )
        assert isinstance(wal, BlockWal)
        return wal

    async def take(self, host: str) -> BlockWal:
        disk = DISKS["ab".index(host)]
        return await take_wal(
            f"block:{disk}?preempt={self.preempt}", node_id=0, host_id=host, cluster_id="c"
        )


@pytest.fixture(params=["abort", "plain"])
async def ports(request: pytest.FixtureRequest) -> AsyncIterator[Ports]:
    """Both ways, with nothing reserved and nothing on the disk."""
    threads = IoThreads(2)
    ports = Ports(request.param, threads)
    await ports.clear()
    with DISKS[0].open("r+b") as disk:
        disk.write(bytes(2 << 20))
        disk.seek(-(1 << 20), os.SEEK_END)
        disk.write(bytes(1 << 20))
        disk.flush()
        os.fsync(disk.fileno())
    yield ports
    await ports.clear()
    await ports.a.close()
    await ports.b.close()
    await threads.close()


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


async def test_the_device_behaves_as_the_simulated_one(ports: Ports) -> None:
    """The table that `MemoryReservation` follows, row by row."""
    a, b = ports.a, ports.b
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


async def test_a_volume_held_by_another_host_is_refused(ports: Ports) -> None:
    wal = await ports.open("a")
    second = await ports.open("a", node_id=1)
    await append_released(second, await started(second, 1), b"two nodes of a host share it")
    with pytest.raises(SettingsError, match="held by another host"):
        await ports.open("b", node_id=5)
    await wal.close()
    await second.close()
    await (await ports.open("a")).close()


async def test_a_takeover_fences_a_writer_that_is_alive_and_loses_nothing(
    ports: Ports,
) -> None:
    """The old owner writes all the while; what it released is recovered, and it is told."""
    wal = await ports.open("a")
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
    taken = await ports.take("b")
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
    ports: Ports,
) -> None:
    wal = await ports.open("a")
    end = await append_released(wal, await started(wal, 1), b"x")
    taken = await ports.take("b")
    assert [r.end_position for r in await recovered(taken)] == [end]
    await taken.trim(end)
    await taken.close()
    await wal.close()
    with pytest.raises(SettingsError, match=r"held by another host \(b\)"):
        await ports.open("a")
    back = await ports.take("a")
    listener = await started(back, 2)
    await append_released(back, listener, b"y")
    await back.close()


async def test_one_in_place_of_another_preempts_its_own_key(ports: Ports) -> None:
    """The second host has the id, thus the key, of the first, as a new instance of a slot has."""
    wal = await ports.open("a")
    end = await append_released(wal, await started(wal, 1), b"x")
    address = f"block:{DISKS[1]}?preempt={ports.preempt}"
    opening = partial(open_wal, address, rng=random.Random(), host_id="a", cluster_id="c")
    with pytest.raises(SettingsError, match="held by another host"):
        await opening()
    new = await opening(claim=Claim((), frozenset()))
    with pytest.raises(Fenced):
        await wal.trim(end)
    await ports.a.register(reservation_key("c", "a"))
    assert write_directly(DISKS[0], 8 << 20) == errno.EBADE, "registered again, and still fenced"
    assert [r.end_position for r in await recovered(new)] == [end]
    await new.close()
    await wal.close()


async def test_a_taker_that_is_preempted_in_turn_can_trim_nothing(
    ports: Ports,
) -> None:
    wal = await ports.open("a")
    end = await append_released(wal, await started(wal, 1), b"x")
    first = await ports.take("b")
    assert len(await recovered(first)) == 1
    await wal.close()
    second = await ports.take("a")
    with pytest.raises(Fenced):
        await first.trim(end)
    assert len(await recovered(second)) == 1
    await first.close()
    await second.close()
