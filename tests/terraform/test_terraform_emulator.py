"""The emulator's changes to moto, asked through boto3: AWS' answers where moto has others."""

import itertools
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.terraform.emulator import PROJECT, Emulator, emulator

pytestmark = pytest.mark.slow
ZONE, OTHER_ZONE = "us-east-1a", "us-east-1b"
IMAGE = "ami-0123456789abcdef0"


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulator(tmp_path_factory.mktemp("emulator") / "log") as served:
        yield served
        assert served.faults() == []


@pytest.fixture(scope="module")
def ec2(aws: Emulator) -> Any:
    return aws.client("ec2")


def started(ec2: Any, count: int = 1, zone: str = ZONE) -> list[str]:
    made = ec2.run_instances(
        ImageId=IMAGE, MinCount=count, MaxCount=count, Placement={"AvailabilityZone": zone}
    )
    return [one["InstanceId"] for one in made["Instances"]]


def volume(ec2: Any, *, shared: bool = True) -> str:
    kind = {"VolumeType": "io2", "Iops": 500, "MultiAttachEnabled": True} if shared else {}
    made = ec2.create_volume(AvailabilityZone=ZONE, Size=10, **{"VolumeType": "gp3"} | kind)
    name: str = made["VolumeId"]
    return name


def attached(ec2: Any, volume_id: str) -> dict[str, str]:
    found = ec2.describe_volumes(VolumeIds=[volume_id])["Volumes"][0]
    assert found["State"] == ("in-use" if found["Attachments"] else "available")
    return {one["InstanceId"]: one["Device"] for one in found["Attachments"]}


def refusal(ec2: Any, call: str, **arguments: Any) -> str:
    with pytest.raises(ec2.exceptions.ClientError) as refused:
        getattr(ec2, call)(**arguments)
    code: str = refused.value.response["Error"]["Code"]
    return code


def attach(ec2: Any, volume_id: str, instance_id: str, device: str = "/dev/sdf") -> None:
    ec2.attach_volume(VolumeId=volume_id, InstanceId=instance_id, Device=device)


def attach_refusal(ec2: Any, volume_id: str, instance_id: str, device: str = "/dev/sdf") -> str:
    arguments = {"VolumeId": volume_id, "InstanceId": instance_id, "Device": device}
    return refusal(ec2, "attach_volume", **arguments)


def test_a_shared_volume_is_attached_to_sixteen_and_to_each_once(ec2: Any) -> None:
    ids, shared = started(ec2, 17), volume(ec2)
    for instance_id in ids[:16]:
        attach(ec2, shared, instance_id)
    assert attached(ec2, shared) == dict.fromkeys(ids[:16], "/dev/sdf")
    for name, value in (("instance-id", ids[9]), ("device", "/dev/sdf"), ("status", "attached")):
        filters = [{"Name": f"attachment.{name}", "Values": [value]}]
        found = ec2.describe_volumes(VolumeIds=[shared], Filters=filters)["Volumes"]
        assert [len(one["Attachments"]) for one in found] == [16]
    none = [{"Name": "attachment.instance-id", "Values": [ids[16]]}]
    assert ec2.describe_volumes(VolumeIds=[shared], Filters=none)["Volumes"] == []
    assert attach_refusal(ec2, shared, ids[16]) == "AttachmentLimitExceeded"
    assert attach_refusal(ec2, shared, ids[0], "/dev/sdg") == "VolumeInUse"
    assert refusal(ec2, "delete_volume", VolumeId=shared) == "VolumeInUse"


def test_attachments_race_to_the_same_end(ec2: Any) -> None:
    ids, shared = started(ec2, 8), volume(ec2)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda instance_id: attach(ec2, shared, instance_id), ids))
    assert set(attached(ec2, shared)) == set(ids)


def test_one_instance_has_another_volume_alone(ec2: Any) -> None:
    (first, second), alone = started(ec2, 2), volume(ec2, shared=False)
    attach(ec2, alone, first)
    assert attach_refusal(ec2, alone, second) == "VolumeInUse"
    assert attach_refusal(ec2, volume(ec2), first) == "InvalidParameterValue"  # its device name
    ec2.detach_volume(VolumeId=alone)
    attach(ec2, alone, second, "/dev/sdg")
    assert attached(ec2, alone) == {second: "/dev/sdg"}


def test_a_volume_stays_in_its_zone_and_wants_an_instance_that_is_there(ec2: Any) -> None:
    (far,), (gone,), shared = started(ec2, zone=OTHER_ZONE), started(ec2), volume(ec2)
    assert attach_refusal(ec2, shared, far) == "InvalidVolume.ZoneMismatch"
    ec2.terminate_instances(InstanceIds=[gone])
    assert attach_refusal(ec2, shared, gone) == "IncorrectState"
    assert attached(ec2, shared) == {}


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_each_instance_gives_a_volume_back_by_itself(ec2: Any, order: tuple[int, ...]) -> None:
    ids, shared = started(ec2, 3), volume(ec2)
    for instance_id in ids:
        attach(ec2, shared, instance_id)
    left = set(ids)
    for number, index in enumerate(order):
        if number % 2:
            ec2.terminate_instances(InstanceIds=[ids[index]])
        else:
            ec2.detach_volume(VolumeId=shared, InstanceId=ids[index])
        left.remove(ids[index])
        assert set(attached(ec2, shared)) == left
    detach = {"VolumeId": shared, "InstanceId": ids[0]}
    assert refusal(ec2, "detach_volume", **detach) == "IncorrectState"
    ec2.delete_volume(VolumeId=shared)


def test_detailed_monitoring_is_turned_on_and_off(ec2: Any) -> None:
    ids = started(ec2, 2)
    told = ec2.monitor_instances(InstanceIds=ids[:1])["InstanceMonitorings"]
    assert told == [{"InstanceId": ids[0], "Monitoring": {"State": "enabled"}}]
    instances = ec2.describe_instances(InstanceIds=ids)["Reservations"][0]["Instances"]
    assert [one["Monitoring"]["State"] for one in instances] == ["enabled", "disabled"]
    ec2.unmonitor_instances(InstanceIds=ids)
    instances = ec2.describe_instances(InstanceIds=ids)["Reservations"][0]["Instances"]
    assert {one["Monitoring"]["State"] for one in instances} == {"disabled"}


def test_a_zone_of_a_vpc_is_private_and_another_is_not(aws: Emulator, ec2: Any) -> None:
    route53 = aws.client("route53")
    vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    place = {"VPCRegion": "us-east-1", "VPCId": vpc}
    zone = route53.create_hosted_zone(Name="lake.test", CallerReference="1", VPC=place)
    assert zone["VPC"] == place
    found = route53.get_hosted_zone(Id=zone["HostedZone"]["Id"])
    assert found["HostedZone"]["Config"]["PrivateZone"]
    assert found["VPCs"] == [place]
    zone = route53.create_hosted_zone(Name="open.test", CallerReference="2")
    assert not zone["HostedZone"]["Config"]["PrivateZone"]


@pytest.mark.parametrize(("kind", "part"), [("network", "net"), ("application", "app")])
def test_load_balancers_are_named_by_their_kind(
    aws: Emulator, ec2: Any, kind: str, part: str
) -> None:
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    balancing = aws.client("elbv2")
    made = balancing.create_load_balancer(Name=part, Subnets=[subnet], Type=kind)
    arn = made["LoadBalancers"][0]["LoadBalancerArn"]
    assert f":loadbalancer/{part}/{part}/" in arn
    found = balancing.describe_load_balancers(LoadBalancerArns=[arn])["LoadBalancers"]
    assert [one["Type"] for one in found] == [kind]


def test_a_launch_templates_own_tags_are_not_its_instances(ec2: Any) -> None:
    own = {"ResourceType": "launch-template", "Tags": [{"Key": "of", "Value": "template"}]}
    theirs = {"ResourceType": "instance", "Tags": [{"Key": "of", "Value": "instance"}]}
    for data, expected in (({}, None), ({"TagSpecifications": [theirs]}, [theirs])):
        template = ec2.create_launch_template(
            LaunchTemplateName=f"lake-{bool(data)}",
            LaunchTemplateData={"InstanceType": "m7i.large", **data},
            TagSpecifications=[own],
        )["LaunchTemplate"]
        assert template["Tags"] == own["Tags"]
        versions = ec2.describe_launch_template_versions(
            LaunchTemplateId=template["LaunchTemplateId"]
        )["LaunchTemplateVersions"]
        assert versions[0]["LaunchTemplateData"].get("TagSpecifications") == expected


def test_a_group_tells_hooks_and_policies_as_they_were_set(aws: Emulator, ec2: Any) -> None:
    scaling = aws.client("autoscaling")
    ec2.create_launch_template(
        LaunchTemplateName="lake",
        LaunchTemplateData={"InstanceType": "m7i.large", "ImageId": IMAGE},
    )
    group = {"AutoScalingGroupName": "lake"}
    scaling.create_auto_scaling_group(
        **group,
        MinSize=0,
        MaxSize=2,
        AvailabilityZones=[ZONE],
        LaunchTemplate={"LaunchTemplateName": "lake", "Version": "$Latest"},
    )
    scaling.put_lifecycle_hook(
        **group,
        LifecycleHookName="drain",
        LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
    )
    (hook,) = scaling.describe_lifecycle_hooks(**group)["LifecycleHooks"]
    assert {"RoleARN", "NotificationTargetARN"}.isdisjoint(hook)
    scaling.put_scaling_policy(
        **group,
        PolicyName="traffic",
        PolicyType="TargetTrackingScaling",
        TargetTrackingConfiguration={
            "PredefinedMetricSpecification": {"PredefinedMetricType": "ASGAverageNetworkIn"},
            "TargetValue": 1e8,
        },
    )
    (policy,) = scaling.describe_policies(**group)["ScalingPolicies"]
    assert policy["Enabled"]
    assert "PredictiveScalingConfiguration" not in policy
    assert policy["TargetTrackingConfiguration"]["TargetValue"] == 1e8


def test_rules_of_groups_and_prefix_lists_keep_their_descriptions(ec2: Any) -> None:
    vpc = ec2.create_vpc(CidrBlock="10.2.0.0/16")["Vpc"]["VpcId"]
    group = ec2.create_security_group(GroupName="lake", Description="lake", VpcId=vpc)["GroupId"]
    filters = [{"Name": "prefix-list-name", "Values": ["com.amazonaws.us-east-1.s3"]}]
    s3 = ec2.describe_managed_prefix_lists(Filters=filters)["PrefixLists"][0]["PrefixListId"]
    sources: list[dict[str, Any]] = [
        {"UserIdGroupPairs": [{"GroupId": group, "Description": "one another"}]},
        {"PrefixListIds": [{"PrefixListId": s3, "Description": "to S3"}]},
        {"IpRanges": [{"CidrIp": "10.2.0.0/16", "Description": "the VPC"}]},
        {"IpRanges": [{"CidrIp": "10.3.0.0/16"}]},
    ]
    for number, source in enumerate(sources):
        ports = {"IpProtocol": "tcp", "FromPort": 9092 + number, "ToPort": 9092 + number}
        ec2.authorize_security_group_egress(GroupId=group, IpPermissions=[ports | source])
    found = ec2.describe_security_group_rules(Filters=[{"Name": "group-id", "Values": [group]}])
    told = {one["FromPort"]: one.get("Description") for one in found["SecurityGroupRules"]}
    expected = {9092: "one another", 9093: "to S3", 9094: "the VPC", 9095: None, -1: None}
    assert told == expected


def test_an_interface_outlives_its_instance_with_its_address(ec2: Any) -> None:
    filters = [{"Name": "availability-zone", "Values": [OTHER_ZONE]}]
    subnet = ec2.describe_subnets(Filters=filters)["Subnets"][0]["SubnetId"]
    made = ec2.create_network_interface(SubnetId=subnet)["NetworkInterface"]
    interface = {"DeviceIndex": 0, "NetworkInterfaceId": made["NetworkInterfaceId"]}
    for _ in range(2):
        started = ec2.run_instances(
            ImageId=IMAGE, MinCount=1, MaxCount=1, NetworkInterfaces=[interface]
        )["Instances"][0]
        assert started["PrivateIpAddress"] == made["PrivateIpAddress"]
        assert started["Placement"]["AvailabilityZone"] == OTHER_ZONE
        ec2.terminate_instances(InstanceIds=[started["InstanceId"]])
        ids = [interface["NetworkInterfaceId"]]
        (found,) = ec2.describe_network_interfaces(NetworkInterfaceIds=ids)["NetworkInterfaces"]
        assert found["Status"] == "available"
        assert "Attachment" not in found
    ec2.delete_network_interface(NetworkInterfaceId=interface["NetworkInterfaceId"])


def test_an_interface_that_came_with_an_instance_ends_with_it(ec2: Any) -> None:
    (one,) = started(ec2)
    mine = [{"Name": "attachment.instance-id", "Values": [one]}]
    (card,) = ec2.describe_network_interfaces(Filters=mine)["NetworkInterfaces"]
    ec2.terminate_instances(InstanceIds=[one])
    left = ec2.describe_network_interfaces()["NetworkInterfaces"]
    assert card["NetworkInterfaceId"] not in {each["NetworkInterfaceId"] for each in left}


def test_an_interface_has_one_instance_and_an_index_one_interface(ec2: Any) -> None:
    subnet = ec2.describe_subnets(Filters=[{"Name": "availability-zone", "Values": [ZONE]}])
    subnet_id = subnet["Subnets"][0]["SubnetId"]
    ids = [
        ec2.create_network_interface(SubnetId=subnet_id)["NetworkInterface"]["NetworkInterfaceId"]
        for _ in range(2)
    ]
    first, second = started(ec2, 2)
    place = {"NetworkInterfaceId": ids[0], "InstanceId": first, "DeviceIndex": 1}
    ec2.attach_network_interface(**place)
    again = place | {"InstanceId": second}
    assert refusal(ec2, "attach_network_interface", **again) == "InvalidNetworkInterface.InUse"
    other = place | {"NetworkInterfaceId": ids[1]}
    assert refusal(ec2, "attach_network_interface", **other) == "InvalidParameterValue"
    ec2.terminate_instances(InstanceIds=[first])
    ec2.attach_network_interface(**again)


MOVED = """
import os
import sys
from tests.terraform import emulator_shim as shim

def moved(me): pass

for part in sys.argv[1:]:
    if os.fork():
        print(part, os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
        continue
    owner, name = shim, part
    while "." in name:
        first, _, name = name.partition(".")
        owner = getattr(owner, first)
    setattr(owner, name, moved)
    try:
        shim.install()
    except shim.ShimMisfit as error:
        os._exit(0 if name.strip("_") in str(error) or "moto is" in str(error) else 2)
    os._exit(1)
"""
PARTS = [
    "EBSBackend.attach_volume",
    "EBSBackend.detach_volume",
    "Instance.__init__",
    "Instance.terminate",
    "LaunchTemplate.__init__",
    "LaunchTemplate.create_version",
    "NetworkInterfaceBackend.attach_network_interface",
    "Monitoring.monitor_instances",
    "Monitoring.unmonitor_instances",
    "Route53Backend.create_hosted_zone",
    "SecurityGroupRule.__init__",
    "SecurityGroupRule.description",
    "Volume.__init__",
    "Volume.attachments",
    "Volume.get_filter_value",
    "balancing.ELBv2Backend.create_load_balancer",
    "balancing.make_arn_for_load_balancer",
    "moto.__version__",
    "groups.scaling.FakeAutoScalingGroup.update",
    "groups.scaling.FakeScalingPolicy.__init__",
    "groups.scaling.LifecycleHook.__init__",
]


def test_a_part_of_moto_that_moved_is_told(aws: Emulator) -> None:
    command = [str(aws.programs / "python"), "-c", MOVED, *PARTS]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{part} 0" for part in PARTS], done.stderr
