"""The block WAL on raw devices: loop devices stand for disks. Needs root and `losetup`."""

import asyncio
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakehead.storage.errors import SettingsError, WalFailed
from lakehead.storage.wal import BlockWal, open_wal, take_wal
from lakehead.storage.wal.block_format import SECTOR, VolumeHeader
from lakehead.storage.wal.device import FileDevice, IoThreads
from lakehead.storage.wal.disk import found_on, names_of
from lakehead.storage.wal.reservation import ReservationsUnsupported
from tests.support.wal_tools import append_released, recovered, started

MIB = 1024 * 1024
ALONE = "reservations=none"

if os.geteuid() != 0 or shutil.which("losetup") is None or not Path("/dev/loop-control").exists():
    pytest.skip("loop devices need root, losetup and /dev/loop-control", allow_module_level=True)

MakeDisk = Callable[..., Path]


def attach(file: Path) -> Path:
    done = subprocess.run(
        ["losetup", "--find", "--show", "--direct-io=on", str(file)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no loop device can be had: {done.stderr.strip()}")
    return Path(done.stdout.strip())


def run(*command: str) -> int:
    return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[MakeDisk]:
    """A function that makes a raw device of a file; they go when the test ends."""
    devices: list[Path] = []

    def make(size: int = 8 * MIB, *, file: Path | None = None) -> Path:
        if file is None:
            file = tmp_path / f"disk-{len(devices)}"
            file.write_bytes(bytes(size))
        devices.append(attach(file))
        return devices[-1]

    yield make
    for device in devices:
        run("losetup", "--detach", str(device))


async def open_disk(path: Path, options: str, *, node_id: int = 0, cluster: str = "c") -> BlockWal:
    wal = await open_wal(
        f"block:{path}?{options}", rng=random.Random(), node_id=node_id, cluster_id=cluster
    )
    assert isinstance(wal, BlockWal)
    return wal


async def found(path: Path) -> str:
    threads = IoThreads(1)
    device = await asyncio.to_thread(FileDevice.open, path, threads)
    try:
        return await found_on(device)
    finally:
        await device.close()


async def test_an_empty_disk_is_taken_and_keeps_what_is_written(disk: MakeDisk) -> None:
    path = disk()
    wal = await open_disk(path, f"format=yes&slices=2&{ALONE}")
    second = await open_disk(path, f"format=yes&slices=2&{ALONE}", node_id=1)
    ends = {}
    for node_id, one in enumerate((wal, second)):
        ends[node_id] = await append_released(one, await started(one, 1), b"x" * 300_000)
        await one.close()
    for node_id in (0, 1):
        again = await open_disk(path, f"format=yes&slices=2&{ALONE}", node_id=node_id)
        assert [r.end_position for r in await recovered(again)] == [ends[node_id]]
        await again.close()


async def test_without_the_option_a_disk_is_left_alone(disk: MakeDisk) -> None:
    path = disk()
    with pytest.raises(SettingsError, match="left alone"):
        await open_disk(path, ALONE)
    assert path.read_bytes() == bytes(8 * MIB)


async def test_a_disk_without_reservations_is_refused_unless_told_so(disk: MakeDisk) -> None:
    path = disk()
    with pytest.raises(ReservationsUnsupported, match="reservations=none"):
        await open_disk(path, "format=yes")
    assert path.read_bytes() == bytes(8 * MIB)


def with_ext4(path: Path) -> None:
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is missing")
    subprocess.run(["mkfs.ext4", "-q", "-F", str(path)], timeout=30, check=True)


def with_partitions(path: Path) -> None:
    with path.open("r+b") as device:
        device.seek(510)
        device.write(b"\x55\xaaEFI PART")


def with_a_backup_table(path: Path) -> None:
    with path.open("r+b") as device:
        device.seek(-512, os.SEEK_END)
        device.write(b"EFI PART")


def with_data(path: Path) -> None:
    with path.open("r+b") as device:
        device.seek(300_001)
        device.write(b"!")


CONTENTS = {
    "ext2, ext3 or ext4": with_ext4,
    "GPT partition table": with_partitions,
    "a GPT": with_a_backup_table,
    "data in its first MiB": with_data,
}


@pytest.mark.parametrize("what", CONTENTS)
async def test_what_a_disk_carries_is_named_and_given_away_only_by_its_name(
    disk: MakeDisk, what: str
) -> None:
    path = disk()
    CONTENTS[what](path)
    os.sync()
    before = path.read_bytes()
    with pytest.raises(SettingsError, match=what):
        await open_disk(path, f"format=yes&{ALONE}")
    with pytest.raises(SettingsError, match="not one of the disk's names"):
        await open_disk(path, f"format=nvme9n9&{ALONE}")
    assert path.read_bytes() == before
    wal = await open_disk(path, f"format={path.name}&{ALONE}")
    await append_released(wal, await started(wal, 1), b"x")
    await wal.close()
    again = await open_disk(path, f"format={path.name}&{ALONE}")
    assert len(await recovered(again)) == 1, "the option does not format what is its own"
    await again.close()


async def test_a_wal_of_another_cluster_is_never_formatted_unless_named(disk: MakeDisk) -> None:
    path = disk()
    wal = await open_disk(path, f"format=yes&{ALONE}", cluster="one")
    await append_released(wal, await started(wal, 1), b"x")
    with pytest.raises(SettingsError, match="WAL of cluster one"):
        await open_disk(path, ALONE, cluster="two")
    with pytest.raises(SettingsError, match="WAL of cluster one"):
        await open_disk(path, f"format=yes&{ALONE}", cluster="two")
    with pytest.raises(SettingsError, match="another process has it open"):
        await open_disk(path, f"format={path.name}&{ALONE}", cluster="two")
    await wal.close()
    await (await open_disk(path, f"format={path.name}&{ALONE}", cluster="two")).close()
    with pytest.raises(SettingsError, match="WAL of cluster two"):
        await open_disk(path, ALONE, cluster="one")


async def test_a_mounted_disk_is_left_alone_even_by_name(disk: MakeDisk, tmp_path: Path) -> None:
    path = disk()
    with_ext4(path)
    folder = tmp_path / "mounted"
    folder.mkdir()
    if run("mount", str(path), str(folder)):
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(SettingsError, match="in use by the system"):
            await open_disk(path, f"format={path.name}&{ALONE}")
    finally:
        assert run("umount", str(folder)) == 0
    assert "ext4" in await found(path)


async def test_a_format_that_was_cut_off_is_done_again(disk: MakeDisk) -> None:
    path = disk()
    await (await open_disk(path, f"format=yes&{ALONE}")).close()
    with path.open("r+b") as device:  # as if the volume header had not been written yet
        device.write(bytes(2 * SECTOR))
        device.seek(64 * 1024 + 2 * SECTOR)
        device.write(bytes(SECTOR))
    os.sync()
    assert await found(path) == ""
    await (await open_disk(path, f"format=yes&{ALONE}")).close()


async def test_a_disk_that_grew_is_used_when_asked(disk: MakeDisk, tmp_path: Path) -> None:
    path = disk(4 * MIB)
    wal = await open_disk(path, f"format=yes&{ALONE}")
    end = await append_released(wal, await started(wal, 1), b"kept")
    await wal.close()
    os.truncate(tmp_path / "disk-0", 8 * MIB)
    assert run("losetup", "--set-capacity", str(path)) == 0
    with pytest.raises(SettingsError, match="no room"):
        await open_disk(path, f"slices=2&{ALONE}", node_id=1)
    second = await open_disk(path, f"slices=2&grow=yes&{ALONE}", node_id=1)
    await append_released(second, await started(second, 1), b"new")
    await second.close()
    again = await open_disk(path, ALONE)
    assert [r.end_position for r in await recovered(again)] == [end]
    await again.close()


async def test_a_takeover_from_another_host_needs_a_fence(disk: MakeDisk) -> None:
    path = disk()
    await (await open_disk(path, f"format=yes&{ALONE}")).close()
    with pytest.raises(SettingsError, match="cannot be fenced"):
        await take_wal(f"block:{path}?{ALONE}", node_id=0, host_id="elsewhere", cluster_id="c")
    with pytest.raises(ReservationsUnsupported):
        await take_wal(f"block:{path}", node_id=0, host_id="elsewhere", cluster_id="c")
    taken = await take_wal(f"block:{path}?{ALONE}", node_id=0, cluster_id="c")
    await taken.close()


async def test_the_names_of_a_disk_are_its_paths_and_numbers(disk: MakeDisk) -> None:
    path = disk()
    link = path.parent / f"lakehead-test-{os.getpid()}"
    link.symlink_to(path)
    try:
        assert {str(link), link.name, str(path), path.name} <= names_of(link)
    finally:
        link.unlink()


async def test_two_paths_to_one_disk_share_every_byte(disk: MakeDisk, tmp_path: Path) -> None:
    """As two hosts see it, without a fence: what one wrote the other recovers."""
    first = disk()
    second = disk(file=tmp_path / "disk-0")
    wal = await open_disk(first, f"format=yes&{ALONE}")
    end = await append_released(wal, await started(wal, 1), b"x" * 70_000)
    other = await open_disk(second, ALONE)
    assert [r.end_position for r in await recovered(other)] == [end]
    await other.close()
    await wal.close()


@pytest.fixture
def thin_disk(disk: MakeDisk, tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MiB that promises more than it has: after 2 MiB its writes fail."""
    folder = tmp_path / "thin"
    folder.mkdir()
    if run("mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)):
        pytest.skip("mounting is not allowed here")
    try:
        file = folder / "disk"
        file.touch()
        os.truncate(file, 8 * MIB)
        path = disk(file=file)
        yield path
        run("losetup", "--detach", str(path))
    finally:
        run("umount", "--lazy", str(folder))


async def test_a_device_that_fails_fences_the_log_which_recovers_at_the_next_start(
    thin_disk: Path,
) -> None:
    wal = await open_disk(thin_disk, f"format=yes&{ALONE}")
    listener = await started(wal, 1)
    while not listener.errors:
        # One sector a write: of a larger one, the loop driver calls a part that fitted the whole.
        wal.append(1, 1, 0, 1, b"x" * 4000)
        while wal.pending_bytes and not listener.errors:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert "start again" in str(listener.errors[0])
    assert len(listener.errors) == 1
    with pytest.raises(WalFailed):
        wal.append(1, 1, 0, 1, b"never")
    await wal.close()
    again = await open_disk(thin_disk, ALONE)
    ends = [r.end_position for r in await recovered(again)]
    assert ends[: len(listener.positions)] == listener.positions
    await again.close()


async def test_the_volume_header_says_whose_disk_it_is(disk: MakeDisk) -> None:
    path = disk()
    wal = await open_wal(
        f"block:{path}?format=yes&{ALONE}",
        rng=random.Random(1),
        node_id=3,
        cluster_id="c",
        host_id="h",
    )
    await wal.close()
    header = VolumeHeader.decode(memoryview(path.read_bytes()[:SECTOR]))
    assert header is not None
    assert (header.host_id, header.cluster_id, header.capacity) == ("h", "c", 8 * MIB)
    assert [s.node_id for s in header.slices] == [3]
