"""Taking over the slice of another node: fence first, read only then.

Between hosts a reservation fences: the taker preempts the old owner's, and when that returned the
device refuses its writes. Inside a host the slice's lock does: the holder is ended, and the kernel
frees the lock when its last write under way has ended. What is read after that is all that was ever
acknowledged. A taker that holds the slice is let be while it lives: nodes that recover the same one
must not end each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from storage.errors import SettingsError, StorageError
from storage.wal.block import BlockWal
from storage.wal.block_format import SliceEntry, VolumeHeader
from storage.wal.block_settings import BlockWalSettings
from storage.wal.device import WalDevice
from storage.wal.holder import HostProcesses, Processes
from storage.wal.reservation import Reservation, reservation_key, take
from storage.wal.volume import Volume, header_lock, locked_slice, read_holder

IsLive = Callable[[int, int], bool]
"""Whether a node lives under an epoch, as far as is known."""

_POLL_S = 0.005
_log = structlog.get_logger(__name__)


async def take_slice(
    device: WalDevice,
    *,
    node_id: int,
    host_id: str,
    cluster_id: str,
    reservation: Reservation | None = None,
    other_hosts: Sequence[str] = (),
    processes: Processes | None = None,
    settings: BlockWalSettings | None = None,
    timeout_s: float = 10.0,
    taker: tuple[int, int] | None = None,
    is_live: IsLive | None = None,
) -> BlockWal:
    """Fence whoever holds the slice of `node_id` and return its log, to be recovered and trimmed.

    The owner that the volume header names is preempted; `other_hosts` are further ones that may
    hold the device, such as a taker that died between its preemption and its signature. A process
    of this host that holds the slice is killed, unless it signed as a taker, with node id and
    epoch, of which `is_live` is true. `taker` is what this process signs with.

    Raises SettingsError (no such volume or slice), Fenced (another host was first), StorageError
    (the holder cannot be ended from here or in `timeout_s` seconds, or is a live taker),
    WalCorrupted, OSError.
    """
    processes = processes or HostProcesses()
    volume = await Volume.read(device, cluster_id=cluster_id)
    if reservation is not None:
        volume = await _fenced(device, volume, reservation, host_id, other_hosts)
    entry = volume.entry_of(node_id)
    if entry is None:
        raise SettingsError(f"{device.name} has no slice of node {node_id}")
    try:
        async with asyncio.timeout(timeout_s):
            await _wait_locked(device, volume.header, entry, processes, is_live or _nobody)
    except TimeoutError:
        raise StorageError(
            f"{device.name}: the slice of node {node_id} is still locked after {timeout_s:.0f} s, "
            "by a process that has not signed it or cannot end: look for it with lsof"
        ) from None
    return await locked_slice(
        device,
        volume.header,
        entry,
        processes=processes,
        host_id=host_id,
        settings=settings,
        taker=taker,
    )


async def _fenced(
    device: WalDevice,
    volume: Volume,
    reservation: Reservation,
    host_id: str,
    other_hosts: Sequence[str],
) -> Volume:
    """Hold the device for this host, then sign the volume header as its owner."""
    before, cluster_id = volume.header.host_id, volume.header.cluster_id
    async with header_lock(device):
        await take(
            reservation,
            reservation_key(cluster_id, host_id),
            [reservation_key(cluster_id, host) for host in (before, *other_hosts)],
            name=device.name,
        )
        volume = await Volume.read(device)  # the old owner may have changed it until now
        if volume.header.host_id != host_id:
            await volume.change(lambda h: replace(h, host_id=host_id))
            _log.info("wal_volume_taken", device=device.name, before=before, after=host_id)
        return volume


async def _wait_locked(
    device: WalDevice,
    volume: VolumeHeader,
    entry: SliceEntry,
    processes: Processes,
    is_live: IsLive,
) -> None:
    ended = None
    while not device.lock(entry.start, entry.length):
        holder = await read_holder(device, volume, entry)
        if holder is not None and holder.taker is not None and is_live(*holder.taker):
            raise StorageError(
                f"{device.name}: node {holder.taker[0]} recovers the slice of node {entry.node_id}"
            )
        if holder is not None and processes.kill(holder) and holder != ended:
            ended = holder
            _log.warning(
                "wal_holder_killed", device=device.name, node_id=entry.node_id, pid=holder.pid
            )
        await asyncio.sleep(_POLL_S)


def _nobody(_node_id: int, _epoch: int) -> bool:
    return False
