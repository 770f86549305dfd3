"""The block WAL on disks that lose, tear, refuse and lie, by real system calls: `make disks`.

The disk is a FUSE file system in a process of its own (`lying_disk`). Skipped where FUSE is
missing; needs root or fusermount, and libfuse2.
"""

import asyncio
import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehead.storage.errors import SettingsError, WalCorrupted, WalFailed
from lakehead.storage.wal.block_format import SECTOR, SLICES_START
from tests.disks.mounted_disk import Disk, MakeDisk, disks, skip_without_fuse
from tests.support.wal_tools import RING_START, Listener, append_released, recovered, started

SIZE = 2 * 1024 * 1024
skip_without_fuse()


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[MakeDisk]:
    """A function that mounts a disk; it goes when the test ends."""
    with disks(tmp_path, SIZE) as make:
        yield make


@pytest.fixture(params=["O_DIRECT", "fdatasync"])
def disk(request: pytest.FixtureRequest, mount: MakeDisk) -> Disk:
    """By both ways that the WAL has to make a write durable."""
    return mount(*(["refuse-direct"] if request.param == "fdatasync" else []))


@pytest.mark.parametrize("seed", range(4))
async def test_what_was_released_survives_the_loss_of_the_disks_cache(
    disk: Disk, seed: int
) -> None:
    rng = random.Random(seed)
    released = 0
    for epoch in range(1, 5):
        wal = await disk.open()
        records = await recovered(wal)
        assert not released or records[-1].end_position >= released
        assert [r.base_offset for r in records] == list(range(len(records)))
        listener = Listener()
        await wal.start(epoch=epoch, listener=listener)
        for offset in range(len(records), len(records) + rng.randrange(3, 25)):
            wal.append(1, 1, offset, 1, rng.randbytes(rng.randrange(9000)))
            if rng.random() < 0.4:
                await asyncio.sleep(0.003)
        released = listener.positions[-1] if listener.positions else released
        await disk.lose_power(wal, rng.randrange(1000))
    assert released
    await (await disk.open()).close()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("command", ["fail-write", "fail-flush"])
async def test_an_error_of_a_write_or_a_flush_is_final_and_the_next_start_recovers(
    disk: Disk, command: str, code: int
) -> None:
    """A second flush would succeed without the lost pages: nothing is tried again."""
    wal = await disk.open()
    listener = await started(wal, 1)
    kept = await append_released(wal, listener, b"kept" * 1000)
    disk.tell(command, 1, code)
    for offset in range(5):
        wal.append(1, 1, offset, 1, b"never acknowledged" * 300)
    error = await listener.wait_failed()
    assert isinstance(error, WalFailed)
    assert os.strerror(code) in str(error)
    assert "start again" in str(error)
    with pytest.raises(WalFailed):
        wal.append(1, 1, 9, 1, b"")
    await wal.close()
    assert listener.positions == [kept]
    assert len(listener.errors) == 1
    disk.tell("crash", 1)
    disk.tell("heal")
    again = await disk.open()
    assert next(r.end_position for r in await recovered(again)) == kept
    listener = Listener()
    await again.start(epoch=2, listener=listener)
    await append_released(again, listener, b"and on")
    await again.close()


async def test_an_error_of_the_header_write_is_final_too(disk: Disk) -> None:
    wal = await disk.open()
    listener = await started(wal, 1)
    ends = [await append_released(wal, listener, b"x" * 5000) for _ in range(3)]
    disk.tell("fail-flush", 1, errno.EIO)
    with pytest.raises(WalFailed, match="header"):
        await wal.trim(ends[1])
    await disk.lose_power(wal, 1)
    again = await disk.open()
    assert [r.end_position for r in await recovered(again)] in (ends, ends[2:])
    await again.close()


async def test_a_disk_that_became_read_only_is_named(disk: Disk) -> None:
    wal = await disk.open()
    listener = await started(wal, 1)
    disk.tell("read-only")
    wal.append(1, 1, 0, 1, b"x")
    assert "read-only" in str(await listener.wait_failed())
    await wal.close()
    with pytest.raises(SettingsError, match="cannot be written"):
        await disk.open()


async def test_a_flush_that_lied_is_noticed_once_a_later_write_bears_witness(disk: Disk) -> None:
    """The disk says "durable", loses the middle and keeps what came after: damage, by name."""
    wal = await disk.open()
    listener = await started(wal, 1)
    await append_released(wal, listener, b"first" * 2000)
    disk.tell("ignore-flush")
    lost = RING_START + (wal.next_position + SECTOR - 1) // SECTOR * SECTOR
    await append_released(wal, listener, b"lost" * 2000)
    await append_released(wal, listener, b"later" * 2000)
    await wal.close()
    disk.tell("heal")
    disk.write(lost, bytes(2 * SECTOR))
    wal = await disk.open()
    with pytest.raises(WalCorrupted, match=r"wal.*acknowledged data is damaged"):
        await recovered(wal)
    await wal.close()


@pytest.mark.parametrize("at", [0, 7, 13, 47, 90, 3000])
async def test_a_flipped_bit_is_an_error_that_says_where(disk: Disk, at: int) -> None:
    wal = await disk.open()
    listener = await started(wal, 1)
    for _ in range(4):
        await append_released(wal, listener, b"x" * 3500)
    await wal.close()
    content = disk.path.read_bytes()
    position = RING_START + SECTOR + at  # in the second record
    disk.write(position, bytes([content[position] ^ 1]))
    wal = await disk.open()
    with pytest.raises(WalCorrupted, match=f"device offset {RING_START + 3581}"):
        await recovered(wal)
    await wal.close()


async def test_both_header_slots_lost_is_an_error_and_one_is_not(disk: Disk) -> None:
    wal = await disk.open()
    listener = await started(wal, 1)
    end = await append_released(wal, listener, b"x")
    await wal.close()
    content = disk.path.read_bytes()
    slots = [content[SLICES_START + at : SLICES_START + at + SECTOR] for at in (0, SECTOR)]
    disk.write(SLICES_START, bytes(SECTOR))
    wal = await disk.open()
    await wal.close()
    disk.write(SLICES_START, slots[0])
    disk.write(SLICES_START + SECTOR, bytes(SECTOR))
    wal = await disk.open()
    await wal.close()
    disk.write(SLICES_START, bytes(2 * SECTOR))
    with pytest.raises(WalCorrupted, match="no valid header"):
        await disk.open()
    disk.write(SLICES_START, b"".join(slots))
    wal = await disk.open()
    assert [r.end_position for r in await recovered(wal)] == [end]
    await wal.close()
