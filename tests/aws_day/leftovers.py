"""Of a run, all that there is in the account: found by its tag or its name, and removed without
Terraform's help.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.aws_day.account import TAG, TRIAL_TAG, Account
from tests.aws_day.experiments import remove_role
from tests.aws_day.limits import DayClock

_ROUNDS = 40
_PAUSE_S = 15.0
_GONE = {"terminated", "deleted", "deleting"}


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """Something of a run: its kind and AWS's name for it."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def leftovers(account: Account, trial: str = "") -> list[Piece]:
    """Return what there is of a run, or of one of its trials: whatever costs or stands in the way.

    A key that is about to be deleted is gone: KMS waits seven days at the least, and takes nothing
    for it. What the tagging service has and no kind here knows is of the kind "other".
    """
    return sorted({Piece(kind, name) for kind, found in FINDERS for name in found(account, trial)})


def clean(account: Account, clock: DayClock, tell: Callable[[str], object]) -> list[Piece]:
    """Remove what there is of a run; return what is left in spite of it. Pieces hold on to each
    other and go slowly, so it is tried again for ten minutes.
    """
    for attempt in range(_ROUNDS):
        found = leftovers(account)
        if not found:
            return []
        order = list(REMOVERS)
        for piece in sorted(found, key=lambda one: order.index(one.kind)):
            try:
                REMOVERS[piece.kind](account, piece.name)
            except Exception as error:
                # Of any service, for any reason: the next piece has nothing to do with it.
                if attempt in {0, _ROUNDS - 1}:
                    tell(f"{piece} stays for now: {error}")
        if leftovers(account):
            clock.sleep(_PAUSE_S)
    return leftovers(account)


def empty_bucket(account: Account, bucket: str) -> None:
    """Delete all that a bucket holds, with versions and unfinished uploads. Its policy goes first,
    which may deny just that.
    """
    s3 = account.client("s3")
    s3.delete_bucket_policy(Bucket=bucket)
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
        found = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
        keys = [{"Key": one["Key"], "VersionId": one["VersionId"]} for one in found]
        if keys:
            s3.delete_objects(Bucket=bucket, Delete={"Objects": keys, "Quiet": True})
    for page in s3.get_paginator("list_multipart_uploads").paginate(Bucket=bucket):
        for one in page.get("Uploads", ()):
            s3.abort_multipart_upload(Bucket=bucket, Key=one["Key"], UploadId=one["UploadId"])


def _prefix(account: Account, trial: str) -> str:
    return f"{account.run}-{trial}" if trial else account.run


def _is_of(tags: Iterable[dict[str, str]], account: Account, trial: str) -> bool:
    found = {one["Key"]: one["Value"] for one in tags}
    return found.get(TAG) == account.run and (not trial or found.get(TRIAL_TAG) == trial)


def _ec2(call: str, field: str, name: str) -> Callable[[Account, str], list[str]]:
    def found(account: Account, trial: str) -> list[str]:
        filters = [{"Name": f"tag:{TAG}", "Values": [account.run]}]
        if trial:
            filters.append({"Name": f"tag:{TRIAL_TAG}", "Values": [trial]})
        pages = account.client("ec2").get_paginator(call).paginate(Filters=filters)
        return [
            one[name]
            for page in pages
            for one in page[field]
            if str(one.get("State", one.get("Status", ""))).lower() not in _GONE
        ]

    return found


def _instances(account: Account, trial: str) -> list[str]:
    filters = [{"Name": f"tag:{TAG}", "Values": [account.run]}]
    if trial:
        filters.append({"Name": f"tag:{TRIAL_TAG}", "Values": [trial]})
    pages = account.client("ec2").get_paginator("describe_instances").paginate(Filters=filters)
    return [
        one["InstanceId"]
        for page in pages
        for group in page["Reservations"]
        for one in group["Instances"]
        if one["State"]["Name"] != "terminated"
    ]


def _groups(account: Account, trial: str) -> list[str]:
    pages = account.client("autoscaling").get_paginator("describe_auto_scaling_groups").paginate()
    return [
        one["AutoScalingGroupName"]
        for page in pages
        for one in page["AutoScalingGroups"]
        if _is_of(one["Tags"], account, trial)
    ]


def _named(
    service: str, call: str, field: str, name: str, **given: str
) -> Callable[[Account, str], list[str]]:
    """Find by the beginning of the name, with which all names of a run begin."""

    def found(account: Account, trial: str) -> list[str]:
        client = account.client(service)
        told = client.get_paginator(call).paginate(**given) if client.can_paginate(call) else []
        pages = told or [getattr(client, call)(**given)]
        prefix = _prefix(account, trial)
        names = [one if not name else one[name] for page in pages for one in page.get(field, ())]
        return [one for one in names if one.startswith(prefix)]

    return found


def _directory_buckets(account: Account, trial: str) -> list[str]:
    found = _named("s3", "list_directory_buckets", "Buckets", "Name")(account, trial)
    return [one for one in found if one.endswith("--x-s3")]  # an emulator may list the others too


def _policies(account: Account, trial: str) -> list[str]:
    pages = account.client("iam").get_paginator("list_policies").paginate(Scope="Local")
    prefix = _prefix(account, trial)
    return [
        one["Arn"]
        for page in pages
        for one in page["Policies"]
        if one["PolicyName"].startswith(prefix)
    ]


def _templates(account: Account, trial: str) -> list[str]:
    found = account.client("fis").list_experiment_templates()["experimentTemplates"]
    return [
        one["id"]
        for one in found
        if _is_of(
            [{"Key": key, "Value": value} for key, value in one.get("tags", {}).items()],
            account,
            trial,
        )
    ]


def _keys(account: Account, trial: str) -> list[str]:
    kms = account.client("kms")
    ids = [
        one["KeyId"] for page in kms.get_paginator("list_keys").paginate() for one in page["Keys"]
    ]
    found = []
    for key in ids:
        told = kms.describe_key(KeyId=key)["KeyMetadata"]
        if told["KeyManager"] != "CUSTOMER" or told["KeyState"] == "PendingDeletion":
            continue
        tags = kms.list_resource_tags(KeyId=key)["Tags"]
        named = [{"Key": one["TagKey"], "Value": one["TagValue"]} for one in tags]
        if _is_of(named, account, trial):
            found.append(key)
    return found


# What finds by itself, above and below; of these services the tagging service is not believed: it
# has what is gone for a while.
_KNOWN = {
    *("ec2", "s3", "kms", "iam", "autoscaling", "fis"),
    *("cloudwatch", "logs", "events", "s3express", "secretsmanager"),
}


def _others(account: Account, trial: str) -> list[str]:
    filters = [{"Key": TAG, "Values": [account.run]}]
    if trial:
        filters.append({"Key": TRIAL_TAG, "Values": [trial]})
    client = account.client("resourcegroupstaggingapi")
    pages = client.get_paginator("get_resources").paginate(TagFilters=filters)
    arns = [one["ResourceARN"] for page in pages for one in page["ResourceTagMappingList"]]
    return [one for one in arns if one.split(":")[2] not in _KNOWN]


def _remove_group(account: Account, name: str) -> None:
    account.client("autoscaling").delete_auto_scaling_group(
        AutoScalingGroupName=name, ForceDelete=True
    )


def _terminate(account: Account, name: str) -> None:
    account.client("ec2").terminate_instances(InstanceIds=[name])


def _remove_security_group(account: Account, name: str) -> None:
    ec2 = account.client("ec2")
    (group,) = ec2.describe_security_groups(GroupIds=[name])["SecurityGroups"]
    if group["IpPermissions"]:  # groups that name each other hold each other
        ec2.revoke_security_group_ingress(GroupId=name, IpPermissions=group["IpPermissions"])
    if group["IpPermissionsEgress"]:
        ec2.revoke_security_group_egress(GroupId=name, IpPermissions=group["IpPermissionsEgress"])
    if group["GroupName"] != "default":
        ec2.delete_security_group(GroupId=name)


def _remove_vpc(account: Account, name: str) -> None:
    ec2 = account.client("ec2")
    for one in ec2.describe_internet_gateways(
        Filters=[{"Name": "attachment.vpc-id", "Values": [name]}]
    )["InternetGateways"]:
        ec2.detach_internet_gateway(InternetGatewayId=one["InternetGatewayId"], VpcId=name)
        ec2.delete_internet_gateway(InternetGatewayId=one["InternetGatewayId"])
    ec2.delete_vpc(VpcId=name)


def _remove_route_table(account: Account, name: str) -> None:
    ec2 = account.client("ec2")
    (table,) = ec2.describe_route_tables(RouteTableIds=[name])["RouteTables"]
    for one in table["Associations"]:
        if not one["Main"]:
            ec2.disassociate_route_table(AssociationId=one["RouteTableAssociationId"])
    ec2.delete_route_table(RouteTableId=name)


def _remove_interface(account: Account, name: str) -> None:
    account.client("ec2").delete_network_interface(NetworkInterfaceId=name)


def _remove_volume(account: Account, name: str) -> None:
    account.client("ec2").delete_volume(VolumeId=name)


def _remove_bucket(account: Account, name: str) -> None:
    empty_bucket(account, name)
    account.client("s3").delete_bucket(Bucket=name)


def _remove_directory_bucket(account: Account, name: str) -> None:
    s3 = account.client("s3")
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=name):
        keys = [{"Key": one["Key"]} for one in page.get("Contents", ())]
        if keys:
            s3.delete_objects(Bucket=name, Delete={"Objects": keys, "Quiet": True})
    s3.delete_bucket(Bucket=name)


def _remove_profile(account: Account, name: str) -> None:
    iam = account.client("iam")
    for one in iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]["Roles"]:
        iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=one["RoleName"])
    iam.delete_instance_profile(InstanceProfileName=name)


def _remove_rule(account: Account, name: str) -> None:
    events = account.client("events")
    ids = [one["Id"] for one in events.list_targets_by_rule(Rule=name)["Targets"]]
    if ids:
        events.remove_targets(Rule=name, Ids=ids)
    events.delete_rule(Name=name)


def _remove_key(account: Account, name: str) -> None:
    kms = account.client("kms")
    root = {"AWS": f"arn:aws:iam::{account.account_id}:root"}
    allowed = {"Effect": "Allow", "Principal": root, "Action": "kms:*", "Resource": "*"}
    # The modules' own policy denies the deletion of a key that data may need.
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    kms.put_key_policy(KeyId=name, PolicyName="default", Policy=policy)
    kms.schedule_key_deletion(KeyId=name, PendingWindowInDays=7)


def _remove_other(account: Account, name: str) -> None:
    raise NotImplementedError(f"{account.run} has {name}, of a kind that is removed by hand")


FINDERS: list[tuple[str, Callable[[Account, str], list[str]]]] = [
    ("scaling group", _groups),
    ("instance", _instances),
    *(
        (kind, _ec2(call, field, name))
        for kind, call, field, name in (
            ("launch template", "describe_launch_templates", "LaunchTemplates", "LaunchTemplateId"),
            ("endpoint", "describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId"),
            ("volume", "describe_volumes", "Volumes", "VolumeId"),
            ("snapshot", "describe_snapshots", "Snapshots", "SnapshotId"),
            (
                "network interface",
                "describe_network_interfaces",
                "NetworkInterfaces",
                "NetworkInterfaceId",
            ),
            ("security group", "describe_security_groups", "SecurityGroups", "GroupId"),
            ("subnet", "describe_subnets", "Subnets", "SubnetId"),
            ("route table", "describe_route_tables", "RouteTables", "RouteTableId"),
            ("vpc", "describe_vpcs", "Vpcs", "VpcId"),
        )
    ),
    ("bucket", _named("s3", "list_buckets", "Buckets", "Name")),
    ("directory bucket", _directory_buckets),
    ("alarm", _named("cloudwatch", "describe_alarms", "MetricAlarms", "AlarmName")),
    ("dashboard", _named("cloudwatch", "list_dashboards", "DashboardEntries", "DashboardName")),
    ("log group", _named("logs", "describe_log_groups", "logGroups", "logGroupName")),
    ("secret", _named("secretsmanager", "list_secrets", "SecretList", "Name")),
    ("rule of events", _named("events", "list_rules", "Rules", "Name")),
    (
        "instance profile",
        _named("iam", "list_instance_profiles", "InstanceProfiles", "InstanceProfileName"),
    ),
    ("role", _named("iam", "list_roles", "Roles", "RoleName")),
    ("policy", _policies),
    ("experiment template", _templates),
    ("key", _keys),
    ("other", _others),
]
REMOVERS: dict[str, Callable[[Account, str], object]] = {
    "experiment template": lambda at, name: at.client("fis").delete_experiment_template(id=name),
    "scaling group": _remove_group,
    "launch template": lambda at, name: at.client("ec2").delete_launch_template(
        LaunchTemplateId=name
    ),
    "instance": _terminate,
    "endpoint": lambda at, name: at.client("ec2").delete_vpc_endpoints(VpcEndpointIds=[name]),
    "volume": _remove_volume,
    "snapshot": lambda at, name: at.client("ec2").delete_snapshot(SnapshotId=name),
    "network interface": _remove_interface,
    "security group": _remove_security_group,
    "subnet": lambda at, name: at.client("ec2").delete_subnet(SubnetId=name),
    "route table": _remove_route_table,
    "vpc": _remove_vpc,
    "bucket": _remove_bucket,
    "directory bucket": _remove_directory_bucket,
    "alarm": lambda at, name: at.client("cloudwatch").delete_alarms(AlarmNames=[name]),
    "dashboard": lambda at, name: at.client("cloudwatch").delete_dashboards(DashboardNames=[name]),
    "log group": lambda at, name: at.client("logs").delete_log_group(logGroupName=name),
    "secret": lambda at, name: at.client("secretsmanager").delete_secret(
        SecretId=name, ForceDeleteWithoutRecovery=True
    ),
    "rule of events": _remove_rule,
    "instance profile": _remove_profile,
    "role": lambda at, name: remove_role(at.client("iam"), name),
    "policy": lambda at, name: at.client("iam").delete_policy(PolicyArn=name),
    "key": _remove_key,
    "other": _remove_other,
}
"""How each kind is removed, in the order that suits them best."""
