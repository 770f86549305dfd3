"""Hosts that come and go, as Terraform makes their group: its instances claim slots by our code."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lakehead.broker.ec2.lifecycle import ENDING_HOOK, GROUP_TAG, SERVING_HOOK, Boto3ScalingGroups
from lakehead.broker.ec2.slots import Boto3NetworkInterfaces, Slot, SlotClaims
from lakehead.storage.aws.instance import Instance
from tests.terraform.cluster_checks import tags
from tests.terraform.emulator import REGION, Emulator, emulator
from tests.terraform.test_terraform_cycle import (
    SETTINGS_OBJECT,
    applied,
    ask_here,
    check_end,
    place,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
UPKEEP = {"MinHealthyPercentage": 100, "MaxHealthyPercentage": 110}
GROUP = "module.lakehead.module.elastic[0]."
RELEASE = f'module "lakehead" {{\n  package_sha256 = "{"f" * 64}"\n}}\n'
MOVES = {
    'name = "lake"': "Hosts run with other values of name",
    'prefix = "other"': "Set them back: prefix = lakehead",
    'vpc_cidr = "10.43.0.0/16"': "Set them back: network = 10.42.0.0/16",
    'zones = ["us-east-1a", "us-east-1c", "us-east-1b"]': "Set zones back",
}
"""Changes that would end or cut off all hosts at once, and the refusal of each."""
SETTING = 'module "lakehead" {\n  settings = { "log.retention.ms" = "86400000" }\n}\n'


def group_of(aws: Emulator) -> dict[str, Any]:
    (group,) = aws.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    assert isinstance(group, dict)
    return group


def instances_of(aws: Emulator) -> dict[str, dict[str, Any]]:
    ids = [one["InstanceId"] for one in group_of(aws)["Instances"]]
    found = aws.client("ec2").describe_instances(InstanceIds=ids)["Reservations"]
    return {one["InstanceId"]: one for some in found for one in some["Instances"]}


async def claimed(instance: dict[str, Any]) -> Slot:
    """Claim a slot as the instance itself would, by what AWS shows it."""

    async def metadata() -> Instance:
        return Instance(
            instance_id=instance["InstanceId"],
            region=REGION,
            zone=instance["Placement"]["AvailabilityZone"],
            zone_id="use1-az6",
            tags=tags(instance),
        )

    claims = SlotClaims(metadata, Boto3NetworkInterfaces, lambda address: True, wait_s=60)
    return await claims.claim()


def claimed_at_once(aws: Emulator) -> dict[str, Slot]:
    """Have all instances of the group claim their slots; return them by instance."""

    async def all_of(instances: dict[str, dict[str, Any]]) -> list[Slot]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(claimed(one)) for one in instances.values()]
        return [task.result() for task in tasks]

    instances = instances_of(aws)
    got = dict(zip(instances, asyncio.run(all_of(instances)), strict=True))
    assert len({slot.name for slot in got.values()}) == len(got)
    for instance_id, slot in got.items():
        zone = instances[instance_id]["Placement"]["AvailabilityZone"]
        assert slot.name[0] == zone[-1]
    return got


def check_that_others_come(aws: Emulator, got: dict[str, Slot]) -> dict[str, Slot]:
    """As spot instances end, others take what they had; return who has what then."""
    ended = sorted(got)[:3]
    for instance_id in ended:
        aws.client("autoscaling").terminate_instance_in_auto_scaling_group(
            InstanceId=instance_id, ShouldDecrementDesiredCapacity=False
        )
    now = claimed_at_once(aws)
    assert len(now) == len(got)
    assert not set(ended) & set(now)
    assert {one: got[one] for one in got if one in now}.items() <= now.items()
    return now


def made_group(aws: Emulator, hosts: int, slots: int) -> None:
    """Make slots in a zone and a group there, by hand."""
    ec2 = aws.client("ec2")
    cluster = [{"Key": f"lakehead:{name}", "Value": "c"} for name in ("bucket", "cluster")]
    vpc = ec2.create_vpc(CidrBlock="10.42.0.0/16")["Vpc"]["VpcId"]
    in_vpc = {"VpcId": vpc, "AvailabilityZone": f"{REGION}a", "CidrBlock": "10.42.0.0/24"}
    subnet = ec2.create_subnet(**in_vpc)["Subnet"]["SubnetId"]
    for number in range(slots):
        named = [
            *cluster,
            {"Key": "lakehead:slot", "Value": f"a-{number}"},
            {"Key": "lakehead:node-id", "Value": str(100 * number)},
        ]
        ec2.create_network_interface(
            SubnetId=subnet,
            TagSpecifications=[{"ResourceType": "network-interface", "Tags": named}],
        )
    image = ec2.describe_images()["Images"][0]["ImageId"]
    template = {"ImageId": image, "InstanceType": "m7i.large"}
    ec2.create_launch_template(LaunchTemplateName="hosts", LaunchTemplateData=template)
    aws.client("autoscaling").create_auto_scaling_group(
        AutoScalingGroupName="c",
        MinSize=hosts,
        MaxSize=hosts,
        DefaultInstanceWarmup=120,
        InstanceMaintenancePolicy=UPKEEP,
        VPCZoneIdentifier=subnet,
        LaunchTemplate={"LaunchTemplateName": "hosts", "Version": "1"},
        Tags=[one | {"PropagateAtLaunch": True} for one in cluster],
    )


def test_instances_that_start_at_once_take_all_slots_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with emulator(tmp_path / "log") as aws:
        ask_here(aws, monkeypatch)
        made_group(aws, hosts=8, slots=8)
        assert group_of(aws)["DefaultInstanceWarmup"] == 120
        assert group_of(aws)["InstanceMaintenancePolicy"] == UPKEEP
        got = claimed_at_once(aws)
        assert {slot.name for slot in got.values()} == {f"a-{number}" for number in range(8)}
        assert {slot.node_id for slot in got.values()} == set(range(0, 800, 100))
        assert claimed_at_once(aws) == got
        now = check_that_others_come(aws, got)
        aws.client("autoscaling").start_instance_refresh(AutoScalingGroupName="c")
        assert not set(now) & set(claimed_at_once(aws))
        one = next(iter(instances_of(aws)))
        asyncio.run(Boto3ScalingGroups(REGION).set_unhealthy(one))
        health = {
            known["InstanceId"]: known["HealthStatus"].lower()
            for known in group_of(aws)["Instances"]
        }
        assert health[one] == "unhealthy"
        assert aws.faults() == []


def test_a_group_gets_slots_another_setting_another_release_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place(tmp_path, "elastic") as where:
        terraform = where.terraform
        assert set(terraform.plan().changes.values()) == {"create"}
        slots = applied(where).outputs["slots"]
        scaling = where.aws.client("autoscaling")
        name = group_of(where.aws)["AutoScalingGroupName"]
        hooks = scaling.describe_lifecycle_hooks(AutoScalingGroupName=name)["LifecycleHooks"]
        assert {one["LifecycleHookName"] for one in hooks} == {SERVING_HOOK, ENDING_HOOK}
        policies = scaling.describe_policies(AutoScalingGroupName=name)["ScalingPolicies"]
        assert {one["TargetTrackingConfiguration"]["TargetValue"] for one in policies} == {
            40 * 2**20 * 60
        }

        ask_here(where.aws, monkeypatch)
        instances = instances_of(where.aws)
        assert len(instances) == 3
        assert {tags(one)[GROUP_TAG] for one in instances.values()} == {name}
        # moto starts all instances in one zone, which has eight slots here.
        scaling.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=7)
        got = claimed_at_once(where.aws)
        assert len(got) == 7
        for slot in got.values():
            told = slots[slot.name]
            assert (slot.node_id, slot.address) == (told["node_id"], told["address"])
        # A claim is no drift, and what a reboot finds.
        terraform.check_nothing_to_do()
        assert claimed_at_once(where.aws) == got

        now = check_that_others_come(where.aws, got)

        terraform.override("setting", SETTING)
        assert terraform.plan().changes == {SETTINGS_OBJECT: "update"}
        assert applied(where).outputs["slots"] == slots
        assert claimed_at_once(where.aws) == now, "the same instances"

        for change, reason in MOVES.items():
            terraform.override("move", f'module "lakehead" {{\n{change}\n}}\n')
            assert reason in terraform.refused_plan()
        (terraform.folder / "move_override.tf").unlink()

        terraform.override("release", RELEASE)
        assert terraform.plan().changes == {
            f"{GROUP}aws_autoscaling_group.hosts": "update",
            f"{GROUP}aws_launch_template.host": "update",
        }
        assert applied(where).outputs["slots"] == slots
        refreshed = claimed_at_once(where.aws)
        assert len(refreshed) == 7
        assert not set(now) & set(refreshed)
        check_end(where)
