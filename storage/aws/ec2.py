"""Requests to EC2 about volumes, with the three outcomes of `lakehead.storage.aws.client`.

After an attach request without a response, a describe request shows whether it was done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lakehead.storage.aws.client import AwsClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A volume at an instance. `state`: attaching, attached, busy, detaching, detached."""

    instance_id: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EbsVolume:
    """A volume in a DescribeVolumes response."""

    volume_id: str
    zone: str
    state: str
    """creating, available, in-use, deleting, deleted, error"""
    is_shared: bool
    """True if several instances may have it at once (MultiAttachEnabled)."""
    attachments: tuple[Attachment, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2Instance:
    """An instance in a DescribeInstances response."""

    state: str
    """pending, running, shutting-down, terminated, stopping, stopped"""
    device_names: frozenset[str] = frozenset()
    """The names it has given away, such as /dev/sdf."""
    tags: Mapping[str, str] = field(default_factory=dict)


class Ec2(Protocol):
    """The calls. Each raises AwsRefused and AwsUnanswered."""

    async def volumes(
        self, *, volume_id: str = "", tags: Mapping[str, str] | None = None
    ) -> Sequence[EbsVolume]:
        """Return the volumes of an id, or of all of some tags; an unknown id has none."""

    async def instance(self, instance_id: str) -> Ec2Instance | None:
        """Return what is known of an instance; None: EC2 does not know it, or not any more."""

    async def attach(self, volume_id: str, instance_id: str, device_name: str) -> None:
        """Begin to attach a volume."""

    async def detach(self, volume_id: str, instance_id: str, *, by_force: bool) -> None:
        """Begin to detach a volume. `by_force` does not wait for the instance: for one that does
        not run.
        """


class Boto3Ec2:
    """EC2 by boto3, with credentials from where AWS's own tools look. Calls block a thread."""

    def __init__(self, region: str) -> None:
        self._client = AwsClient("ec2", region)

    async def volumes(
        self, *, volume_id: str = "", tags: Mapping[str, str] | None = None
    ) -> Sequence[EbsVolume]:
        """See Ec2."""
        filters = [{"Name": f"tag:{name}", "Values": [v]} for name, v in (tags or {}).items()]
        if volume_id:
            filters.append({"Name": "volume-id", "Values": [volume_id]})
        pages = await self._client.call(
            lambda client: list(client.get_paginator("describe_volumes").paginate(Filters=filters))
        )
        return [_volume(found) for page in pages for found in page["Volumes"]]

    async def instance(self, instance_id: str) -> Ec2Instance | None:
        """See Ec2."""
        filters = [{"Name": "instance-id", "Values": [instance_id]}]
        response = await self._client.call(
            lambda client: client.describe_instances(Filters=filters)
        )
        found = [i for group in response["Reservations"] for i in group["Instances"]]
        return _instance(found[0]) if found else None

    async def attach(self, volume_id: str, instance_id: str, device_name: str) -> None:
        """See Ec2."""
        await self._client.call(
            lambda client: client.attach_volume(
                VolumeId=volume_id, InstanceId=instance_id, Device=device_name
            )
        )

    async def detach(self, volume_id: str, instance_id: str, *, by_force: bool) -> None:
        """See Ec2."""
        await self._client.call(
            lambda client: client.detach_volume(
                VolumeId=volume_id, InstanceId=instance_id, Force=by_force
            )
        )


def _volume(found: Mapping[str, Any]) -> EbsVolume:
    return EbsVolume(
        volume_id=found["VolumeId"],
        zone=found["AvailabilityZone"],
        state=found["State"],
        is_shared=bool(found.get("MultiAttachEnabled")),
        attachments=tuple(
            Attachment(instance_id=a["InstanceId"], state=a["State"])
            for a in found.get("Attachments", ())
            if a.get("InstanceId") and a["State"] != "detached"
        ),
        tags=_tags(found),
    )


def _instance(found: Mapping[str, Any]) -> Ec2Instance:
    return Ec2Instance(
        state=found["State"]["Name"],
        device_names=frozenset(m["DeviceName"] for m in found.get("BlockDeviceMappings", ())),
        tags=_tags(found),
    )


def _tags(found: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in found.get("Tags", ())}
