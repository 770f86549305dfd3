"""Preparing a volume: what is written to an empty one, and how a file is made or found.

A file is filled with zeros and made durable before it gets its name, so that no later write has to
allocate; it is made under another name with a lock on it, so that of two who try one wins. What is
not ours is never formatted.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from storage.errors import SettingsError, StorageError, WalCorrupted
from storage.failpoints import failpoint
from storage.wal.block import BlockWal, BlockWalSettings
from storage.wal.block_format import (
    RING_OFFSET,
    SECTOR,
    SLICES_START,
    SliceEntry,
    SliceHeader,
    VolumeHeader,
    newest,
    sector_down,
)
from storage.wal.device import FileDevice, IoThreads, WalDevice, aligned_buffer, lock_range
from storage.wal.slice_store import SliceStore

SIZE_MIN = 1024 * 1024
_MIB = 1024 * 1024


def volume_image(
    *, volume_id: bytes, capacity: int, node_id: int, host_id: str, cluster_id: str
) -> list[tuple[int, bytes]]:
    """Return what an empty volume of one slice holds: (offset, sector), headers last."""
    entry = SliceEntry(
        node_id=node_id, start=SLICES_START, length=sector_down(capacity - SLICES_START)
    )
    image = []
    for generation in (0, 1):
        header = SliceHeader(
            generation=generation,
            volume_id=volume_id,
            node_id=node_id,
            node_epoch=-1,
            is_clean=True,
            trimmed=0,
            released=0,
            window_length=0,
            scan_length=0,
            segments=(),
        )
        image.append((entry.start + generation * SECTOR, header.encode()))
    for generation in (0, 1):
        volume = VolumeHeader(
            generation=generation,
            volume_id=volume_id,
            capacity=capacity,
            host_id=host_id,
            cluster_id=cluster_id,
            slices=(entry,),
        )
        image.append((generation * SECTOR, volume.encode()))
    return image


async def format_device(device: WalDevice, image: list[tuple[int, bytes]]) -> None:
    """Write an image to a device. Whatever was there is lost."""
    for offset, sector in image:
        buffer = aligned_buffer(SECTOR)
        buffer[:] = sector
        await device.write(offset, buffer)


async def open_slice(
    device: WalDevice,
    *,
    node_id: int,
    cluster_id: str = "",
    settings: BlockWalSettings | None = None,
) -> BlockWal:
    """Open the WAL of a node on a formatted device, and lock its slice.

    Raises SettingsError (not ours, another cluster's, in use), WalCorrupted, UnsupportedFormat.
    """
    volume = newest(await device.read(0, RING_OFFSET), VolumeHeader.decode)
    if volume is None:
        raise SettingsError(
            f"{device.name} is no Lakehead WAL and is left alone: name another path for the WAL"
        )
    if volume.capacity > device.capacity:
        raise WalCorrupted(
            f"{device.name} has {device.capacity} bytes, {volume.capacity} when it was made"
        )
    if cluster_id and volume.cluster_id and cluster_id != volume.cluster_id:
        raise SettingsError(
            f"{device.name} is the WAL of cluster {volume.cluster_id}, not of {cluster_id}: "
            "name another path for the WAL"
        )
    entry = next((s for s in volume.slices if s.node_id == node_id), None)
    if entry is None:
        owners = ", ".join(str(s.node_id) for s in volume.slices)
        raise SettingsError(
            f"{device.name} is the WAL of node {owners}, not of node {node_id}: "
            "name another path for the WAL"
        )
    if not device.lock(entry.start, entry.length):
        raise SettingsError(
            f"{device.name} is in use by another process: stop it, or name another path for the WAL"
        )
    store = await SliceStore.open(device, entry, volume.volume_id)
    return BlockWal(device, entry, store, settings=settings)


async def open_file(
    path: Path,
    *,
    size: int,
    may_format_disk: bool,
    volume_id: bytes,
    node_id: int,
    host_id: str,
    cluster_id: str,
    settings: BlockWalSettings | None = None,
) -> BlockWal:
    """Open the WAL in a file, made if there is none, or on a disk. `size` is for a new file.

    A disk is formatted only if `may_format_disk` and its first MiB holds nothing but zeros.
    """

    def image(capacity: int) -> list[tuple[int, bytes]]:
        return volume_image(
            volume_id=volume_id,
            capacity=capacity,
            node_id=node_id,
            host_id=host_id,
            cluster_id=cluster_id,
        )

    threads = IoThreads((settings or BlockWalSettings()).writes_in_flight_max + 1)
    device: FileDevice | None = None
    try:
        await threads.run(lambda: ensure_file(path, size, image(size)))
        device = await threads.run(lambda: FileDevice.open(path, threads))
        if may_format_disk and await threads.run(path.is_block_device):
            await _format_empty_disk(device, image(sector_down(device.capacity)))
        return await open_slice(device, node_id=node_id, cluster_id=cluster_id, settings=settings)
    except BaseException as error:
        await (device or threads).close()
        if isinstance(error, OSError):
            raise _explained(path, size, error) from error
        raise


async def _format_empty_disk(device: WalDevice, image: list[tuple[int, bytes]]) -> None:
    start = await device.read(0, _MIB)
    if newest(start[:RING_OFFSET], VolumeHeader.decode) is not None:
        return
    if bytes(start).strip(b"\0"):
        raise SettingsError(
            f"{device.name} is not empty and is left alone: wipe its first MiB to give it away"
        )
    await format_device(device, image)


def ensure_file(path: Path, size: int, image: list[tuple[int, bytes]]) -> None:
    """Make the file unless there is one. Blocks. Raises SettingsError and OSError."""
    if path.exists():
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
            raise SettingsError(f"{path} is neither a file nor a disk: name another path")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # The draft may be a crashed maker's (made again) or a living one's (locked, or renamed).
        if not lock_range(fd, 0, 0) or not _is_still(draft, fd):
            raise SettingsError(f"{path} is being made by another process: try again")
        if path.exists():
            draft.unlink()
            return
        try:
            _fill(fd, size, image)
        except OSError:
            draft.unlink()
            raise
        failpoint("wal_file_filled")
        draft.rename(path)
    finally:
        os.close(fd)
    _sync_folder(path.parent)


def _is_still(path: Path, fd: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(fd).st_ino
    except FileNotFoundError:
        return False


def _fill(fd: int, size: int, image: list[tuple[int, bytes]]) -> None:
    os.ftruncate(fd, 0)
    zeros = bytes(_MIB)
    for offset in range(0, size, _MIB):
        piece = zeros[: size - offset]
        if os.pwrite(fd, piece, offset) != len(piece):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(fd)
    for offset, sector in image:
        os.pwrite(fd, sector, offset)
    os.fsync(fd)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _explained(path: Path, size: int, error: OSError) -> StorageError | SettingsError:
    """Return the one line that tells the user what to do about it."""
    reason = error.strerror or str(error)
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return StorageError(
            f"{path}: no room for a WAL of {size} bytes ({reason}): free some, "
            "or set a smaller ?size= in the WAL's address"
        )
    if error.errno in {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR}:
        return SettingsError(f"{path} cannot be written ({reason}): name another path for the WAL")
    return StorageError(f"{path}: {reason}")
