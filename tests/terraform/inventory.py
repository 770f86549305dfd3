"""All that an account has, by boto3: what is left after a destroy, what a refused apply made."""

from collections.abc import Callable, Iterable
from typing import Any

from tests.terraform.emulator import Emulator

GONE = {"terminated", "deleted"}


def inventory(aws: Emulator) -> set[str]:
    """Return everything of the kinds that our modules make, each with its kind and its name."""
    return {f"{kind} {one}" for kind, list_of in KINDS.items() for one in list_of(aws)}


def _ec2(call: str, field: str, name: str) -> Callable[[Emulator], Iterable[str]]:
    def found(aws: Emulator) -> Iterable[str]:
        pages = aws.client("ec2").get_paginator(call).paginate()
        return [one[name] for page in pages for one in page[field] if one.get("State") not in GONE]

    return found


def _instances(aws: Emulator) -> Iterable[str]:
    pages = aws.client("ec2").get_paginator("describe_instances").paginate()
    return [
        one["InstanceId"]
        for page in pages
        for group in page["Reservations"]
        for one in group["Instances"]
        if one["State"]["Name"] not in GONE
    ]


def _rules(aws: Emulator) -> Iterable[str]:
    pages = aws.client("ec2").get_paginator("describe_security_group_rules").paginate()
    return [one["SecurityGroupRuleId"] for page in pages for one in page["SecurityGroupRules"]]


def _keys(aws: Emulator) -> Iterable[str]:
    """Those that are ours (AWS makes `aws/ebs` and its like by itself) and not about to be deleted:
    a key of KMS goes after its time to come back.
    """
    kms = aws.client("kms")
    of_aws = {
        one.get("TargetKeyId")
        for one in kms.list_aliases()["Aliases"]
        if one["AliasName"].startswith("alias/aws/")
    }
    ids = [one["KeyId"] for one in kms.list_keys()["Keys"] if one["KeyId"] not in of_aws]
    told = [kms.describe_key(KeyId=key)["KeyMetadata"] for key in ids]
    return [one["KeyId"] for one in told if one["KeyState"] != "PendingDeletion"]


def _listed(service: str, call: str, field: str, name: str, **given: Any) -> Any:
    def found(aws: Emulator) -> Iterable[str]:
        answer = getattr(aws.client(service), call)(**given)
        return [one[name] if name else one for one in answer[field]]

    return found


KINDS: dict[str, Callable[[Emulator], Iterable[str]]] = {
    "instance": _instances,
    "volume": _ec2("describe_volumes", "Volumes", "VolumeId"),
    "snapshot": _listed("ec2", "describe_snapshots", "Snapshots", "SnapshotId", OwnerIds=["self"]),
    "network interface": _ec2(
        "describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId"
    ),
    "vpc": _ec2("describe_vpcs", "Vpcs", "VpcId"),
    "subnet": _ec2("describe_subnets", "Subnets", "SubnetId"),
    "route table": _ec2("describe_route_tables", "RouteTables", "RouteTableId"),
    "internet gateway": _ec2("describe_internet_gateways", "InternetGateways", "InternetGatewayId"),
    "nat gateway": _ec2("describe_nat_gateways", "NatGateways", "NatGatewayId"),
    "endpoint": _ec2("describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId"),
    "endpoint service": _listed(
        "ec2", "describe_vpc_endpoint_service_configurations", "ServiceConfigurations", "ServiceId"
    ),
    "security group": _ec2("describe_security_groups", "SecurityGroups", "GroupId"),
    "security group rule": _rules,
    "launch template": _ec2("describe_launch_templates", "LaunchTemplates", "LaunchTemplateId"),
    "scaling group": _listed(
        "autoscaling", "describe_auto_scaling_groups", "AutoScalingGroups", "AutoScalingGroupName"
    ),
    "bucket": _listed("s3", "list_buckets", "Buckets", "Name"),
    "key": _keys,
    "role": _listed("iam", "list_roles", "Roles", "RoleName"),
    "policy": _listed("iam", "list_policies", "Policies", "PolicyName", Scope="Local"),
    "instance profile": _listed(
        "iam", "list_instance_profiles", "InstanceProfiles", "InstanceProfileName"
    ),
    "alarm": _listed("cloudwatch", "describe_alarms", "MetricAlarms", "AlarmName"),
    "dashboard": _listed("cloudwatch", "list_dashboards", "DashboardEntries", "DashboardName"),
    "secret": _listed("secretsmanager", "list_secrets", "SecretList", "Name"),
    "load balancer": _listed("elbv2", "describe_load_balancers", "LoadBalancers", "DNSName"),
    "target group": _listed("elbv2", "describe_target_groups", "TargetGroups", "TargetGroupName"),
    "zone": _listed("route53", "list_hosted_zones", "HostedZones", "Name"),
    "rule of events": _listed("events", "list_rules", "Rules", "Name"),
}
