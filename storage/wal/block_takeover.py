"""Taking over the slice of another node: fence first, read only then.

Between hosts a reservation fences: the taker preempts the old owner's, and when that returned the
device refuses its writes. Inside a host the slice's lock does: the holder is ended, and the kernel
frees the lock when its last write under way has ended. A read after that finds all that was ever
acknowledged. Not every holder is to be ended: nodes that recover the same one must not end each
other, nor a node that has been started again. The caller, which knows the metadata, judges.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum

from lakehead.storage.errors import SettingsError, StorageError
from lakehead.storage.event_logger import event_logger
from lakehead.storage.wal.block import BlockWal
from lakehead.storage.wal.block_format import SliceEntry, VolumeHeader
from lakehead.storage.wal.block_settings import BlockWalSettings
from lakehead.storage.wal.device import WalDevice
from lakehead.storage.wal.holder import Holder, HostProcesses, Processes
from lakehead.storage.wal.reservation import Reservation, reservation_key, take
from lakehead.storage.wal.volume import Volume, header_lock, locked_slice, read_holder


class Verdict(Enum):
    """The decision on a process that holds a slice which is to be recovered."""

    END = "end"
    WAIT = "wait"
    LEAVE = "leave"


Judge = Callable[[Holder, float], Verdict]
"""Judges a holder, and the seconds that it has been waited for."""

_POLL_S = 0.005
_log = event_logger(__name__)


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
    judge: Judge | None = None,
) -> BlockWal:
    """Fence the holder of the slice of `node_id` and return its log, to be recovered and trimmed.

    The owner that the volume header names is preempted; `other_hosts` are further ones that may
    hold the device, such as a taker that died between its preemption and its signature. A process
    of this host that holds the slice is killed, unless `judge` says otherwise. `taker` is what this
    process signs with: its node id and epoch.

    Raises SettingsError (no such volume or slice), Fenced (another host was first), StorageError
    (the holder cannot be ended from here or in `timeout_s` seconds, or is to be left alone),
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
            await _wait_locked(device, volume.header, entry, processes, judge or _end)
    except TimeoutError:
        raise StorageError(
            f"{device.name}: the slice of node {node_id} is still locked after {timeout_s:.0f} s, "
            "by a process that has not signed it or cannot end: look for it with lsof"
        ) from None
    signature = replace(processes.current(), host_id=host_id, taker=taker)
    return await locked_slice(device, volume.header, entry, signature, settings=settings)


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
    judge: Judge,
) -> None:
    ended = None
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not device.lock(entry.start, entry.length):
        holder = await read_holder(device, volume, entry)
        is_to_end = holder is not None and _is_to_end(
            device, entry, holder, judge(holder, loop.time() - began)
        )
        if holder is not None and is_to_end and processes.kill(holder) and holder != ended:
            ended = holder
            _log.warning(
                "wal_holder_killed", device=device.name, node_id=entry.node_id, pid=holder.pid
            )
        await asyncio.sleep(_POLL_S)


def _is_to_end(device: WalDevice, entry: SliceEntry, holder: Holder, verdict: Verdict) -> bool:
    if verdict is Verdict.LEAVE:
        holder_text = (
            f"node {holder.taker[0]}, which recovers it" if holder.taker else "its node again"
        )
        raise StorageError(
            f"{device.name}: the slice of node {entry.node_id} is held by {holder_text}"
        )
    return verdict is Verdict.END


def _end(_holder: Holder, _waited_s: float) -> Verdict:
    return Verdict.END
