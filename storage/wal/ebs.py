"""A block WAL on an EBS volume, addressed by volume instead of by device name.

`block:ebs:vol-0123?...`, `block:ebs:SLOT?...` or `block:ebs:?...`: a volume by its id, by the tag
`lakehead:wal`, or by that of the instance's own tag `lakehead:slot`. A node publishes the id with
`zone` and `shared`, so that another node knows whether it can attach the volume; a node that has it
attached takes it over without a request to EC2.

After a takeover, a volume that only one instance can have is detached, so that its own instance can
attach it again; a shared volume stays. The node that recovered the last slice detaches it, after
closing its own log of that slice. If another process still has a slice open, the slice is locked,
and that process detaches the volume later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from lakehead.storage.aws.volumes import Volumes, this_instance
from lakehead.storage.errors import SettingsError
from lakehead.storage.wal.block_address import BlockAddress
from lakehead.storage.wal.block_settings import BlockWalSettings
from lakehead.storage.wal.deadline import Deadline, DeadlineDevice
from lakehead.storage.wal.device import FileDevice, IoThreads
from lakehead.storage.wal.volume import Volume, header_lock

PREFIX = "ebs:"
FOUND = ("zone", "shared")
"""The options that a node fills in itself, for those that read its address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    volume_id: str
    zone: str
    is_shared: bool


def is_ebs(place: str) -> bool:
    """Return true if the place of a block WAL is such a volume."""
    return place.startswith(PREFIX)


async def located(
    uri: str, place: str, options: dict[str, str], volumes: Volumes | None = None
) -> str:
    """Return a node's own address with the volume's id, its zone, and whether hosts may share it.

    EC2 gives all three: one that is wrong would leave the volume without a fence. Raises
    SettingsError, StorageError.
    """
    if given := [name for name in FOUND if name in options]:
        raise SettingsError(f"{uri}: leave out {', '.join(given)}: EC2 provides that")
    found = await _request(place, volumes or this_instance())
    known = {"zone": found.zone, "shared": "yes" if found.is_shared else "no"}
    return f"block:{PREFIX}{found.volume_id}?{urlencode(options | known)}"


async def attached(
    uri: str,
    place: str,
    options: dict[str, str],
    volumes: Volumes | None = None,
    *,
    is_own: bool,
) -> BlockAddress:
    """Return the address of the volume's disk, which is attached to this machine from here on. One
    that `is_own` is waited for while its taker gives it back.

    A volume that hosts share is fenced by its reservation. One that EC2 gives to a single instance
    needs none: while it is here, it is nowhere else. Raises SettingsError, StorageError.
    """
    left = {name: value for name, value in options.items() if name not in FOUND}
    address = BlockAddress.parse(uri, place, left)
    volumes = volumes or this_instance()
    found = _given(place, options) or await _request(place, volumes)
    path = await volumes.here(found.volume_id)
    path = path or await volumes.attach(found.volume_id, is_own=is_own)
    return replace(address, path=path, is_exclusive=not found.is_shared)


def may_have(own: str, other: str) -> bool:
    """Return true if a node with the WAL `own` may have the volume of `other` attached: both are of
    this kind, and in one zone.
    """
    zones = [_zone(own), _zone(other)]
    return bool(zones[0]) and zones[0] == zones[1]


def exclusive_volume(wal: str) -> str:
    """Return the id of the volume in a node's public address if one instance can have it; empty for
    any other WAL.
    """
    place, _, query = wal.removeprefix("block:").partition("?")
    found = _given(place, dict(parse_qsl(query))) if wal.startswith(f"block:{PREFIX}") else None
    return found.volume_id if found and not found.is_shared else ""


async def _request(place: str, volumes: Volumes) -> _Found:
    volume = await volumes.find(place.removeprefix(PREFIX))
    return _Found(volume_id=volume.volume_id, zone=volume.zone, is_shared=volume.is_shared)


def _given(place: str, options: dict[str, str]) -> _Found | None:
    name = place.removeprefix(PREFIX)
    if not name.startswith("vol-") or options.get("shared") not in {"yes", "no"}:
        return None
    return _Found(
        volume_id=name, zone=options.get("zone", ""), is_shared=options["shared"] == "yes"
    )


def _zone(wal: str) -> str:
    place, _, query = wal.partition("?")
    if not place.startswith(f"block:{PREFIX}"):
        return ""
    return dict(parse_qsl(query)).get("zone", "")


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
