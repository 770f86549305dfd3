"""The EBS volumes of an instance: found by their tags, attached, and mapped to disks by serial
number.

A volume is known by the tags `lakehead:bucket`, `lakehead:cluster` and `lakehead:wal`, the last the
name of the slot whose log it carries. Names of clusters may meet in an account, those of buckets
may not. Nothing is ever detached from another instance that may run. One that does
not, by EC2's own word, loses a volume that only one instance can have. An instance gives back such
a volume that it took over: then it is free for the slot's own one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import chain, repeat
from pathlib import Path
from typing import Protocol, TypeVar
from zlib import crc32

from lakehead.storage.aws.client import AwsRefused, AwsUnanswered
from lakehead.storage.aws.ec2 import Boto3Ec2, EbsVolume, Ec2
from lakehead.storage.aws.instance import Instance, instance_metadata
from lakehead.storage.errors import SettingsError, StorageError
from lakehead.storage.event_logger import event_logger

_LINK = "nvme-Amazon_Elastic_Block_Store_"


class Devices(Protocol):
    """The disks at which attached volumes appear."""

    def path(self, volume_id: str) -> Path:
        """Return where the disk of a volume is, or would be."""

    async def is_here(self, volume_id: str) -> bool:
        """Return true if it is there. Raises SettingsError when what is there is another disk."""


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
        """See Devices. Any process may have made the link, so the disk's own serial is read."""
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
                f"{volume_id}: it is not written to; check the origin of the link"
            )
        return True


def _serial(volume_id: str) -> str:
    return volume_id.replace("-", "")


T = TypeVar("T")

BUCKET_TAG, CLUSTER_TAG = "lakehead:bucket", "lakehead:cluster"
CLUSTER_TAGS = (BUCKET_TAG, CLUSTER_TAG)
"""The tags that mark the things of one cluster, its instances too."""
WAL_TAG, SLOT_TAG = "lakehead:wal", "lakehead:slot"
DEVICE_TAG = "lakehead:device"
SHARED_MAX = 16
"""Instances that may have one volume at once."""
ATTACH_TIMEOUT_S = 60.0
_PAUSES_S = (0.25, 0.5, 1.0, 2.0)
"""Between two looks; the last one goes on."""
_DEVICE_NAMES = tuple(f"/dev/sd{letter}" for letter in "fghijklmnop") + tuple(
    f"/dev/xvd{first}{second}" for first in "bc" for second in "abcdefghijklmnopqrstuvwxyz"
)
_VOLUME_ID = re.compile(r"vol-[0-9a-f]{8,17}")
_PASSING = {"VolumeInUse", "IncorrectState", "InvalidParameterValue", "IncorrectInstanceState"}
"""Refusals that another's call under way explains: the state is read again."""
_NOT_RUNNING = {"stopped", "terminated"}
_GONE = "unknown to EC2"
_ENDING = {"stopping", "shutting-down", _GONE}
"""Waited for. Of an instance that EC2 does not know, the attachment ends by itself, or EC2 errs."""
_log = event_logger("storage.ebs")


class Volumes(Protocol):
    """The EBS volumes that this machine has or may have."""

    async def find(self, name: str) -> EbsVolume:
        """Return the volume of an id (`vol-...`), of a slot, or (empty) of this machine's slot.

        Raises SettingsError, StorageError.
        """

    async def here(self, volume_id: str) -> Path | None:
        """Return the disk of a volume that is attached already, without asking EC2."""

    async def attach(self, volume_id: str, *, is_own: bool = False) -> Path:
        """Return the disk of a volume; it is attached if it is not. One that `is_own` is waited for
        while another instance that took it over may be about to give it back. Raises SettingsError
        (it cannot be had here), StorageError (not now).
        """

    async def give_back(self, volume_id: str) -> None:
        """Detach from this machine a volume that one instance can have and that no process here
        uses; return when EC2 reports it as detached. Raises SettingsError, StorageError.
        """


class InstanceVolumes:
    """Those of an instance on EC2. `ec2` makes the calls of a region; both it and `metadata` are
    called at the first need only.
    """

    def __init__(
        self,
        metadata: Callable[[], Awaitable[Instance]],
        ec2: Callable[[str], Ec2],
        devices: Devices,
        *,
        timeout_s: float = ATTACH_TIMEOUT_S,
    ) -> None:
        self._metadata = metadata
        self._make_ec2 = ec2
        self._devices = devices
        self._timeout_s = timeout_s
        self._known: tuple[Instance, Ec2] | None = None

    async def find(self, name: str) -> EbsVolume:
        """See Volumes. Repeats the request while EC2 does not respond."""
        reason, pauses_s = "no request to EC2 yet", _pauses_s()
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    try:
                        return await self._find(name)
                    except AwsUnanswered as error:
                        reason = str(error)
                    await asyncio.sleep(next(pauses_s))
        except TimeoutError:
            raise StorageError(
                f"the volume of the WAL was not found within {self._timeout_s:.0f} s: {reason}"
            ) from None

    async def _find(self, name: str) -> EbsVolume:
        instance, ec2 = await self._opened()
        if name.startswith("vol-"):
            if not _VOLUME_ID.fullmatch(name):
                raise SettingsError(f"{name} is not the id of an EBS volume")
            found, what = await self._response(lambda: ec2.volumes(volume_id=name)), name
        else:
            own = await self._tags()
            slot = name or _tag(instance, own, SLOT_TAG)
            tags = {name: _tag(instance, own, name) for name in CLUSTER_TAGS} | {WAL_TAG: slot}
            found = await self._response(lambda: ec2.volumes(tags=tags))
            what = " ".join(f"{tag}={value}" for tag, value in tags.items())
        found = [volume for volume in found if volume.state not in {"deleting", "deleted"}]
        if len(found) != 1:
            ids = ", ".join(volume.volume_id for volume in found) or "none"
            raise SettingsError(
                f"one EBS volume in {instance.region} has to be {what}, but these exist: {ids}"
            )
        _check_zone(found[0], instance)
        return found[0]

    async def here(self, volume_id: str) -> Path | None:
        """See Volumes."""
        is_here = await self._devices.is_here(volume_id)
        return self._devices.path(volume_id) if is_here else None

    async def attach(self, volume_id: str, *, is_own: bool = False) -> Path:
        """See Volumes."""

        async def step(volume: EbsVolume) -> str:
            if reason := await self._next(volume, is_own):
                return reason
            is_here = await self._devices.is_here(volume_id)
            return "" if is_here else f"its disk has not appeared as {path}"

        path = self._devices.path(volume_id)
        await self._repeat(step, volume_id, "attached")
        return path

    async def give_back(self, volume_id: str) -> None:
        """See Volumes."""
        await self._repeat(self._leave, volume_id, "detached")

    async def _repeat(
        self, step: Callable[[EbsVolume], Awaitable[str]], volume_id: str, done: str
    ) -> None:
        """Look at a volume and do what is next, until no reason is left to wait."""
        reason, pauses_s = "no request to EC2 yet", _pauses_s()
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    try:
                        reason = await step(await self._find(volume_id))
                    except AwsUnanswered as error:
                        reason = str(error)
                    except AwsRefused as error:
                        if error.code not in _PASSING:
                            raise SettingsError(
                                f"{volume_id} cannot be {done} here: {error}"
                            ) from error
                        reason = str(error)
                    if not reason:
                        return
                    await asyncio.sleep(next(pauses_s))
        except TimeoutError:
            raise StorageError(
                f"{volume_id} was not {done} within {self._timeout_s:.0f} s: {reason}"
            ) from None

    async def _leave(self, volume: EbsVolume) -> str:
        """Detach it from this machine. Another state than attached is on its way already."""
        instance, ec2 = await self._opened()
        state = {a.instance_id: a.state for a in volume.attachments}.get(instance.instance_id, "")
        if volume.is_shared or not state:
            return ""
        if state == "attached":
            _log.info("ebs_given_back", volume_id=volume.volume_id)
            await ec2.detach(volume.volume_id, instance.instance_id, by_force=False)
        return f"EC2 says that it is {state}"

    async def _next(self, volume: EbsVolume, is_own: bool) -> str:
        instance, ec2 = await self._opened()
        states = {a.instance_id: a.state for a in volume.attachments}
        own = states.pop(instance.instance_id, "")
        if own == "attached":
            return ""
        if own:
            return f"EC2 says that it is {own}"
        if volume.state not in {"available", "in-use"}:
            if volume.state == "creating":
                return "EC2 is making it"
            raise SettingsError(f"{volume.volume_id} is {volume.state}: it cannot be attached")
        if volume.is_shared and len(states) >= SHARED_MAX:
            raise SettingsError(
                f"{volume.volume_id} is attached to {len(states)} instances, the most there may be"
            )
        if states and not volume.is_shared:
            return await self._freed(volume, next(iter(states.items())), is_own)
        known = await ec2.instance(instance.instance_id)
        name = _free_name(volume, known.device_names if known else frozenset())
        _log.info("ebs_attaching", volume_id=volume.volume_id, instance_id=instance.instance_id)
        await ec2.attach(volume.volume_id, instance.instance_id, name)
        return "EC2 is attaching it"

    async def _freed(self, volume: EbsVolume, holder: tuple[str, str], is_own: bool) -> str:
        """Take a volume that one instance can have from one that does not run."""
        _, ec2 = await self._opened()
        instance_id, attachment = holder
        known = await ec2.instance(instance_id)
        state = known.state if known else _GONE
        if state in _ENDING:
            return f"{instance_id}, which has it, is {state}"
        if state not in _NOT_RUNNING:
            why = (
                f"{volume.volume_id} is attached to {instance_id}, which is {state} and may write "
                "to it: it is not taken; stop that instance, or detach the volume there"
            )
            if is_own:
                return f"{why}, unless it is giving it back"
            raise StorageError(why)
        if attachment != "detaching":
            _log.warning(
                "ebs_detaching", volume_id=volume.volume_id, instance_id=instance_id, state=state
            )
            await ec2.detach(volume.volume_id, instance_id, by_force=True)
        return f"it is detached from {instance_id}, which is {state}"

    async def _opened(self) -> tuple[Instance, Ec2]:
        if self._known is None:
            instance = await self._metadata()
            self._known = instance, self._make_ec2(instance.region)
        return self._known

    async def _tags(self) -> Mapping[str, str]:
        """Return the instance's own tags, from the metadata service or from EC2."""
        instance, ec2 = await self._opened()
        if instance.tags is not None:
            return instance.tags
        known = await self._response(lambda: ec2.instance(instance.instance_id))
        return known.tags if known else {}

    async def _response(self, call: Callable[[], Awaitable[T]]) -> T:
        """Send a request that changes nothing; a refusal is the policy's, and final."""
        try:
            return await call()
        except AwsRefused as error:
            raise SettingsError(f"no permission to list the volumes on EC2: {error}") from error


def this_instance() -> InstanceVolumes:
    """Return the volumes of the machine that this runs on. Makes no request yet."""
    return InstanceVolumes(instance_metadata().instance, Boto3Ec2, NvmeDevices())


def _pauses_s() -> Iterator[float]:
    return chain(_PAUSES_S, repeat(_PAUSES_S[-1]))


def _check_zone(volume: EbsVolume, instance: Instance) -> None:
    if volume.zone != instance.zone:
        raise SettingsError(
            f"{volume.volume_id} is in {volume.zone} and {instance.instance_id} in "
            f"{instance.zone}: a volume stays in its zone; start the node there"
        )


def _tag(instance: Instance, tags: Mapping[str, str], name: str) -> str:
    if not tags.get(name):
        raise SettingsError(
            f"{instance.instance_id} has no tag {name}: give it one, or name the volume by its id"
        )
    return tags[name]


def _free_name(volume: EbsVolume, taken: frozenset[str]) -> str:
    """Return a device name: that of the volume's tag, under which others would attach it too
    (Terraform takes such an attachment for its own), or one at which few volumes begin.
    """
    given = volume.tags.get(DEVICE_TAG, "")
    first = crc32(volume.volume_id.encode()) % len(_DEVICE_NAMES)
    if given in _DEVICE_NAMES:
        first = _DEVICE_NAMES.index(given)
    for name in _DEVICE_NAMES[first:] + _DEVICE_NAMES[:first]:
        if name not in taken:
            return name
    raise SettingsError("this instance has no device name left for another volume")
