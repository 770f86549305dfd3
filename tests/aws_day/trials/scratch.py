"""A volume of a trial's own, beside those of its cluster."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.aws_day.trial import Scene

_ATTACH_S = 600
_STOP_S = 900


@contextmanager
def scratch_volume(scene: Scene, *, shared: bool) -> Iterator[str]:
    """Have an empty volume of 4 GiB in the trial's zone: io2 with multi-attach, or gp3. Gives its
    id; at the end it is detached and deleted.
    """
    ec2 = scene.account.client("ec2")
    kind = {"VolumeType": "io2", "Iops": 500, "MultiAttachEnabled": True} if shared else {}
    volume = ""

    def remove() -> None:
        if volume:
            for instance in holders(scene, volume):
                ec2.detach_volume(VolumeId=volume, InstanceId=instance, Force=True)
            wait_for(scene, volume, set())
            ec2.delete_volume(VolumeId=volume)

    with scene.ledger.kept(scene.trial, "volume", "scratch", remove):
        volume = ec2.create_volume(
            AvailabilityZone=scene.account.zone,
            Size=4,
            Encrypted=True,
            TagSpecifications=[{"ResourceType": "volume", "Tags": scene.account.tags(scene.trial)}],
            **{"VolumeType": "gp3", **kind},
        )["VolumeId"]

        def is_available() -> bool:
            (told,) = ec2.describe_volumes(VolumeIds=[volume])["Volumes"]
            return bool(told["State"] == "available")

        scene.limits.until("a new volume", _ATTACH_S, is_available)
        yield volume


def holders(scene: Scene, volume: str) -> dict[str, str]:
    """Return who has a volume: instance to the state of its attachment."""
    (told,) = scene.account.client("ec2").describe_volumes(VolumeIds=[volume])["Volumes"]
    return {one["InstanceId"]: one["State"] for one in told["Attachments"]}


def wait_for(scene: Scene, volume: str, instances: set[str]) -> float:
    """Wait until just these instances have a volume, as EC2 says; return the seconds."""

    def is_so() -> bool:
        found = holders(scene, volume)
        return set(found) == instances and set(found.values()) <= {"attached"}

    # Teardown waits too, so time and money do not count here.
    began = scene.limits.clock.monotonic()
    while not is_so():
        if scene.limits.clock.monotonic() - began > _ATTACH_S:
            raise TimeoutError(f"volume {volume} is held by {holders(scene, volume)}")
        scene.limits.clock.sleep(0.5)
    return scene.limits.clock.monotonic() - began


def stop(scene: Scene, instance: str, *, by_force: bool) -> float:
    """Stop an instance; return the seconds until EC2 says that it is stopped."""
    ec2 = scene.account.client("ec2")
    ec2.stop_instances(InstanceIds=[instance], Force=by_force)

    def is_stopped() -> bool:
        told = ec2.describe_instances(InstanceIds=[instance])["Reservations"]
        return bool(told[0]["Instances"][0]["State"]["Name"] == "stopped")

    return scene.limits.until(f"the end of {instance}", _STOP_S, is_stopped)


def attach(scene: Scene, volume: str, instance: str) -> None:
    """Ask for an attachment."""
    scene.account.client("ec2").attach_volume(
        VolumeId=volume, InstanceId=instance, Device="/dev/sdp"
    )
