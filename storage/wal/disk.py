"""A whole disk as a volume: when it may be formatted, and what else may be on it.

The first and the last MiB of an unused disk are zeros. Anything else is in use: the refusal names
the use whose signature is known, and such a disk is given away only by naming the disk itself, so
that an option carried over to another machine, or another order of the disks, destroys nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from lakehead.storage.errors import SettingsError
from lakehead.storage.wal.block_format import (
    SECTOR,
    SLICES_START,
    SliceHeader,
    VolumeHeader,
    newest,
    sector_down,
)
from lakehead.storage.wal.device import WalDevice

CHECKED_SIZE = 1024 * 1024
EMPTY_ONLY = "yes"
"""The value of the option `format` that takes an empty disk and no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signature:
    """Bytes that show a use of a disk; a negative `at` counts from its end."""

    what: str
    at: int
    magic: bytes


_SIGNATURES = (
    _Signature(what="a Lakehead WAL", at=0, magic=b"LKHDVOLU"),
    _Signature(what="a Lakehead WAL", at=SECTOR, magic=b"LKHDVOLU"),
    _Signature(what="a GPT partition table", at=512, magic=b"EFI PART"),
    _Signature(what="a GPT partition table", at=4096, magic=b"EFI PART"),
    _Signature(what="a GPT partition table", at=-512, magic=b"EFI PART"),
    _Signature(what="a GPT partition table", at=-4096, magic=b"EFI PART"),
    _Signature(what="an ext2, ext3 or ext4 file system", at=0x438, magic=b"\x53\xef"),
    _Signature(what="an XFS file system", at=0, magic=b"XFSB"),
    _Signature(what="a btrfs file system", at=0x10040, magic=b"_BHRfS_M"),
    _Signature(what="an F2FS file system", at=0x400, magic=b"\x10\x20\xf5\xf2"),
    _Signature(what="a bcachefs or bcache disk", at=0x1018, magic=b"\xc6\x85\x73\xf6\x4e\x1a"),
    _Signature(what="an ISO 9660 file system", at=0x8001, magic=b"CD001"),
    _Signature(what="a squashfs file system", at=0, magic=b"hsqs"),
    _Signature(what="an NTFS file system", at=3, magic=b"NTFS    "),
    _Signature(what="an exFAT file system", at=3, magic=b"EXFAT   "),
    _Signature(what="a FAT file system", at=0x52, magic=b"FAT32   "),
    _Signature(what="a FAT file system", at=0x36, magic=b"FAT"),
    _Signature(what="an LVM physical volume", at=512, magic=b"LABELONE"),
    _Signature(what="a LUKS container", at=0, magic=b"LUKS\xba\xbe"),
    _Signature(what="swap space", at=4086, magic=b"SWAPSPACE2"),
    _Signature(what="a member of a RAID", at=0, magic=b"\xfc\x4e\x2b\xa9"),
    _Signature(what="a member of a RAID", at=4096, magic=b"\xfc\x4e\x2b\xa9"),
    _Signature(what="a member of a RAID", at=-65536, magic=b"\xfc\x4e\x2b\xa9"),
    _Signature(what="a member of a RAID", at=-8192, magic=b"\xfc\x4e\x2b\xa9"),
    _Signature(what="a partition table", at=510, magic=b"\x55\xaa"),
)


async def found_on(device: WalDevice) -> str:
    """Return what the disk carries, in words; empty if nothing."""
    size = min(CHECKED_SIZE, sector_down(device.capacity))
    first = bytes(await device.read(0, size))
    last = bytes(await device.read(sector_down(device.capacity) - size, size))
    for signature in _SIGNATURES:
        region = last if signature.at < 0 else first
        at = signature.at % len(region)
        if region[at : at + len(signature.magic)] == signature.magic:
            return signature.what
    if first.strip(b"\0") and not _is_unfinished(first):
        return "data in its first MiB"
    return "data in its last MiB" if last.strip(b"\0") else ""


async def may_be_formatted(device: WalDevice, path: Path, wanted: str, cluster_id: str) -> bool:
    """Return true if the option `format` gives this disk away. False: it is a volume already, open
    it.

    A volume of this cluster is never formatted by the option, which stays in the settings of a
    broker for ever. Raises SettingsError for a disk that is not given away, or is in use.
    """
    volume = newest(await device.read(0, 2 * SECTOR), VolumeHeader.decode)
    if volume is not None and (not wanted or cluster_id in {"", volume.cluster_id}):
        return False
    if not wanted:
        return False  # opening it says what it lacks
    names = names_of(path)
    if wanted != EMPTY_ONLY and wanted not in names:
        raise SettingsError(
            f"{path}: format={wanted} is not one of the disk's names ({', '.join(sorted(names))}): "
            "it is left alone"
        )
    found = await found_on(device)
    if volume is not None:
        found = f"the WAL of cluster {volume.cluster_id or '?'}, host {volume.host_id or '?'}"
    if found and wanted == EMPTY_ONLY:
        raise SettingsError(
            f"{path} carries {found} and is left alone: name another disk, or give this one away "
            f"with format={path.name} or its serial number"
        )
    if not device.lock(0, sector_down(device.capacity)):
        what = found or "nothing"
        raise SettingsError(f"{path} carries {what}, and another process has it open")
    return True


def check_unused(path: Path) -> None:
    """Refuse a disk that the kernel uses: mounted, or part of a RAID or a volume group. Blocks."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC)
    except OSError as error:
        raise SettingsError(
            f"{path} is in use by the system ({error.strerror}) and is left alone: unmount it first"
        ) from error
    os.close(fd)


def names_of(path: Path) -> set[str]:
    """Return what a disk may be called in `format`: paths, kernel name, serial number. Blocks."""
    real = path.resolve()
    names = {str(path), path.name, str(real), real.name}
    folder = Path("/sys/class/block") / real.name
    for place in ("serial", "device/serial", "wwid", "device/wwid"):
        try:
            text = (folder / place).read_text().strip()
        except OSError:
            continue
        names |= {text} - {""}
    return names


def _is_unfinished(first: bytes) -> bool:
    """Return true if all there is are headers of a slice never started: a format that was
    cut off.
    """
    slots = range(SLICES_START, SLICES_START + 2 * SECTOR, SECTOR)
    rest = first[:SLICES_START] + first[slots.stop :]
    if rest.strip(b"\0"):
        return False
    headers = [SliceHeader.decode(memoryview(first)[at : at + SECTOR]) for at in slots]
    return headers[0] is not None and all(h is None or h.node_epoch < 0 for h in headers)
