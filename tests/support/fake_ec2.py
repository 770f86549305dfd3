"""An EC2 of volumes and instances, by AWS's limits: one zone, 16 attachments, one or many holders.

Attaching and detaching take time (of the loop). `trouble` is asked before and after each call, and
may raise: before, nothing has happened; after, the answer is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from lakehead.storage.aws.client import AwsRefused
from lakehead.storage.aws.ec2 import Attachment, EbsVolume, Ec2Instance

T = TypeVar("T")
Trouble = Callable[[str, bool], None]


@dataclass
class FakeEc2:
    zone_of: dict[str, str] = field(default_factory=dict)
    state_of: dict[str, str] = field(default_factory=dict)
    tags_of: dict[str, dict[str, str]] = field(default_factory=dict)
    table: dict[str, EbsVolume] = field(default_factory=dict)
    names: dict[tuple[str, str], str] = field(default_factory=dict)
    """Device names by (instance, volume)."""
    latency_s: float = 3.0
    trouble: Trouble = lambda call, is_after: None
    calls: list[str] = field(default_factory=list)

    def add_instance(self, instance_id: str, zone: str = "z-1a") -> None:
        self.zone_of[instance_id] = zone
        self.state_of[instance_id] = "running"

    def add_volume(
        self, volume_id: str, *, is_shared: bool, slot: str = "a-0", bucket: str = "b"
    ) -> None:
        self.table[volume_id] = EbsVolume(
            volume_id=volume_id,
            zone="z-1a",
            state="available",
            is_shared=is_shared,
            tags={"lakehead:bucket": bucket, "lakehead:cluster": "c", "lakehead:wal": slot},
        )

    def holders(self, volume_id: str) -> list[str]:
        return [a.instance_id for a in self.table[volume_id].attachments]

    async def volumes(
        self, *, volume_id: str = "", tags: Mapping[str, str] | None = None
    ) -> Sequence[EbsVolume]:
        return await self._call("volumes", lambda: self._found(volume_id, tags or {}))

    async def instance(self, instance_id: str) -> Ec2Instance | None:
        return await self._call("instance", lambda: self._instance(instance_id))

    async def attach(self, volume_id: str, instance_id: str, device_name: str) -> None:
        await self._call("attach", lambda: self._attach(volume_id, instance_id, device_name))

    async def detach(self, volume_id: str, instance_id: str, *, by_force: bool) -> None:
        assert by_force == (self.state_of[instance_id] != "running"), "only who runs is asked"
        await self._call("detach", lambda: self._detach(volume_id, instance_id))

    async def _call(self, name: str, call: Callable[[], T]) -> T:
        self.calls.append(name)
        await asyncio.sleep(0.01)
        self.trouble(name, False)
        answer = call()
        await asyncio.sleep(0.01)
        self.trouble(name, True)
        return answer

    def _found(self, volume_id: str, tags: Mapping[str, str]) -> list[EbsVolume]:
        return [
            volume
            for volume in self.table.values()
            if volume_id in {"", volume.volume_id}
            and all(volume.tags.get(k) == v for k, v in tags.items())
        ]

    def _instance(self, instance_id: str) -> Ec2Instance | None:
        if instance_id not in self.state_of:
            return None
        return Ec2Instance(
            state=self.state_of[instance_id],
            device_names=frozenset(self._names_of(instance_id)),
            tags=self.tags_of.get(instance_id, {}),
        )

    def _names_of(self, instance_id: str) -> set[str]:
        return {name for (holder, _), name in self.names.items() if holder == instance_id}

    def _attach(self, volume_id: str, instance_id: str, name: str) -> None:
        volume = self.table[volume_id]
        held = self.holders(volume_id)
        if volume.zone != self.zone_of[instance_id]:
            raise AwsRefused("InvalidVolume.ZoneMismatch", "not in the same zone")
        if self.state_of[instance_id] not in {"running", "stopped"}:
            raise AwsRefused("IncorrectState", "the instance is ending")
        if instance_id in held or (held and not volume.is_shared):
            raise AwsRefused("VolumeInUse", f"{volume_id} is already attached to an instance")
        if len(held) >= 16:
            raise AwsRefused("AttachmentLimitExceeded", "16 instances")
        if name in self._names_of(instance_id):
            raise AwsRefused("InvalidParameterValue", f"{name} is already in use")
        self.names[instance_id, volume_id] = name
        self._change(volume_id, instance_id, "attaching")
        self._later(volume_id, instance_id, "attaching", "attached")

    def _detach(self, volume_id: str, instance_id: str) -> None:
        if instance_id not in self.holders(volume_id):
            raise AwsRefused("IncorrectState", f"{volume_id} is not attached")
        self._change(volume_id, instance_id, "detaching")
        self._later(volume_id, instance_id, "detaching", "")

    def _later(self, volume_id: str, instance_id: str, before: str, after: str) -> None:
        """Finish a change, unless another one has begun meanwhile."""

        def change() -> None:
            if (
                Attachment(instance_id=instance_id, state=before)
                in self.table[volume_id].attachments
            ):
                self._change(volume_id, instance_id, after)

        asyncio.get_running_loop().call_later(self.latency_s, change)

    def _change(self, volume_id: str, instance_id: str, state: str) -> None:
        volume = self.table[volume_id]
        kept = [a for a in volume.attachments if a.instance_id != instance_id]
        if state:
            kept.append(Attachment(instance_id=instance_id, state=state))
        else:
            self.names.pop((instance_id, volume_id), None)
        self.table[volume_id] = replace(
            volume, attachments=tuple(kept), state="in-use" if kept else "available"
        )


@dataclass
class FakeDevices:
    """The disks of one instance: there once EC2 says attached."""

    ec2: FakeEc2
    instance_id: str

    def path(self, volume_id: str) -> Path:
        return Path("/dev/disk/by-id") / volume_id

    async def is_here(self, volume_id: str) -> bool:
        mine = [a for a in self.ec2.table[volume_id].attachments if a.state == "attached"]
        return self.instance_id in {a.instance_id for a in mine}
