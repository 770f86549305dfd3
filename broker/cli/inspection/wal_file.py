"""A block write-ahead log read from outside: nothing is locked, started or written.

It may be read while a broker writes to it; what is seen then is a moment of it.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lakehead.storage.errors import SettingsError, WalCorrupted
from lakehead.storage.wal.block_format import (
    RING_OFFSET,
    SECTOR,
    SliceEntry,
    SliceHeader,
    VolumeHeader,
    newest,
    record_seed,
)
from lakehead.storage.wal.block_recovery import Ring, RingScan
from lakehead.storage.wal.device import WalDevice
from lakehead.storage.wal.protocol import WalRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class WalFileReport:
    """One slice of a volume: its header, its records, and the first damage met (empty: none)."""

    summary: dict[str, Any]
    rows: list[dict[str, Any]]
    damage: str


class _ReadOnlyDevice:
    """The reading half of a WalDevice, over a plain file descriptor."""

    def __init__(self, path: Path, fd: int) -> None:
        self.name = str(path)
        self._fd = fd

    async def read(self, offset: int, length: int) -> memoryview:
        """Return the bytes at `offset`; fewer at the end of the file."""
        return memoryview(os.pread(self._fd, length, offset))


async def read_wal_file(path: str) -> list[WalFileReport]:
    """Return what each slice of the volume at `path` holds.

    Raises SettingsError for a file that is not a write-ahead log, UnsupportedFormat, OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        device = cast(WalDevice, _ReadOnlyDevice(Path(path), fd))
        volume = newest(await device.read(0, 2 * SECTOR), VolumeHeader.decode)
        if volume is None:
            raise SettingsError(f"{path} is not a write-ahead log of Lakehead")
        return [await _read_slice(device, volume, entry) for entry in volume.slices]
    finally:
        os.close(fd)


async def _read_slice(device: WalDevice, volume: VolumeHeader, entry: SliceEntry) -> WalFileReport:
    header = newest(await device.read(entry.start, RING_OFFSET), SliceHeader.decode)
    if header is None:
        return WalFileReport(
            summary={"node": entry.node_id},
            rows=[],
            damage=f"{device.name}: no valid header of the slice of node {entry.node_id}",
        )
    ring = Ring(
        start=entry.start + RING_OFFSET,
        length=entry.length - RING_OFFSET,
        seed=record_seed(volume.volume_id, entry),
    )
    scan = RingScan(device, ring, header)
    rows: list[dict[str, Any]] = []
    damage = ""
    try:
        async for record in scan.records():
            rows.append(_row(record))  # noqa: PERF401 - what was read before damage is kept
    except WalCorrupted as error:
        damage = str(error)
    return WalFileReport(
        summary=_summary(volume, header, ring, rows, scan.end), rows=rows, damage=damage
    )


def _summary(
    volume: VolumeHeader, header: SliceHeader, ring: Ring, rows: list[dict[str, Any]], end: int
) -> dict[str, Any]:
    return {
        "node": header.node_id,
        "cluster": volume.cluster_id or None,
        "host": volume.host_id or None,
        "capacity": ring.length,
        "node epoch": header.node_epoch,
        "clean shutdown": header.is_clean,
        "trimmed position": header.trimmed,
        "end position": end,
        "records": len(rows),
        "record bytes": sum(row["bytes"] for row in rows),
        "streams": len({row["stream"] for row in rows}),
    }


def _row(record: WalRecord) -> dict[str, Any]:
    return {
        "position": record.position,
        "bytes": len(record.payload),
        "stream": record.stream_id,
        "epoch": record.epoch,
        "offset": record.base_offset,
        "records": record.count,
    }
