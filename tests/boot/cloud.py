"""The AWS that guests live in: Terraform's apply against the emulator, and a real S3 server.

All of it is in a network namespace of its own, in which loopback has the instances' addresses and
that of the metadata service; nothing leads out of it.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.process import free_port
from bench.s3_server import S3Server
from tests.boot.container import GATEWAY
from tests.boot.image import run
from tests.boot.metadata import ADDRESS
from tests.terraform.emulator import Emulator, emulator
from tests.terraform.terraform import Terraform, copied, environment

PROJECT = Path(__file__).resolve().parents[2]
BUCKET, PACKAGES, WHEELS = "boot-test-lake", "packages", "wheels"
NODES = 2
"""Of each host."""
# An emulator that does not respond is given up at once. Machines reach no Secrets Manager. Nothing
# is uploaded but by a takeover or a stop: what is read after it was in the log that was recovered.
_OVERRIDE = """\
provider "aws" {
  max_retries = 3
}
module "lakehead" {
  nodes_per_host = 2
  security       = { protocol = "PLAINTEXT" }
  settings       = { "upload.age.ms" = "3600000" }
  wal_mode       = "%s"
  wal_volume     = { gib = 10 }
}
"""
_TARGETS = ("module.lakehead.module.brokers", "module.lakehead.module.wal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """An instance as EC2 tells of it."""

    slot: str
    instance_id: str
    address: str
    subnet: str
    mac: str
    zone: str
    user_data: str
    tags: Mapping[str, str]
    volume_id: str
    """Of the WAL; empty where that is in the bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """What runs beside the machines."""

    s3: S3Server
    aws: Emulator
    instances: Mapping[str, Described]

    def variables(self, host: str) -> dict[str, str]:
        """Return what leads a machine here; `host` is how it sees this test's loopback."""
        return {
            "AWS_ENDPOINT_URL": self.s3.endpoint,
            "AWS_ENDPOINT_URL_EC2": f"http://{host}:{self.aws.address.rpartition(':')[2]}",
            "AWS_ALLOW_HTTP": "true",
        }


def open_network() -> None:
    """Make loopback ready, in a network namespace that has nothing else."""
    run("ip", "link", "set", "lo", "up")
    add_address(ADDRESS)


def add_address(address: str) -> None:
    """Give this network an address."""
    run("ip", "address", "add", f"{address}/32", "dev", "lo")


def add_guest_address(address: str) -> None:
    """Give this network the address of a guest. Who connects to it comes from another one: QEMU
    passes that on, and a guest takes no packet that comes from itself.
    """
    add_address(address)
    local = ("local", address, "dev", "lo", "src", ADDRESS)
    run("ip", "route", "replace", "table", "local", *local)


@contextmanager
def running_cloud(folder: Path, example: str, wal_mode: str) -> Iterator[Cloud]:
    """Apply an example and serve its bucket; the wheels are put where it names them."""
    s3 = S3Server(folder=folder / "s3", endpoint=f"http://{GATEWAY}:{free_port()}", bucket=BUCKET)
    s3.start()
    try:
        for bucket in (BUCKET, PACKAGES):
            s3.create_bucket(bucket)
        digest = _digest(folder / WHEELS)
        _upload(s3, folder / WHEELS)
        with emulator(folder / "emulator.log") as aws:
            wheel = next((folder / WHEELS).glob("lakehead-*.whl")).name
            variables = {
                "bucket": BUCKET,
                "lakehead_wheel": f"s3://{PACKAGES}/lakehead/{wheel}",
                "package_sha256": digest,
            }
            # Where Terraform looks for it; what is in it, machines fetch from the other server.
            aws.client("s3").create_bucket(Bucket=PACKAGES)
            terraform = Terraform(
                folder=copied(folder) / "examples" / example,
                environment=environment(folder) | aws.environment(),
                variables=variables,
            )
            _apply(terraform, wal_mode)
            _copy_settings(aws, s3)
            yield Cloud(s3=s3, aws=aws, instances=_instances(aws))
    finally:
        s3.stop()


def make_wheels(folder: Path) -> None:
    """Make the folder of wheels as docs/terraform.md says; pip's cache makes it quick."""
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", folder / WHEELS, PROJECT)


def _digest(wheels: Path) -> str:
    """List the checksums of the wheels beside them; return that of the list."""
    sums = [
        f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel.name}\n"
        for wheel in sorted(wheels.glob("*.whl"))
    ]
    (wheels / "SHA256SUMS").write_text("".join(sums))
    return hashlib.sha256("".join(sums).encode()).hexdigest()


def _client(s3: S3Server) -> Any:
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=s3.endpoint,
        region_name=s3.region,
        aws_access_key_id=s3.access_key,
        aws_secret_access_key=s3.secret_key,
    )


def _upload(s3: S3Server, wheels: Path) -> None:
    client = _client(s3)
    for wheel in wheels.iterdir():
        client.upload_file(str(wheel), PACKAGES, f"lakehead/{wheel.name}")
    client.close()


def _copy_settings(aws: Emulator, s3: S3Server) -> None:
    """Put the settings that Terraform wrote where machines look for them."""
    client = _client(s3)
    for name in ("brokers.toml", "cloudwatch.jsonl"):
        key = f"lakehead-settings/{name}"
        content = aws.client("s3").get_object(Bucket=BUCKET, Key=key)["Body"].read()
        client.put_object(Bucket=BUCKET, Key=key, Body=content)
    client.close()


def _apply(terraform: Terraform, wal_mode: str) -> None:
    terraform.override("boot", _OVERRIDE % wal_mode)
    terraform.init()
    targets = [f"-target={target}" for target in _TARGETS]
    variables = [f"-var={name}={value}" for name, value in terraform.variables.items()]
    terraform.run("apply", "-auto-approve", "-input=false", "-no-color", *targets, *variables)


def _instances(aws: Emulator) -> dict[str, Described]:
    ec2 = aws.client("ec2")
    groups = ec2.describe_instances()["Reservations"]
    found = [_described(ec2, instance) for group in groups for instance in group["Instances"]]
    return {one.slot: one for one in sorted(found, key=lambda one: one.slot)}


def _described(ec2: Any, instance: Mapping[str, Any]) -> Described:
    instance_id = instance["InstanceId"]
    said = ec2.describe_instance_attribute(InstanceId=instance_id, Attribute="userData")
    card = instance["NetworkInterfaces"][0]
    subnet = ec2.describe_subnets(SubnetIds=[card["SubnetId"]])["Subnets"][0]
    tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
    # Found as a host finds it, which attaches it: by its tag.
    of_slot = [{"Name": "tag:lakehead:wal", "Values": [tags["lakehead:slot"]]}]
    of_wal = [one["VolumeId"] for one in ec2.describe_volumes(Filters=of_slot)["Volumes"]]
    return Described(
        slot=tags["lakehead:slot"],
        instance_id=instance_id,
        address=card["PrivateIpAddress"],
        subnet=subnet["CidrBlock"],
        mac=card["MacAddress"],
        zone=instance["Placement"]["AvailabilityZone"],
        user_data=base64.b64decode(said["UserData"]["Value"]).decode(),
        tags=tags,
        volume_id=of_wal[0] if of_wal else "",
    )
