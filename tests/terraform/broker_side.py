"""The broker's own calls of EC2, made from the hosts and to the volumes that Terraform made."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lakehead.storage.aws.ec2 import Boto3Ec2
from lakehead.storage.aws.instance import Instance
from lakehead.storage.aws.volumes import InstanceVolumes
from lakehead.storage.errors import StorageError
from tests.terraform.cluster_checks import Cluster, tags
from tests.terraform.emulator import REGION

IMAGE = "ami-0123456789abcdef0"


@dataclass(frozen=True, slots=True)
class ToldDevices:
    """The disks of a host that is none: there is what EC2 says is attached."""

    ec2: Any
    instance_id: str

    def path(self, volume_id: str) -> Path:
        """See Devices."""
        return Path("/dev/disk/by-id") / volume_id

    async def is_here(self, volume_id: str) -> bool:
        """See Devices."""
        return self.instance_id in holders(self.ec2, volume_id)


def holders(ec2: Any, volume_id: str) -> set[str]:
    """Return the instances that have a volume."""
    (volume,) = ec2.describe_volumes(VolumeIds=[volume_id])["Volumes"]
    return {one["InstanceId"] for one in volume["Attachments"]}


def volumes_of(cluster: Cluster, instance: Mapping[str, Any]) -> InstanceVolumes:
    """Return the volumes as a broker on an instance has them."""
    known = Instance(
        instance_id=instance["InstanceId"],
        region=REGION,
        zone=instance["Placement"]["AvailabilityZone"],
        tags=tags(instance),
    )

    async def metadata() -> Instance:
        return known

    devices = ToldDevices(cluster.ec2, instance["InstanceId"])
    return InstanceVolumes(metadata, Boto3Ec2, devices)


def hosts_attach_their_own(cluster: Cluster) -> None:
    """Do what each host does at its start: find the volume of its slot by tags, and attach it."""

    async def start() -> None:
        for slot, instance in cluster.instances.items():
            volumes = volumes_of(cluster, instance)
            own = await volumes.find(slot)
            assert own.volume_id == cluster.volumes[slot]["VolumeId"]
            await volumes.attach(own.volume_id)

    asyncio.run(start())


def check_takers_have_the_disk(cluster: Cluster) -> None:
    """Each host has the shared volume of every other one, and takes it over without a call."""

    async def look() -> None:
        for instance in cluster.instances.values():
            volumes = volumes_of(cluster, instance)
            for other in cluster.volumes.values():
                assert await volumes.here(other["VolumeId"]) is not None
                found = await volumes.find(other["VolumeId"])
                assert found.is_shared

    asyncio.run(look())


def check_a_volume_alone_moves_from_a_stopped_host(cluster: Cluster) -> None:
    """Another host gets a volume once the first one does not run, not before.

    Leaves the host running, with its volume.
    """
    (instance,), (volume,) = cluster.instances.values(), cluster.volumes.values()
    first, volume_id = instance["InstanceId"], volume["VolumeId"]
    other = cluster.ec2.run_instances(
        ImageId=IMAGE, MinCount=1, MaxCount=1, SubnetId=instance["SubnetId"]
    )["Instances"][0]
    slot = tags(volume)["lakehead:wal"]

    async def move() -> None:
        own, taker = volumes_of(cluster, instance), volumes_of(cluster, other)
        found = await own.find("")
        assert (found.volume_id, found.is_shared) == (volume_id, False)
        assert holders(cluster.ec2, volume_id) == {first}
        with pytest.raises(StorageError, match="which is running and may write"):
            await taker.attach(volume_id)
        cluster.ec2.stop_instances(InstanceIds=[first])
        await taker.attach(volume_id)
        assert holders(cluster.ec2, volume_id) == {other["InstanceId"]}
        cluster.ec2.start_instances(InstanceIds=[first])
        cluster.ec2.terminate_instances(InstanceIds=[other["InstanceId"]])
        assert (await own.find(slot)).volume_id == volume_id
        await own.attach(volume_id)
        assert holders(cluster.ec2, volume_id) == {first}

    asyncio.run(move())
