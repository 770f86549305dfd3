"""Mounts disks that misbehave, `lying_disk`, each with an empty volume of a block WAL."""

import ctypes.util
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lakehead.storage.wal import BlockWal, open_wal
from lakehead.storage.wal.volume import volume_image
from tests.support.waiting import wait_until

LYING_DISK = Path(__file__).with_name("lying_disk.py")
_LIBRARY = "FUSE_LIBRARY_PATH"
"""Environment, of fusepy: a libfuse2 that is not where libraries are."""


def skip_without_fuse() -> None:
    """Skip a module where file systems cannot be made."""
    has_library = _LIBRARY in os.environ or ctypes.util.find_library("fuse") is not None
    if not Path("/dev/fuse").exists() or not has_library:
        pytest.skip("needs /dev/fuse and libfuse2", allow_module_level=True)
    pytest.importorskip("fuse", reason="needs fusepy")


class Disk:
    """A mounted lying disk that carries an empty volume."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "wal"
        self._control = folder / "control"

    def tell(self, *words: object) -> None:
        fd = os.open(self._control, os.O_WRONLY)
        try:
            os.write(fd, " ".join(str(word) for word in words).encode())
        finally:
            os.close(fd)

    def write(self, offset: int, data: bytes) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_DSYNC)
        try:
            os.pwrite(fd, data, offset)
        finally:
            os.close(fd)

    async def open(self) -> BlockWal:
        wal = await open_wal(f"block:{self.path}", rng=random.Random(1))
        assert isinstance(wal, BlockWal)
        return wal

    async def lose_power(self, wal: BlockWal, seed: int) -> None:
        """What is not durable is gone, and so is the process: its late writes count for nothing."""
        self.tell("crash", seed)
        await wal.close()
        self.tell("heal")


MakeDisk = Callable[..., Disk]


@contextmanager
def disks(parent: Path, size: int) -> Iterator[MakeDisk]:
    """A function that mounts a disk of `size` bytes; it goes at the end. Skips where it may not."""
    mounted: list[tuple[Path, subprocess.Popen[bytes]]] = []

    def make(*options: str) -> Disk:
        folder = parent / f"mount-{len(mounted)}"
        folder.mkdir()
        process = subprocess.Popen([sys.executable, LYING_DISK, folder, str(size), *options])
        mounted.append((folder, process))
        wait_until(lambda: folder.is_mount() or process.poll() is not None, deadline_s=20)
        if process.poll() is not None:
            pytest.skip("FUSE is not allowed here")
        disk = Disk(folder)
        image = volume_image(
            volume_id=b"v" * 16, capacity=size, node_id=0, host_id="", cluster_id=""
        )
        for offset, sector in image:
            disk.write(offset, sector)
        return disk

    try:
        yield make
    finally:
        for folder, process in mounted:
            subprocess.run(["umount", "--lazy", folder], timeout=20, check=False)
            process.terminate()
            process.wait(timeout=20)
