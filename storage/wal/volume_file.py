"""The file that a volume lies in: made on first use, made larger on request.

The space of a file is reserved, durably, before it gets its name, so that no later write fails for
want of it; `zero_fill` writes to all of it later. A file is made under another name with a lock on
it, so that one of two processes that try wins. A file that is there and is not a volume is never
touched.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from lakehead.storage.errors import SettingsError, StorageError
from lakehead.storage.failpoints import failpoint
from lakehead.storage.wal.block_format import SECTOR, VolumeHeader, newest
from lakehead.storage.wal.device import lock_range


def ensure_file(path: Path, size: int, image: list[tuple[int, bytes]]) -> bool:
    """Make the file unless there is one; False if another process is making it at this moment.

    Blocks. Raises SettingsError and OSError.
    """
    if path.exists():
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
            raise SettingsError(f"{path} is neither a file nor a disk: name another path")
        return True
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # The draft may be a crashed maker's (made again) or a living one's (locked, or renamed).
        if not lock_range(fd, 0, 0) or not _is_still(draft, fd):
            return False
        _require_draft(draft, fd)
        if path.exists():
            draft.unlink()
            return True
        try:
            os.ftruncate(fd, 0)
            os.posix_fallocate(fd, 0, size)
            for offset, sector in image:
                os.pwrite(fd, sector, offset)
            os.fsync(fd)
        except OSError:
            draft.unlink()
            raise
        failpoint("wal_file_reserved")
        draft.rename(path)
    finally:
        os.close(fd)
    _sync_folder(path.parent)
    return True


def _require_draft(path: Path, fd: int) -> None:
    """Raise SettingsError for a file that is not one of ours: those begin with zeros, or with the
    header of a volume.
    """
    slots = os.pread(fd, 2 * SECTOR, 0)
    if (
        slots.strip(b"\0")
        and newest(memoryview(slots.ljust(2 * SECTOR, b"\0")), VolumeHeader.decode) is None
    ):
        raise SettingsError(
            f"{path} is in the way, and not a log that is being made: move it away, or name "
            "another path for the log"
        )


def grow_file(path: Path, size: int) -> None:
    """Lengthen the file of a volume to `size` bytes, durably. Blocks.

    New space is not used before a volume header says so, thus a crash in between costs nothing.
    Raises SettingsError (no volume, or `size` is less than it has) and OSError.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        header = newest(memoryview(os.pread(fd, 2 * SECTOR, 0)), VolumeHeader.decode)
        if header is None:
            raise SettingsError(f"{path} is not a Lakehead WAL and is left alone")
        if size < header.capacity:
            raise SettingsError(
                f"{path} has {header.capacity} bytes and cannot shrink to {size}: "
                "name another path for a smaller WAL"
            )
        if os.fstat(fd).st_size < size:
            os.posix_fallocate(fd, header.capacity, size - header.capacity)
            os.fsync(fd)
    finally:
        os.close(fd)


def explained(path: Path, size: int, error: OSError) -> StorageError | SettingsError:
    """Return the one line that advises the operator about an error of opening."""
    reason = error.strerror or str(error)
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return StorageError(
            f"{path}: no room for a WAL of {size} bytes ({reason}): free some, "
            "or set a smaller wal.size (?size= in the WAL's address)"
        )
    if error.errno in {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR}:
        return SettingsError(f"{path} cannot be written ({reason}): name another path for the WAL")
    if error.errno == errno.EBADE:
        return SettingsError(f"{path} is held by another host: take it over, or stop that host")
    return StorageError(f"{path}: {reason}")


def _is_still(path: Path, fd: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(fd).st_ino
    except FileNotFoundError:
        return False


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
