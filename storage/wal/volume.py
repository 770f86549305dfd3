"""A volume: a device that carries slices, one per node of a host, each a log of its own.

The volume header holds the owner of the device and the places of the slices. A process that changes
it holds the lock on everything below the first slice. One write at a time goes to the older of two
slots, so a crash leaves the table before or after the change. This module never formats a device:
that is for `volume_file` and `disk`.

When a volume has grown, its slices share the new space. A slice cannot grow beyond its successor,
so the slices move apart, the last one first, each by one write of the volume's table, whose older
slot stays valid until then. Only empty slices without a holder move, since every position changes
with a slice's place and length. So the first node of a host that starts after a clean stop of all
nodes does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from lakehead.storage.errors import (
    SettingsError,
    StorageError,
    WalCorrupted,
    WalHolderEnding,
    WrongLog,
)
from lakehead.storage.event_logger import event_logger
from lakehead.storage.wal.block import BlockWal
from lakehead.storage.wal.block_format import (
    HOLDER_OFFSET,
    RING_OFFSET,
    SECTOR,
    SLICES_MAX,
    SLICES_START,
    SliceEntry,
    SliceHeader,
    VolumeHeader,
    newest,
    sector_down,
)
from lakehead.storage.wal.block_settings import BlockWalSettings
from lakehead.storage.wal.device import WalDevice, aligned_buffer
from lakehead.storage.wal.holder import (
    NO_HOLDER,
    Holder,
    HostProcesses,
    Processes,
    is_ending,
    is_running,
)
from lakehead.storage.wal.protocol import Claim
from lakehead.storage.wal.reservation import Reservation, hold, reservation_key, take
from lakehead.storage.wal.slice_store import SliceStore

SIZE_MIN = 1024 * 1024
SLICE_SIZE_MIN = SIZE_MIN - SLICES_START
_HEADER_LOCK_TIMEOUT_S = 10.0
_RECOVERY_TIMEOUT_S = 10.0
_POLL_S = 0.01
_log = event_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The division of a volume: a new slice gets the `slices`-th part of it.

    With `grow`, a device that has become larger is used to its end.
    """

    slices: int = 1
    grow: bool = False

    def share(self, capacity: int) -> int:
        """Return the length of a slice, in bytes."""
        return sector_down((capacity - SLICES_START) // self.slices)


def volume_image(
    *,
    volume_id: bytes,
    capacity: int,
    node_id: int,
    host_id: str,
    cluster_id: str,
    slices: int = 1,
) -> list[tuple[int, bytes]]:
    """Return what an empty volume with one slice holds: (offset, sector), volume headers last."""
    entry = SliceEntry(
        node_id=node_id,
        start=SLICES_START,
        length=Division(slices=slices).share(capacity),
    )
    image = empty_slice(entry, volume_id)
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


def empty_slice(entry: SliceEntry, volume_id: bytes) -> list[tuple[int, bytes]]:
    """Return the header slots of a slice that no epoch was started in: (offset, sector)."""
    return [
        (
            entry.start + generation * SECTOR,
            SliceHeader(
                generation=generation,
                volume_id=volume_id,
                node_id=entry.node_id,
                node_epoch=-1,
                is_clean=True,
                trimmed=0,
                released=0,
                window_length=0,
                scan_length=0,
                segments=(),
            ).encode(),
        )
        for generation in (0, 1)
    ]


async def format_device(device: WalDevice, image: list[tuple[int, bytes]]) -> None:
    """Write an image to a device, sector after sector. Whatever was there is lost."""
    for offset, sector in image:
        buffer = aligned_buffer(SECTOR)
        buffer[:] = sector
        await device.write(offset, buffer)


class Volume:
    """The header of a volume, read from its device; `header_lock` is held while it is changed."""

    def __init__(self, device: WalDevice, header: VolumeHeader) -> None:
        self.header = header
        self._device = device

    @property
    def name(self) -> str:
        """The name in messages: the device's path."""
        return self._device.name

    @classmethod
    async def read(cls, device: WalDevice, *, cluster_id: str = "") -> Volume:
        """Read the newest header.

        Raises SettingsError (no volume, or another cluster's), WalCorrupted (the device is smaller
        than the volume), UnsupportedFormat.
        """
        header = newest(await device.read(0, 2 * SECTOR), VolumeHeader.decode)
        if header is None:
            raise SettingsError(
                f"{device.name} is not a Lakehead WAL and is left alone: "
                "name another path for the WAL"
            )
        if header.capacity > device.capacity:
            raise WalCorrupted(
                f"{device.name} has {device.capacity} bytes, {header.capacity} when it was made: "
                "a volume cannot shrink"
            )
        if cluster_id and header.cluster_id and cluster_id != header.cluster_id:
            raise SettingsError(
                f"{device.name} is the WAL of cluster {header.cluster_id}, not of {cluster_id}: "
                "name another path for the WAL"
            )
        return cls(device, header)

    async def write(self, image: list[tuple[int, bytes]]) -> None:
        """Write sectors: of what the table does not name yet. Raises what the device raises."""
        await format_device(self._device, image)

    def entry_of(self, node_id: int) -> SliceEntry | None:
        """Return where the slice of a node lies, None if it has none."""
        return next((s for s in self.header.slices if s.node_id == node_id), None)

    async def change(self, change: Callable[[VolumeHeader], VolumeHeader]) -> None:
        """Make `change(header)` the durable header. Raises what the device raises.

        It goes to both slots, one after the other, so that the loss of one slot later does not
        bring back a table that lacks the newest slice.
        """
        header = change(self.header)
        for generation in (self.header.generation + 1, self.header.generation + 2):
            header = replace(header, generation=generation)
            await format_device(self._device, [(generation % 2 * SECTOR, header.encode())])
        self.header = header

    async def add_slice(self, node_id: int, length: int) -> SliceEntry:
        """Give a node a slice of its own, durably; its headers come before the table names it.

        Raises SettingsError where there is no room, WalCorrupted where a slice lies already.
        """
        start = self._room_for(length)
        if start is None or len(self.header.slices) >= SLICES_MAX or length < SLICE_SIZE_MIN:
            owners = ", ".join(str(s.node_id) for s in self.header.slices)
            raise SettingsError(
                f"{self._device.name} is the WAL of node {owners}, not of node {node_id}, and has "
                f"no room for {length} more bytes: name another path for the WAL, or make it with "
                "slices=N for N nodes"
            )
        entry = SliceEntry(node_id=node_id, start=start, length=length)
        lost = newest(await self._device.read(start, HOLDER_OFFSET), SliceHeader.decode)
        if lost is not None and lost.volume_id == self.header.volume_id and lost.node_epoch >= 0:
            raise WalCorrupted(
                f"{self._device.name}: the slice of node {lost.node_id} begins at byte {start} and "
                "the volume header does not know it: both of its slots were damaged"
            )
        await format_device(self._device, empty_slice(entry, self.header.volume_id))
        await self.change(lambda h: replace(h, slices=(*h.slices, entry)))
        _log.info("wal_slice_added", device=self._device.name, node_id=node_id, size=length)
        return entry

    async def adopt_size(self) -> None:
        """Use the device to its end, if it has become larger. Existing slices stay as they are."""
        capacity = sector_down(self._device.capacity)
        if capacity > self.header.capacity:
            before = self.header.capacity
            await self.change(lambda h: replace(h, capacity=capacity))
            _log.info("wal_volume_grown", device=self._device.name, before=before, after=capacity)

    async def grow_slice(self, entry: SliceEntry, header: SliceHeader, length: int) -> SliceEntry:
        """Lengthen an empty slice towards `length`, as far as the room behind it goes.

        A ring cannot grow while it holds data, since every position would lie elsewhere. An empty
        one has no position to find again; the new length changes the seed of its checksums, so no
        old record is valid in it, and the one write of the volume header makes the switch.
        """
        behind = [s.start for s in self.header.slices if s.start > entry.start]
        end = min([*behind, self.header.capacity, entry.start + length])
        if end - entry.start <= entry.length:
            return entry
        if header.segments or not header.is_clean:
            _log.warning(
                "wal_slice_not_grown",
                device=self._device.name,
                node_id=entry.node_id,
                reason="it holds data; it grows at the first start after a clean stop",
            )
            return entry
        grown = replace(entry, length=end - entry.start)
        if not self._device.lock(grown.start, grown.length):
            raise in_use(self._device.name, None)
        await self.change(
            lambda h: replace(h, slices=tuple(grown if s == entry else s for s in h.slices))
        )
        return grown

    def _room_for(self, length: int) -> int | None:
        start = SLICES_START
        for entry in sorted(self.header.slices, key=lambda s: s.start):
            if entry.start - start >= length:
                break
            start = entry.start + entry.length
        return start if start + length <= self.header.capacity else None


@asynccontextmanager
async def header_lock(device: WalDevice) -> AsyncIterator[None]:
    """Keep other processes of this host from changing the volume header. Raises StorageError."""
    try:
        async with asyncio.timeout(_HEADER_LOCK_TIMEOUT_S):
            while not device.lock(0, SLICES_START):  # noqa: ASYNC110 - a lock sends no event
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise StorageError(
            f"{device.name}: another process has kept the volume's header locked for "
            f"{_HEADER_LOCK_TIMEOUT_S:.0f} s: look for a broker that hangs while it starts"
        ) from None
    try:
        yield
    finally:
        device.unlock(0, SLICES_START)


async def open_slice(
    device: WalDevice,
    *,
    node_id: int,
    host_id: str = "",
    cluster_id: str = "",
    division: Division | None = None,
    reservation: Reservation | None = None,
    processes: Processes | None = None,
    settings: BlockWalSettings | None = None,
    incarnation: str = "",
    claim: Claim | None = None,
    may_be_new: bool = True,
) -> BlockWal:
    """Open the WAL of a node on a volume, and lock its slice; the slice is added if there is room.
    Another node that recovers the slice is waited for, ten seconds at most.

    With a reservation, the device is held for this host first: nothing is written before. Held by
    another host, it is taken back if `claim` says so. Raises WalHolderEnding (a process that cannot
    end still has it), WrongLog (the node has no slice, and
    none that `may_be_new` is wanted), Fenced (another host was first),
    SettingsError (not ours, another cluster's, in use, held by another host), WalCorrupted,
    UnsupportedFormat, StorageError, OSError.
    """
    division = division or Division()
    processes = processes or HostProcesses()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _RECOVERY_TIMEOUT_S
    while True:
        async with header_lock(device):
            volume = await Volume.read(device, cluster_id=cluster_id)
            if reservation is not None:
                await _hold_for(host_id, node_id, volume, reservation, claim)
                volume = await Volume.read(device)  # a holder may have changed it until now
            if not may_be_new and volume.entry_of(node_id) is None:
                raise WrongLog(f"{device.name} has no slice of node {node_id}")
            if host_id and volume.header.host_id != host_id:
                await volume.change(lambda h: replace(h, host_id=host_id))
            share = division.share(volume.header.capacity)
            if division.grow:
                await volume.adopt_size()
                share = division.share(volume.header.capacity)
                await redivide(device, volume, share)
            entry = volume.entry_of(node_id) or await volume.add_slice(node_id, share)
            if device.lock(entry.start, entry.length):
                if division.grow:
                    store = await SliceStore.open(device, entry, volume.header.volume_id)
                    entry = await volume.grow_slice(entry, store.header, share)
                signature = replace(processes.current(), host_id=host_id, incarnation=incarnation)
                return await locked_slice(
                    device, volume.header, entry, signature, settings=settings
                )
            holder = await read_holder(device, volume.header, entry)
        # A node that starts again within a second of its end finds another one that recovers it.
        if not _is_held_briefly(holder) or loop.time() >= deadline:
            raise in_use(device.name, holder)
        await asyncio.sleep(_POLL_S)


async def locked_slice(
    device: WalDevice,
    volume: VolumeHeader,
    entry: SliceEntry,
    signature: Holder,
    *,
    settings: BlockWalSettings | None,
) -> BlockWal:
    """Sign a slice whose lock this process has, and return its log."""
    store = await SliceStore.open(device, entry, volume.volume_id)
    await store.hold(signature)
    return BlockWal(device, entry, store, settings=settings)


async def read_holder(device: WalDevice, volume: VolumeHeader, entry: SliceEntry) -> Holder | None:
    """Return the last holder that signed a slice; None if that cannot be read at this moment."""
    sector = await device.read(entry.start + HOLDER_OFFSET, SECTOR)
    return Holder.decode(sector, volume.volume_id)


def _is_held_briefly(holder: Holder | None) -> bool:
    """Return true if a locked slice with this signature will soon be free: a node recovers it, or
    the process with the lock has not signed it yet, or has taken its signature back.
    """
    if holder is None or holder.pid == 0 or holder.taker is not None:
        return True
    return is_running(holder.name) is False


def in_use(name: str, holder: Holder | None) -> SettingsError | WalHolderEnding:
    """Return the refusal of a slice that another process holds."""
    if holder is not None and is_ending(holder):
        return WalHolderEnding(
            f"{name} is in use by process {holder.pid}, which has been ended and waits for a "
            "device that does not respond: look at the volume and the kernel's log"
        )
    by = f"process {holder.pid}" if holder is not None and holder.pid else "another process"
    if holder is not None and holder.taker is not None:
        return WalHolderEnding(
            f"{name} is in use by {by}, by which node {holder.taker[0]} recovers the log of this "
            "node: start this one again when that is done"
        )
    return SettingsError(f"{name} is in use by {by}: stop it, or name another path for the WAL")


async def _hold_for(
    host_id: str,
    node_id: int,
    volume: Volume,
    reservation: Reservation,
    claim: Claim | None,
) -> None:
    """Hold the device for this host. A node whose log lies here has it back from its holder: a host
    that recovered its nodes, or a machine that had this host's id before.
    """
    header, name = volume.header, volume.name
    key = reservation_key(header.cluster_id, host_id)
    if await hold(reservation, key):
        return
    holder = header.host_id or "unknown"
    if claim is None or volume.entry_of(node_id) is None:
        raise SettingsError(
            f"{name} is held by another host ({holder}), which alone may "
            "write to it: stop the brokers there, or take its WAL over"
        )
    if living := [s.node_id for s in header.slices if s.node_id in claim.live_nodes]:
        raise SettingsError(
            f"{name} is held by another host ({holder}) and carries the WAL of node {living[0]}, "
            "which lives there: stop that one, or give this node a volume of its own"
        )
    hosts = dict.fromkeys((header.host_id, *claim.other_hosts, host_id))
    victims = [reservation_key(header.cluster_id, host) for host in hosts]
    await take(reservation, key, victims, name=name)
    _log.warning("wal_volume_taken_back", device=name, before=holder, after=host_id)


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
    """Return true if slices become longer, none shorter, and each moves to where no other one is
    yet: to behind its own headers, or not at all.
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
        image.append((new.start + HOLDER_OFFSET, NO_HOLDER.encode(header.volume_id)))
        await volume.write(image)
    await volume.change(
        lambda h: replace(h, slices=tuple(new if s == old else s for s in h.slices))
    )
