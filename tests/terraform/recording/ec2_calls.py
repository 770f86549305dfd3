"""Requests of brokers on EC2 to AWS: every call of `lakehead.storage.aws` and
`lakehead.broker.ec2`, and the permissions that it needs.

By "Actions, resources, and condition keys" for Amazon EC2, Amazon EC2 Auto Scaling and AWS KMS
(service authorization reference), and for encrypted volumes "Requirements for Amazon EBS
encryption".
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from lakehead.broker.ec2.lifecycle import Boto3ScalingGroups
from lakehead.broker.ec2.slots import Boto3NetworkInterfaces
from lakehead.storage.aws.ec2 import Boto3Ec2
from tests.terraform.policy_cases import ACCOUNT, BUCKET, KEY, REGION, Case
from tests.terraform.recording.aws_door import AwsCall

ROOT = Path(__file__).resolve().parents[3]
SOURCES = (ROOT / "storage" / "aws", ROOT / "broker" / "ec2")
VOLUME, INSTANCE, INTERFACE, GROUP = "vol-1", "i-1", "eni-1", "lakehead"
OF_CLUSTER = {"lakehead:bucket": BUCKET, "lakehead:cluster": "lakehead"}
TAGS: Mapping[str, Mapping[str, str]] = {
    VOLUME: {**OF_CLUSTER, "lakehead:wal": "a-0"},
    INSTANCE: {**OF_CLUSTER, "lakehead:slot": "a-0"},
    INTERFACE: {**OF_CLUSTER, "lakehead:slot": "a-0"},
    GROUP: OF_CLUSTER,
}
GRANT = {
    "kms:ViaService": f"ec2.{REGION}.amazonaws.com",
    "kms:GrantIsForAWSResource": "true",
    "kms:GrantConstraintType": "EncryptionContextSubset",
}


async def ask_all() -> None:
    """Ask everything once. AWS is where the environment says."""
    ec2 = Boto3Ec2(REGION)
    await ec2.volumes(tags=TAGS[VOLUME])
    await ec2.instance(INSTANCE)
    await ec2.attach(VOLUME, INSTANCE, "/dev/sdf")
    await ec2.detach(VOLUME, INSTANCE, by_force=True)
    interfaces = Boto3NetworkInterfaces(REGION)
    await interfaces.interfaces(OF_CLUSTER)
    await interfaces.attach(INTERFACE, INSTANCE, 1)
    groups = Boto3ScalingGroups(REGION)
    await groups.complete(GROUP, "lakehead-serving", INSTANCE)
    await groups.set_unhealthy(INSTANCE)


def operations() -> set[str]:
    """Return what the sources ask of boto3's clients, as AWS calls it."""
    text = "".join(source.read_text() for folder in SOURCES for source in folder.glob("*.py"))
    called = set(re.findall(r"(?<![.\w])client\.([a-z_]+)\(", text)) - {"get_paginator"}
    called |= set(re.findall(r'get_paginator\("(\w+)"\)', text))
    return {"".join(part.title() for part in name.split("_")) for name in called}


def needed_on_ec2(call: AwsCall, tags: Mapping[str, Mapping[str, str]] = TAGS) -> Iterator[Case]:
    """Yield what a call needs, where things have these tags."""
    service, _, name = call.action.partition(":")
    if name.startswith("Describe"):
        yield Case(call.action, call.action)
        return
    ec2 = f"arn:aws:ec2:{REGION}:{ACCOUNT}"
    places = {
        "VolumeId": f"{ec2}:volume/",
        "InstanceId": f"{ec2}:instance/",
        "NetworkInterfaceId": f"{ec2}:network-interface/",
    }
    if service == "autoscaling":
        group = f"arn:aws:autoscaling:{REGION}:{ACCOUNT}:autoScalingGroup:00000000-0000"
        places = {"AutoScalingGroupName": f"{group}:autoScalingGroupName/"}
        if name == "SetInstanceHealth":  # it names the instance, and needs its group
            context = {f"aws:ResourceTag/{tag}": value for tag, value in tags[GROUP].items()}
            yield Case(call.action, call.action, f"{group}:autoScalingGroupName/{GROUP}", context)
    for parameter, place in places.items():
        for named in call.named(parameter):
            context = {
                f"{of}:ResourceTag/{tag}": value
                for tag, value in tags[named].items()
                for of in ("aws", service)
            }
            yield Case(call.action, call.action, f"{place}{named}", context)
    if name == "AttachVolume":
        yield Case(call.action, "kms:CreateGrant", KEY, GRANT)
