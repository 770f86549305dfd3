"""A file system of one file whose disk misbehaves as told: run as a process, mounted by FUSE.

What is written goes to a cache; a flush makes it durable, as in a disk with a volatile cache. The
file `control` takes commands, one per write:

    crash SEED          lose what is not durable, except for pieces of 512 bytes chosen at random;
                        the disk is gone (every write fails) until it is healed
    fail-write N CODE   the N-th write from now fails (1 is the next), with this error number
    fail-flush N CODE   the N-th flush from now fails, and as Linux does, the next one succeeds
    read-only           every write from now on fails with EROFS
    ignore-flush        flushes say they are done and do nothing: the disk lies
    hang FILE           no call to the disk returns any more while FILE is there, signals or not
    heal                none of this from now on

Usage: lying_disk.py MOUNTPOINT SIZE [refuse-direct]
"""

import errno
import os
import random
import stat
import sys
import time
from pathlib import Path
from typing import Any

from fuse import FUSE, FuseOSError

PIECE = 512


class LyingDisk:
    """The operations, which fusepy asks for by name from the one thread of its loop."""

    def __init__(self, size: int, *, refuses_direct: bool) -> None:
        self.durable = bytearray(size)
        self.cache = bytearray(size)
        self.dirty: list[tuple[int, int]] = []
        self.refuses_direct = refuses_direct
        self.heal()

    def __call__(self, operation: str, *arguments: Any) -> Any:
        if not hasattr(self, operation):
            raise FuseOSError(errno.EFAULT)
        return getattr(self, operation)(*arguments)

    def heal(self) -> None:
        self.writes_left = self.flushes_left = -1
        self.write_error = self.flush_error = errno.EIO
        self.is_read_only = self.ignores_flush = False
        self.hangs_by: Path | None = None

    def command(self, words: list[str]) -> None:
        match words:
            case ["crash", seed]:
                self.crash(random.Random(int(seed)))
            case ["fail-write", count, code]:
                self.writes_left, self.write_error = int(count), int(code)
            case ["fail-flush", count, code]:
                self.flushes_left, self.flush_error = int(count), int(code)
            case ["read-only"]:
                self.is_read_only = True
            case ["ignore-flush"]:
                self.ignores_flush = True
            case ["hang", file]:
                self.hangs_by = Path(file)
            case ["heal"]:
                self.heal()
            case _:
                raise FuseOSError(errno.EINVAL)

    def wait_while_it_hangs(self) -> None:
        """The kernel's process waits in a call that no signal ends."""
        while self.hangs_by is not None and self.hangs_by.exists():
            time.sleep(0.01)
        self.hangs_by = None

    def crash(self, rng: random.Random) -> None:
        share = rng.choice([0.0, 0.3, 0.7, 1.0])
        for start, end in self.dirty:
            for at in range(start, end, PIECE):
                if rng.random() < share:
                    self.durable[at : at + PIECE] = self.cache[at : at + PIECE]
        self.dirty.clear()
        self.cache[:] = self.durable
        self.is_read_only = True

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
        if path == "/wal":
            return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": len(self.cache)}
        if path == "/control":
            return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": 0}
        raise FuseOSError(errno.ENOENT)

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", "wal", "control"]

    def open(self, path: str, flags: int) -> int:
        if path == "/wal" and self.refuses_direct and flags & os.O_DIRECT:
            raise FuseOSError(errno.EINVAL)
        return 0

    def truncate(self, path: str, length: int, fh: int | None = None) -> None:
        pass

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        if path == "/wal":
            self.wait_while_it_hangs()
        return bytes(self.cache[offset : offset + size]) if path == "/wal" else b""

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        if path == "/control":
            self.command(data.decode().split())
            return len(data)
        self.wait_while_it_hangs()
        if self.is_read_only:
            raise FuseOSError(errno.EROFS)
        self.writes_left -= 1
        if self.writes_left == 0:
            half = len(data) // 2 // PIECE * PIECE
            self.cache[offset : offset + half] = data[:half]
            self.dirty.append((offset, offset + half))
            raise FuseOSError(self.write_error)
        self.cache[offset : offset + len(data)] = data
        self.dirty.append((offset, offset + len(data)))
        return len(data)

    def fsync(self, path: str, datasync: bool, fh: int) -> None:
        self.flushes_left -= 1
        if self.flushes_left == 0:
            self.dirty.clear()  # Linux marks the pages clean: the next flush finds nothing
            raise FuseOSError(self.flush_error)
        if self.ignores_flush:
            return
        for start, end in self.dirty:
            self.durable[start:end] = self.cache[start:end]
        self.dirty.clear()


if __name__ == "__main__":
    FUSE(
        LyingDisk(int(sys.argv[2]), refuses_direct="refuse-direct" in sys.argv[3:]),
        sys.argv[1],
        foreground=True,
        nothreads=True,
        big_writes=True,
    )
