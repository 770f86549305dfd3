"""The durable state of one slice: its header, written to two slots in turn.

One header write is in flight at a time, so that a crash spoils at most the older of the two, and a
write whose waiter was cancelled is waited for before the next one starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from lakehead.storage.errors import StorageError, WalCorrupted
from lakehead.storage.failpoints import failpoint
from lakehead.storage.wal.block_format import (
    HOLDER_OFFSET,
    SECTOR,
    EpochRange,
    SliceEntry,
    SliceHeader,
    newest,
)
from lakehead.storage.wal.device import WalDevice, aligned_buffer
from lakehead.storage.wal.holder import NO_HOLDER, Holder


class SliceStore:
    """Reads and writes the header of a slice. `header` is the newest durable one."""

    def __init__(self, device: WalDevice, entry: SliceEntry, header: SliceHeader) -> None:
        self.header = header
        self._device = device
        self._entry = entry
        self._generation = header.generation
        self._lock = asyncio.Lock()
        self._write: asyncio.Future[None] | None = None
        self._held: asyncio.Future[None] | None = None
        self._error: BaseException | None = None

    @classmethod
    async def open(cls, device: WalDevice, entry: SliceEntry, volume_id: bytes) -> SliceStore:
        """Read the newest header. Raises WalCorrupted when there is none of this volume."""
        slots = await device.read(entry.start, HOLDER_OFFSET)
        header = newest(slots, SliceHeader.decode)
        if header is None or (header.volume_id, header.node_id) != (volume_id, entry.node_id):
            raise WalCorrupted(
                f"{device.name}: no valid header of the slice of node {entry.node_id} "
                f"at byte {entry.start}"
            )
        return cls(device, entry, header)

    async def hold(self, holder: Holder) -> None:
        """Write the holder of the slice. Raises what the device raises."""
        buffer = aligned_buffer(SECTOR)
        buffer[:] = holder.encode(self.header.volume_id)
        self._held = self._device.write(self._entry.start + HOLDER_OFFSET, buffer)
        await asyncio.shield(self._held)

    async def let_go(self) -> None:
        """Write that the slice has no holder, before its lock goes. Raises what the device raises.

        Else a process that took a slice, gave it back and lives on would be ended in the place of a
        later holder that has not written its name yet.
        """
        if self._held is not None:
            await self.hold(NO_HOLDER)

    async def save(self, change: Callable[[SliceHeader], SliceHeader]) -> None:
        """Make `change(header)` the durable header. Raises what the device raises.

        Cancelled, the write goes on and counts if it succeeds. After a failed write there is one
        good slot at most: every later call raises the same error.
        """
        async with self._lock:
            if self._write is not None:
                await asyncio.wait([self._write])
            if self._error is not None:
                raise self._error
            self._generation += 1
            header = replace(change(self.header), generation=self._generation)
            buffer = aligned_buffer(SECTOR)
            buffer[:] = header.encode()
            slot = self._entry.start + self._generation % 2 * SECTOR
            self._write = self._device.write(slot, buffer)
            self._write.add_done_callback(lambda write: self._landed(header, write))
            await asyncio.shield(self._write)

    def _landed(self, header: SliceHeader, write: asyncio.Future[None]) -> None:
        self._error = asyncio.CancelledError() if write.cancelled() else write.exception()
        if self._error is None:
            self.header = header
            failpoint("wal_header_written")


def ended(header: SliceHeader, end: int) -> SliceHeader:
    """The last segment ends at `end`, whatever lies beyond; an empty segment is forgotten."""
    if not header.segments or header.segments[-1].end is not None:
        return header
    *earlier, last = header.segments
    closed = (replace(last, end=end),) if end > last.start else ()
    return replace(header, segments=(*earlier, *closed))


def trimmed_to(header: SliceHeader, position: int, *, released: int, start: int) -> SliceHeader:
    """Nothing below `position` is needed; `start` is where the log goes on if nothing is left."""
    segments = tuple(s for s in header.segments if s.end is None or s.end > position)
    floor = segments[0].start if segments else start
    trimmed = max(header.trimmed, position, floor)
    return replace(header, trimmed=trimmed, released=released, segments=segments)


def started(
    header: SliceHeader,
    *,
    epoch: int,
    start: int,
    window_length: int,
    scan_length: int,
    key: bytes = b"",
) -> SliceHeader:
    """A new epoch begins at `start`; `key` is that of its records, as stored. Raises StorageError
    when the table of segments is full.
    """
    kept = trimmed_to(header, header.trimmed, released=start, start=start)
    begun = replace(
        kept,
        node_epoch=epoch,
        is_clean=False,
        window_length=window_length,
        scan_length=scan_length,
        segments=(*kept.segments, EpochRange(epoch=epoch, start=start, end=None, key=key)),
    )
    if not begun.fits:
        raise StorageError(
            f"the WAL holds data of {len(kept.segments)} starts of node {header.node_id}, and none "
            "of it could be uploaded: make the object store reachable"
        )
    return begun
