"""Giving an EBS volume back after a takeover, so that its own instance can have it again.

Only a volume that one instance can have needs it; one that is shared stays where it is. Whoever
recovered the last slice of it calls this, with its own log of it closed. A slice that somebody here
has open yet is locked, and its holder calls this later; so the last one detaches.
"""

from __future__ import annotations

from pathlib import Path

from lakehead.storage.aws.volumes import Volumes, this_instance
from lakehead.storage.wal.block_settings import BlockWalSettings
from lakehead.storage.wal.deadline import Deadline, DeadlineDevice
from lakehead.storage.wal.device import FileDevice, IoThreads
from lakehead.storage.wal.ebs_address import exclusive_volume
from lakehead.storage.wal.volume import Volume, header_lock

_THREADS = 2


async def hand_back(wal: str, *, cluster_id: str, volumes: Volumes | None = None) -> bool:
    """Detach the volume of a node's public address `wal` from this machine, if it is here, one
    instance can have it and no process of this machine holds a slice of it; whether it was.

    Raises SettingsError, StorageError, OSError.
    """
    volume_id = exclusive_volume(wal)
    if not volume_id:
        return False
    volumes = volumes or this_instance()
    path = await volumes.here(volume_id)
    if path is None:
        return False
    if not await _is_unused(path, cluster_id):
        return False
    await volumes.give_back(volume_id)
    return True


async def _is_unused(path: Path, cluster_id: str) -> bool:
    threads = IoThreads(_THREADS)
    deadline = Deadline(str(path), BlockWalSettings().device_timeout_s)
    device: DeadlineDevice | None = None
    try:
        opening = threads.run(lambda: FileDevice.open(path, threads))
        deadline.watch(opening, "opening it")
        device = DeadlineDevice(await opening, deadline)
        async with header_lock(device):
            volume = await Volume.read(device, cluster_id=cluster_id)
            return all(device.lock(entry.start, entry.length) for entry in volume.header.slices)
    finally:
        if device is not None:
            await device.close()
        else:  # it could not be opened: threads that are stuck in that end by themselves
            threads.end(lambda: None)
