"""What a cluster has to be like once Terraform has made it, asked of AWS by boto3."""

import base64
import hashlib
import ipaddress
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import yaml

from tests.terraform.emulator import Emulator

NAME = "lakehead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wal:
    """What each WAL volume has to be."""

    kind: str
    gib: int
    iops: int
    shared: bool


@dataclass(frozen=True)
class Cluster:
    """A cluster that was made: where it is, and its outputs."""

    aws: Emulator
    outputs: Mapping[str, Any]
    bucket: str

    @cached_property
    def ec2(self) -> Any:
        return self.aws.client("ec2")

    @cached_property
    def instances(self) -> dict[str, dict[str, Any]]:
        """The running instances of the cluster by slot."""
        pages = self.ec2.get_paginator("describe_instances").paginate(Filters=_of_cluster())
        found = [one for page in pages for r in page["Reservations"] for one in r["Instances"]]
        running = [one for one in found if one["State"]["Name"] == "running"]
        return {tags(one)["lakehead:slot"]: one for one in running if "lakehead:slot" in tags(one)}

    @cached_property
    def volumes(self) -> dict[str, dict[str, Any]]:
        """The WAL volumes of the cluster by slot."""
        filters = [*_of_cluster(), {"Name": "tag-key", "Values": ["lakehead:wal"]}]
        pages = self.ec2.get_paginator("describe_volumes").paginate(Filters=filters)
        return {tags(one)["lakehead:wal"]: one for page in pages for one in page["Volumes"]}

    @cached_property
    def key_arn(self) -> str:
        """The key that the bucket is encrypted with."""
        told = self.aws.client("s3").get_bucket_encryption(Bucket=self.bucket)
        (rule,) = told["ServerSideEncryptionConfiguration"]["Rules"]
        assert rule["BucketKeyEnabled"]
        assert rule["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] == "aws:kms"
        arn: str = rule["ApplyServerSideEncryptionByDefault"]["KMSMasterKeyID"]
        return arn


def tags(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of something of EC2."""
    return {one["Key"]: one["Value"] for one in found.get("Tags", ())}


def _of_cluster() -> list[dict[str, Any]]:
    return [{"Name": "tag:lakehead:cluster", "Values": [NAME]}]


def check_bucket(cluster: Cluster) -> None:
    """TLS only, nothing public, encrypted by its key, nothing but old uploads ever expires."""
    s3, named = cluster.aws.client("s3"), {"Bucket": cluster.bucket}
    (deny,) = json.loads(s3.get_bucket_policy(**named)["Policy"])["Statement"]
    assert (deny["Effect"], deny["Principal"], deny["Action"]) == ("Deny", "*", "s3:*")
    arn = f"arn:aws:s3:::{cluster.bucket}"
    assert sorted(deny["Resource"]) == [arn, f"{arn}/*"]
    assert deny["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    block = s3.get_public_access_block(**named)["PublicAccessBlockConfiguration"]
    assert len(block) == 4
    assert set(block.values()) == {True}
    (rule,) = s3.get_bucket_lifecycle_configuration(**named)["Rules"]
    assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}
    assert rule["Status"] == "Enabled"
    assert {"Expiration", "Transitions", "NoncurrentVersionExpiration"}.isdisjoint(rule)
    assert s3.get_bucket_versioning(**named).get("Status") != "Enabled"
    owner = s3.get_bucket_ownership_controls(**named)["OwnershipControls"]["Rules"]
    assert owner == [{"ObjectOwnership": "BucketOwnerEnforced"}]
    kms = cluster.aws.client("kms")
    key = kms.describe_key(KeyId=cluster.key_arn)["KeyMetadata"]
    assert key["Arn"] == cluster.key_arn
    assert kms.get_key_rotation_status(KeyId=key["KeyId"])["KeyRotationEnabled"]


def check_volumes(cluster: Cluster, wal: Wal | None, takers: Mapping[str, Iterable[str]]) -> None:
    """Each slot has a volume as `wal` says, attached to the hosts of the slots that are named."""
    if wal is None:
        assert cluster.volumes == {}
        return
    assert set(cluster.volumes) == set(takers) == set(cluster.instances)
    slots = {one["InstanceId"]: slot for slot, one in cluster.instances.items()}
    for slot, volume in cluster.volumes.items():
        found = (volume["VolumeType"], volume["Size"], volume["Iops"])
        assert found == (wal.kind, wal.gib, wal.iops), slot
        assert bool(volume.get("MultiAttachEnabled")) == wal.shared, slot
        assert volume["Encrypted"]
        assert volume["KmsKeyId"] != cluster.key_arn, "a snapshot would go with the bucket's key"
        zone = cluster.instances[slot]["Placement"]["AvailabilityZone"]
        assert volume["AvailabilityZone"] == zone
        attachments = volume["Attachments"]
        assert {slots[a["InstanceId"]] for a in attachments} == set(takers[slot]), slot
        assert {a["State"] for a in attachments} <= {"attached"}
        assert not any(a.get("DeleteOnTermination") for a in attachments)
    for slot, one in cluster.instances.items():
        names = [mapping["DeviceName"] for mapping in one["BlockDeviceMappings"]]
        assert len(names) == len(set(names)), slot


def check_instances(
    cluster: Cluster,
    slots: Mapping[str, int],
    hashes: Mapping[str, str],
) -> None:
    """Each slot has an instance with its node ids, IMDSv2, what was rendered, and its role."""
    assert set(cluster.instances) == set(slots)
    for slot, one in cluster.instances.items():
        options = one["MetadataOptions"]
        assert options["HttpTokens"] == "required"
        assert options["HttpPutResponseHopLimit"] == 1
        assert options["InstanceMetadataTags"] == "enabled"
        assert tags(one)["lakehead:node-id"] == str(slots[slot])
        assert tags(one)["Name"] == f"{NAME}-{slot}"
        assert not one.get("PublicIpAddress")
        assert one["EbsOptimized"]
        check_root_volume(cluster, one)
        check_role(cluster, one["IamInstanceProfile"]["Arn"])
        check_user_data(cluster, slot, one, hashes[slot])


def check_root_volume(cluster: Cluster, instance: Mapping[str, Any]) -> None:
    """The disk that an instance boots from is encrypted, not by the bucket's key, and goes with
    the instance.
    """
    disks = {m["DeviceName"]: m["Ebs"] for m in instance["BlockDeviceMappings"]}
    root = disks[instance["RootDeviceName"]]
    (volume,) = cluster.ec2.describe_volumes(VolumeIds=[root["VolumeId"]])["Volumes"]
    assert (volume["VolumeType"], volume["Encrypted"]) == ("gp3", True)
    assert volume["KmsKeyId"] != cluster.key_arn
    assert root["DeleteOnTermination"]


def check_role(cluster: Cluster, profile_arn: str) -> None:
    """The profile's role is EC2's to take, and may do what the output says and nothing else."""
    iam = cluster.aws.client("iam")
    name = profile_arn.rpartition("/")[2]
    (role,) = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]["Roles"]
    (trust,) = role["AssumeRolePolicyDocument"]["Statement"]
    assert (trust["Principal"], trust["Action"]) == (
        {"Service": "ec2.amazonaws.com"},
        "sts:AssumeRole",
    )
    named = {"RoleName": role["RoleName"]}
    # A policy of AWS' own may do more than a host needs.
    assert iam.list_attached_role_policies(**named)["AttachedPolicies"] == []
    (policy,) = iam.list_role_policies(**named)["PolicyNames"]
    document = iam.get_role_policy(**named, PolicyName=policy)["PolicyDocument"]
    assert document == json.loads(cluster.outputs["broker_policy_json"])


def check_user_data(cluster: Cluster, slot: str, one: Mapping[str, Any], digest: str) -> None:
    """The instance was given what Terraform rendered, and its settings are the slot's own."""
    told = cluster.ec2.describe_instance_attribute(
        InstanceId=one["InstanceId"], Attribute="userData"
    )
    given = base64.b64decode(told["UserData"]["Value"])
    assert hashlib.sha1(given, usedforsecurity=False).hexdigest() == digest
    config = yaml.safe_load(given)
    (file,) = (f for f in config["write_files"] if f["path"] == "/etc/lakehead/host.toml")
    bucket, _, key = cluster.outputs["settings"]["address"].removeprefix("s3://").partition("/")
    shared = cluster.aws.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    assert hashlib.sha256(shared).hexdigest().startswith(cluster.outputs["settings"]["version"])
    settings = tomllib.loads(file["content"] + shared.decode())
    host = cluster.outputs["hosts"][slot]
    assert settings["advertised.host"] == one["PrivateIpAddress"] == host["address"]
    assert str(settings["node.id"]) == str(host["node_id"])
    zone = one["Placement"]["AvailabilityZone"]
    (known,) = cluster.ec2.describe_availability_zones(ZoneNames=[zone])["AvailabilityZones"]
    assert (host["zone"], host["rack"]) == (zone, known["ZoneId"])
    assert settings["broker.rack"] == known["ZoneId"]
    assert settings["wal"] == host["wal"]
    assert settings["store"].startswith(cluster.outputs["store"])


def check_network(cluster: Cluster, allowed: Iterable[str] = ()) -> None:
    """Nothing comes in but from the VPC and from `allowed` ranges, and nothing goes out but to S3
    and within; no instance has a way to the internet.
    """
    (vpc,) = {one["VpcId"] for one in cluster.instances.values()}
    of_vpc = [{"Name": "vpc-id", "Values": [vpc]}]
    cidr = cluster.ec2.describe_vpcs(VpcIds=[vpc])["Vpcs"][0]["CidrBlock"]
    inside = [ipaddress.IPv4Network(one) for one in (cidr, *allowed)]
    used = {
        group["GroupId"]
        for one in cluster.instances.values()
        for card in one["NetworkInterfaces"]
        for group in card["Groups"]
    }
    groups = cluster.ec2.describe_security_groups(Filters=of_vpc)["SecurityGroups"]
    assert used
    assert used <= {group["GroupId"] for group in groups if group["GroupName"] != "default"}
    for group in groups:
        if group["GroupId"] not in used:
            continue
        assert group["IpPermissions"]
        for rule in group["IpPermissions"]:
            assert not rule["Ipv6Ranges"]
            sources = [ipaddress.IPv4Network(one["CidrIp"]) for one in rule["IpRanges"]]
            assert all(any(one.subnet_of(i) for i in inside) for one in sources), rule
            assert {one["GroupId"] for one in rule["UserIdGroupPairs"]} <= used
            assert rule["ToPort"] - rule["FromPort"] < 100
        for rule in group["IpPermissionsEgress"]:
            targets = [ipaddress.IPv4Network(one["CidrIp"]) for one in rule["IpRanges"]]
            assert all(any(one.subnet_of(i) for i in inside) for one in targets), rule
            assert not rule["Ipv6Ranges"]
    for zone in cluster.instances.values():
        assert not zone.get("PublicIpAddress")
    endpoints = cluster.ec2.describe_vpc_endpoints(Filters=of_vpc)["VpcEndpoints"]
    s3 = [one for one in endpoints if one["ServiceName"].endswith(".s3")]
    assert [one["VpcEndpointType"] for one in s3] == ["Gateway"]
    assert s3[0]["RouteTableIds"]
    attached = [{"Name": "attachment.vpc-id", "Values": [vpc]}]
    assert cluster.ec2.describe_internet_gateways(Filters=attached)["InternetGateways"] == []


def check_default_group_is_closed(cluster: Cluster) -> None:
    """The group that whatever names none is in lets nothing in or out."""
    (vpc,) = {one["VpcId"] for one in cluster.instances.values()}
    filters = [
        {"Name": "vpc-id", "Values": [vpc]},
        {"Name": "group-name", "Values": ["default"]},
    ]
    (group,) = cluster.ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
    assert (group["IpPermissions"], group["IpPermissionsEgress"]) == ([], [])


def check_alarms(cluster: Cluster) -> None:
    """Each host has its alarms, of the instance that is there now, and the dashboard has it."""
    watch, hosts = cluster.aws.client("cloudwatch"), cluster.instances.values()
    seen: dict[str, set[str]] = {}
    for alarm in watch.describe_alarms()["MetricAlarms"]:
        for one in alarm["Dimensions"]:
            seen.setdefault(one["Value"], set()).add(alarm["MetricName"])
    of_host = {"StatusCheckFailed", "CPUUtilization"}
    of_host |= {"StatusCheckFailed_System", "StatusCheckFailed_Instance"}
    expected = {one["InstanceId"]: set(of_host) for one in hosts}
    for one in hosts if cluster.volumes else ():
        expected[one["InstanceId"]].add("StatusCheckFailed_AttachedEBS")
    expected |= {one["VolumeId"]: {"VolumeQueueLength"} for one in cluster.volumes.values()}
    assert seen == expected
    named = f"{NAME}-{cluster.bucket}"
    assert all(
        one["AlarmName"].startswith(f"{named}-") for one in watch.describe_alarms()["MetricAlarms"]
    )
    body = watch.get_dashboard(DashboardName=named)["DashboardBody"]
    assert all(one["InstanceId"] in body for one in hosts)
    assert all(one["VolumeId"] in body for one in cluster.volumes.values())


def check_healing(cluster: Cluster) -> None:
    """EC2 is asked to bring back each host that is there now, whatever becomes of it."""
    ids = {one["InstanceId"] for one in cluster.instances.values()}
    done: dict[str, set[str]] = {}
    for alarm in cluster.aws.client("cloudwatch").describe_alarms()["MetricAlarms"]:
        for action in alarm["AlarmActions"]:
            if ":automate:" in action:
                (dimension,) = alarm["Dimensions"]
                done.setdefault(dimension["Value"], set()).add(action.rpartition(":")[2])
    assert done == {one: {"recover", "reboot"} for one in ids}
    events = cluster.aws.client("events")
    rules = [one for one in events.list_rules()["Rules"] if one["Name"].startswith(f"{NAME}-stop")]
    assert {one["State"] for one in rules} == {"ENABLED"}
    patterns = [json.loads(one["EventPattern"])["detail"] for one in rules]
    assert {one for found in patterns for one in found["instance-id"]} == ids
    assert {one for found in patterns for one in found["state"]} == {"stopped"}
    for rule in rules:
        (target,) = events.list_targets_by_rule(Rule=rule["Name"])["Targets"]
        assert target["Arn"].endswith(":automation-definition/AWS-StartEC2Instance:$DEFAULT")
        assert "<instance>" in target["InputTransformer"]["InputTemplate"]
