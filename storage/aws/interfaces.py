"""What is asked of EC2 about network interfaces: two calls, with the ends of
`lakehead.storage.aws.client`.

After an AttachNetworkInterface that was not answered, DescribeNetworkInterfaces tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lakehead.storage.aws.client import AwsClient


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkInterface:
    """An interface, as DescribeNetworkInterfaces tells of it."""

    interface_id: str
    zone: str
    address: str
    """Its primary private IPv4 address."""
    instance_id: str = ""
    """Who has it; empty: nobody."""
    is_leaving: bool = False
    """Whether it is being detached from there."""
    tags: Mapping[str, str] = field(default_factory=dict)


class NetworkInterfaces(Protocol):
    """The calls. Each raises AwsRefused and AwsUnanswered."""

    async def interfaces(self, tags: Mapping[str, str]) -> Sequence[NetworkInterface]:
        """Return the interfaces that have all of some tags."""

    async def attach(self, interface_id: str, instance_id: str, device_index: int) -> None:
        """Begin to attach an interface. Refused when another instance has it, and when the
        instance has another one at this index.
        """


class Boto3NetworkInterfaces:
    """EC2 by boto3."""

    def __init__(self, region: str) -> None:
        self._client = AwsClient("ec2", region)

    async def interfaces(self, tags: Mapping[str, str]) -> Sequence[NetworkInterface]:
        """See NetworkInterfaces."""
        filters = [{"Name": f"tag:{name}", "Values": [value]} for name, value in tags.items()]
        pages = await self._client.call(
            lambda client: list(
                client.get_paginator("describe_network_interfaces").paginate(Filters=filters)
            )
        )
        return [_interface(found) for page in pages for found in page["NetworkInterfaces"]]

    async def attach(self, interface_id: str, instance_id: str, device_index: int) -> None:
        """See NetworkInterfaces."""
        await self._client.call(
            lambda client: client.attach_network_interface(
                NetworkInterfaceId=interface_id, InstanceId=instance_id, DeviceIndex=device_index
            )
        )


def _interface(found: Mapping[str, Any]) -> NetworkInterface:
    attachment = found.get("Attachment") or {}
    state = attachment.get("Status", "detached")
    is_held = state != "detached"
    return NetworkInterface(
        interface_id=found["NetworkInterfaceId"],
        zone=found["AvailabilityZone"],
        address=found.get("PrivateIpAddress", ""),
        # Of an interface that a service of AWS has, no instance is told.
        instance_id=attachment.get("InstanceId") or "another account's" if is_held else "",
        is_leaving=state == "detaching",
        tags={tag["Key"]: tag["Value"] for tag in found.get("TagSet", ())},
    )
