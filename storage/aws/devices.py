"""The disks of this machine, and which EBS volume each of them is.

The name that AttachVolume is given (/dev/sdf) is not the guest's, and the order of /dev/nvme*n1 is
any. What holds is the serial number of the controller: the volume's id without its dash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from lakehead.storage.errors import SettingsError

_LINK = "nvme-Amazon_Elastic_Block_Store_"


class Devices(Protocol):
    """Where the volumes that are attached appear."""

    def path(self, volume_id: str) -> Path:
        """Return where the disk of a volume is, or would be."""

    async def is_here(self, volume_id: str) -> bool:
        """Whether it is there. Raises SettingsError when what is there is another disk."""


class NvmeDevices:
    """Those of an instance on Nitro, by the links that udev makes. `root` and `is_disk` are seams
    for tests.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        *,
        is_disk: Callable[[Path], bool] = Path.is_block_device,
    ) -> None:
        self._root = root
        self._is_disk = is_disk

    def path(self, volume_id: str) -> Path:
        """See Devices."""
        return self._root / "dev/disk/by-id" / f"{_LINK}{_serial(volume_id)}"

    async def is_here(self, volume_id: str) -> bool:
        """See Devices. The link is as good as who made it, so the disk's own serial is read."""
        return await asyncio.to_thread(self._is_here, volume_id)

    def _is_here(self, volume_id: str) -> bool:
        link = self.path(volume_id)
        if not self._is_disk(link):
            return False
        name = link.resolve().name
        try:
            found = (self._root / "sys/class/block" / name / "device/serial").read_text().strip()
        except FileNotFoundError:
            if not self._is_disk(link):
                return False  # it was detached between the two looks
            found = ""
        if found.replace("-", "") != _serial(volume_id):
            raise SettingsError(
                f"{link} is a disk with the serial number {found or 'of nothing'}, not volume "
                f"{volume_id}: it is not written to; look at what made the link"
            )
        return True


def _serial(volume_id: str) -> str:
    return volume_id.replace("-", "")
