"""The slots of a cluster whose machines come and go: a stable address and stable node ids each.

A slot is a network interface with the tags `lakehead:bucket` and `lakehead:cluster` (as its
instances have them), `lakehead:slot` (such as `a-0`) and `lakehead:node-id` (the first of its node
ids), made once and kept. An instance that starts takes the lowest slot of its zone that is free, by
attaching the interface to itself. EC2 lets an interface be with one instance only, and an instance
have one interface at an index: so no two instances share a slot, and none has two, whatever
responses are lost. Nothing is ever detached: a slot is free again when EC2 has ended its instance.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol
from zlib import crc32

import structlog

from lakehead.storage.aws.client import AwsClient, AwsRefused, AwsUnanswered
from lakehead.storage.aws.instance import Instance, instance_metadata
from lakehead.storage.aws.volumes import CLUSTER_TAG, CLUSTER_TAGS, SLOT_TAG
from lakehead.storage.errors import SettingsError, StorageError

NODE_ID_TAG = "lakehead:node-id"
DEVICE_INDEX = 1
"""That of the slot's interface; 0 is the instance's own, with which it was started."""
WAIT_S = 600.0
ADDRESS_TIMEOUT_S = 60.0
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.25, 5.0
_IN_USE = "InvalidNetworkInterface.InUse"
_PASSING = {
    "IncorrectInstanceState",
    "IncorrectState",
    "InvalidInstanceID.NotFound",
    "InvalidParameterValue",
}
"""Refusals that an earlier call of ours or the instance's start explains: the claim looks again."""
_log = structlog.get_logger("broker.slots")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkInterface:
    """An interface in a DescribeNetworkInterfaces response."""

    interface_id: str
    zone: str
    address: str
    """Its primary private IPv4 address."""
    instance_id: str = ""
    """The instance that it is attached to; empty: none."""
    is_leaving: bool = False
    """True if it is being detached from there."""
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
        # EC2 names no instance for an interface that a service of AWS has.
        instance_id=attachment.get("InstanceId") or "another account's" if is_held else "",
        is_leaving=state == "detaching",
        tags={tag["Key"]: tag["Value"] for tag in found.get("TagSet", ())},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A place in a cluster."""

    cluster: str
    name: str
    node_id: int
    """The first of its node ids."""
    zone_id: str
    """Of its zone, which is one place for all accounts: the rack of its nodes."""
    address: str


class SlotClaims:
    """Claims a slot for the instance that `metadata` describes. `interfaces` makes the calls of a
    region, `is_here` returns true for an address of this machine.
    """

    def __init__(
        self,
        metadata: Callable[[], Awaitable[Instance]],
        interfaces: Callable[[str], NetworkInterfaces],
        is_here: Callable[[str], bool],
        *,
        wait_s: float = WAIT_S,
    ) -> None:
        self._metadata = metadata
        self._interfaces = interfaces
        self._is_here = is_here
        self._wait_s = wait_s

    async def claim(self) -> Slot:
        """Return the slot that this instance has from now on; the one it had, if it has one.

        Raises SettingsError (there is none to be had here), StorageError (none became free in time,
        EC2 did not respond, or the slot's address did not appear on this machine).
        """
        instance = await self._metadata()
        tags = {name: (instance.tags or {}).get(name, "") for name in CLUSTER_TAGS}
        if missing := [name for name, value in tags.items() if not value]:
            raise SettingsError(
                f"{instance.instance_id} shows no tag {missing[0]} in its metadata: have its "
                "launch template set it, and turn tags in metadata on"
            )
        if not instance.zone_id:
            raise SettingsError(
                f"the metadata of {instance.instance_id} do not contain the id of its zone "
                "(placement/availability-zone-id), which is the rack of its nodes"
            )
        slot = await self._claimed(instance, tags)
        await self._wait_address(slot)
        _log.info("slot_claimed", slot=slot.name, node_id=slot.node_id, address=slot.address)
        return slot

    async def _claimed(self, instance: Instance, tags: Mapping[str, str]) -> Slot:
        calls = self._interfaces(instance.region)
        # Instances that start together would otherwise send requests, and lose, in step.
        random, pause_s = Random(crc32(instance.instance_id.encode())), _PAUSE_MIN_S
        reason = "no request to EC2 yet"
        try:
            async with asyncio.timeout(self._wait_s):
                while True:
                    outcome = await _step(calls, instance, tags)
                    if isinstance(outcome, Slot):
                        return outcome
                    if outcome != reason:
                        _log.warning("slot_awaited", cluster=tags[CLUSTER_TAG], reason=outcome)
                    reason = outcome
                    await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
                    pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        except TimeoutError:
            raise StorageError(
                f"no slot of cluster {tags[CLUSTER_TAG]} could be had in {instance.zone} within "
                f"{self._wait_s:.0f} s: {reason}"
            ) from None

    async def _wait_address(self, slot: Slot) -> None:
        try:
            async with asyncio.timeout(ADDRESS_TIMEOUT_S):
                while not self._is_here(slot.address):  # noqa: ASYNC110 - the kernel reports no event
                    await asyncio.sleep(_PAUSE_MIN_S)
        except TimeoutError:
            raise StorageError(
                f"{slot.address}, the address of slot {slot.name}, is not on this machine after "
                f"{ADDRESS_TIMEOUT_S:.0f} s: its image has to configure interfaces that are "
                "attached later, as Amazon Linux does"
            ) from None


def machine_slots(wait_s: float = WAIT_S) -> SlotClaims:
    """Return the slot claims of the machine that this runs on. Makes no request yet."""
    return SlotClaims(
        instance_metadata().instance, Boto3NetworkInterfaces, has_address, wait_s=wait_s
    )


def has_address(address: str) -> bool:
    """Return true if an IPv4 address is one of this machine's: only then may a socket be bound to
    it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                return False
            raise
    return True


async def _step(
    calls: NetworkInterfaces, instance: Instance, tags: Mapping[str, str]
) -> Slot | str:
    """Look, and try what is free. Return the slot that is ours, or what is waited for."""
    try:
        found = await calls.interfaces(tags)
        slots = [one for one in found if SLOT_TAG in one.tags and one.zone == instance.zone]
        if not slots:
            named = " ".join(f"{name}={value}" for name, value in tags.items())
            return f"{instance.zone} has no interface with {named} and a tag {SLOT_TAG}"
        ours = [one for one in slots if one.instance_id == instance.instance_id]
        if ours:
            slot = _slot(ours[0], instance)
            return f"slot {slot.name} is being taken from it" if ours[0].is_leaving else slot
        free = [one for one in slots if not one.instance_id]
        for interface in sorted(free, key=lambda one: _slot(one, instance).node_id):
            if await _attached(calls, interface, instance):
                return _slot(interface, instance)
    except AwsUnanswered as error:
        return str(error)
    except AwsRefused as error:
        if error.code in _PASSING:
            return str(error)
        raise SettingsError(f"no slot may be claimed by {instance.instance_id}: {error}") from error
    return f"all {len(slots)} slots there are in use: raise the number of slots, or end an instance"


async def _attached(
    calls: NetworkInterfaces, interface: NetworkInterface, instance: Instance
) -> bool:
    """Try to take an interface; False: another instance, or this one, has it already."""
    try:
        await calls.attach(interface.interface_id, instance.instance_id, DEVICE_INDEX)
    except AwsRefused as error:
        if error.code == _IN_USE:
            return False
        raise
    return True


def _slot(interface: NetworkInterface, instance: Instance) -> Slot:
    node_id = interface.tags.get(NODE_ID_TAG, "")
    if not node_id.isdecimal():
        raise SettingsError(
            f"interface {interface.interface_id} needs a tag {NODE_ID_TAG} with a node id"
        )
    return Slot(
        cluster=interface.tags[CLUSTER_TAG],
        name=interface.tags[SLOT_TAG],
        node_id=int(node_id),
        zone_id=instance.zone_id,
        address=interface.address,
    )
