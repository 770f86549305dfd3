"""Sharing out a volume that has become larger among the slices that it has.

A slice cannot grow beyond the one behind it, so the slices move apart: the last one first, each by
one write of the volume's table, whose older slot stays good until then. Only empty slices move,
since in another place or length every position lies elsewhere, and only those that nobody has. So
the first node of a host that starts after a clean stop of all does it for them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from lakehead.storage.wal.block_format import (
    HOLDER_OFFSET,
    RING_OFFSET,
    SECTOR,
    SLICES_START,
    SliceEntry,
    SliceHeader,
)
from lakehead.storage.wal.device import WalDevice
from lakehead.storage.wal.holder import NOBODY
from lakehead.storage.wal.slice_store import SliceStore

if TYPE_CHECKING:
    from lakehead.storage.wal.volume import Volume

_log = structlog.get_logger(__name__)


async def redivide(device: WalDevice, volume: Volume, share: int) -> None:
    """Give every slice `share` bytes, if all are empty and free and there is room; else change
    nothing. The caller holds the lock of the volume's header. Raises what the device raises,
    WalCorrupted.
    """
    before = sorted(volume.header.slices, key=lambda entry: entry.start)
    after = [
        replace(entry, start=SLICES_START + index * share, length=share)
        for index, entry in enumerate(before)
    ]
    if not _is_growth(before, after, volume.header.capacity):
        return
    held = []
    try:
        for entry in before:
            if not device.lock(entry.start, entry.length):
                return
            held.append(entry)
        stores = [await SliceStore.open(device, e, volume.header.volume_id) for e in before]
        if any(store.header.segments or not store.header.is_clean for store in stores):
            return
        for old, new, store in reversed(list(zip(before, after, stores, strict=True))):
            await _move(volume, old, new, store.header)
        _log.info("wal_slices_grown", device=device.name, slices=len(after), size=share)
    finally:
        for entry in held:
            device.unlock(entry.start, entry.length)


def _is_growth(before: list[SliceEntry], after: list[SliceEntry], capacity: int) -> bool:
    """Whether slices become longer, none shorter, and each moves to where no other one is yet: to
    behind its own headers, or not at all.
    """
    if after[-1].start + after[-1].length > capacity:
        return False
    pairs = list(zip(before, after, strict=True))
    moves = [new.start - old.start for old, new in pairs]
    return (
        any(new.length > old.length for old, new in pairs)
        and all(new.length >= old.length for old, new in pairs)
        and all(move == 0 or move >= RING_OFFSET for move in moves)
    )


async def _move(volume: Volume, old: SliceEntry, new: SliceEntry, header: SliceHeader) -> None:
    """Write a slice's headers where it is to be, then say so in the table."""
    if new.start != old.start:
        first = header.generation + 1
        image = [
            (new.start + generation % 2 * SECTOR, replace(header, generation=generation).encode())
            for generation in (first, first + 1)
        ]
        image.append((new.start + HOLDER_OFFSET, NOBODY.encode(header.volume_id)))
        await volume.write(image)
    await volume.change(
        lambda h: replace(h, slices=tuple(new if s == old else s for s in h.slices))
    )
