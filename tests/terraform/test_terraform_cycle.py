"""Every example as its user lives with it: applied to an AWS of this machine, looked at by boto3,
changed, and removed again. `make tf-cycle` runs this.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.terraform.broker_side import (
    check_a_volume_alone_moves_from_a_stopped_host,
    check_takers_have_the_disk,
    hosts_attach_their_own,
)
from tests.terraform.cluster_checks import (
    Cluster,
    Wal,
    check_alarms,
    check_bucket,
    check_default_group_is_closed,
    check_healing,
    check_instances,
    check_network,
    check_volumes,
)
from tests.terraform.emulator import Emulator, emulator
from tests.terraform.inventory import inventory
from tests.terraform.terraform import NotHere, Terraform, copied, environment, plain, program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
BUCKET = "lake-of-the-cycle"
DIGEST = "0123456789abcdef" * 4
WHEEL = "s3://packages/lakehead/lakehead-1.0-py3-none-any.whl"
# The provider's own 25 tries make minutes of each call that the emulator does not know. With one, a
# connection that the emulator closes too early on a busy machine fails an apply.
OVERRIDE = 'provider "aws" {\n  max_retries = 3\n}\n'
SETTINGS_OBJECT = "module.lakehead.module.brokers.aws_s3_object.settings"
AGENT_OBJECT = "module.lakehead.module.brokers.aws_s3_object.agent"
LOG_GROUP = "module.lakehead.module.cloudwatch[0].aws_cloudwatch_log_group.this"
HOST = "module.lakehead.module.brokers.aws_instance.host"
INTERFACE = "module.lakehead.module.brokers.aws_network_interface.host"
VOLUME = "module.lakehead.module.wal[0].aws_ebs_volume.wal"
ATTACHMENT = "module.lakehead.module.wal[0].aws_volume_attachment.taker"
GUARD = "module.lakehead.terraform_data.kept_host"
HEALING = "module.lakehead.module.healing[0]."
ALARMS = "module.lakehead.module.observability[0]."


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An example in an account that is empty but for what `before` has."""

    terraform: Terraform
    aws: Emulator
    before: set[str]

    def cluster(self) -> Cluster:
        """Return what there is now."""
        return Cluster(aws=self.aws, outputs=self.terraform.output("cluster"), bucket=BUCKET)

    def hashes(self) -> dict[str, str]:
        """Return the hash of each slot's user data, as the state has it."""
        shown = json.loads(self.terraform.run("show", "-json").text)
        modules = [shown["values"]["root_module"]]
        found = {}
        for module in modules:
            modules += module.get("child_modules", [])
            for one in module.get("resources", []):
                if one["type"] == "aws_instance" and one["name"] == "host":
                    found[one["index"]] = one["values"]["user_data"]
        return found


@contextlib.contextmanager
def place(folder: Path, example: str, **variables: str) -> Iterator[Place]:
    try:
        program()
        found = environment(folder)
    except NotHere as error:
        pytest.skip(str(error))
    with emulator(folder / "emulator.log") as aws:
        aws.client("s3").create_bucket(Bucket="packages")
        given = {"bucket": BUCKET, "lakehead_wheel": WHEEL, "package_sha256": DIGEST, **variables}
        if example == "first-table":
            given["airflow_sha256"] = DIGEST
        if example == "existing-vpc":
            given |= existing_network(aws)
        terraform = Terraform(
            folder=copied(folder) / "examples" / example,
            environment=found
            | aws.environment()
            | {"PATH": f"{aws.programs}:{os.environ['PATH']}"},
            variables=given,
        )
        terraform.override("retries", OVERRIDE)
        terraform.init()
        yield Place(terraform=terraform, aws=aws, before=inventory(aws))
        assert aws.faults() == []


def existing_network(aws: Emulator) -> dict[str, str]:
    ec2 = aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.20.0.0/16")["Vpc"]["VpcId"]
    in_vpc = {"VpcId": vpc, "AvailabilityZone": "us-east-1a", "CidrBlock": "10.20.1.0/24"}
    subnet = ec2.create_subnet(**in_vpc)["Subnet"]["SubnetId"]
    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)
    return {"vpc_id": vpc, "subnet_id": subnet, "route_table_ids": json.dumps([table])}


def report(aws: Emulator, slot: str, version: str = "") -> None:
    """Report the version of the settings that a host runs, as its script does; empty: none."""
    s3, folder = aws.client("s3"), f"lakehead/hosts/lakehead-{slot}/"
    for one in s3.list_objects_v2(Bucket=BUCKET, Prefix=folder).get("Contents", ()):
        s3.delete_object(Bucket=BUCKET, Key=one["Key"])
    if version:
        s3.put_object(Bucket=BUCKET, Key=f"{folder}settings-{version}")


def put_object(aws: Emulator) -> None:
    """Put an object into the bucket. Requests here are not TLS, which the policy refuses."""
    s3 = aws.client("s3")
    policy = s3.get_bucket_policy(Bucket=BUCKET)["Policy"]
    with pytest.raises(s3.exceptions.ClientError, match="403"):
        s3.put_object(Bucket=BUCKET, Key="lakehead/meta/1", Body=b"records")
    s3.delete_bucket_policy(Bucket=BUCKET)
    s3.put_object(Bucket=BUCKET, Key="lakehead/meta/1", Body=b"records")
    s3.put_bucket_policy(Bucket=BUCKET, Policy=policy)


def ask_here(aws: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lead boto3 in this process to the emulator."""
    for name, value in aws.environment().items():
        monkeypatch.setenv(name, value)


def applied(where: Place) -> Cluster:
    """Apply what is planned, see that nothing is left to do, and return what there is."""
    where.terraform.apply_planned()
    where.terraform.check_nothing_to_do()
    return where.cluster()


def check_end(where: Place, snapshots: int = 0) -> None:
    """A destroy is refused while there is an object, before it removes anything; told to go on, it
    leaves nothing but snapshots of io2 volumes.
    """
    put_object(where.aws)
    full = inventory(where.aws)
    said = where.terraform.destroy(codes=(1,))
    assert BUCKET in said.text
    assert inventory(where.aws) == full, said.text
    where.terraform.override("end", 'module "lakehead" {\n  force_destroy = true\n}\n')
    where.terraform.apply()
    where.terraform.destroy()
    assert where.terraform.addresses() == set()
    left = inventory(where.aws) - where.before
    assert where.before <= inventory(where.aws)
    assert [one.split()[0] for one in left] == ["snapshot"] * snapshots


def check_everything(cluster: Cluster, where: Place, slots: dict[str, int]) -> None:
    check_bucket(cluster)
    check_instances(cluster, slots, where.hashes())
    check_alarms(cluster)
    check_healing(cluster)
    ports = ",".join(f"{cluster.outputs['hosts'][slot]['address']}:9092" for slot in sorted(slots))
    assert cluster.outputs["bootstrap_servers"] == ports


def test_minimal_gets_a_third_host_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place(tmp_path, "minimal") as where:
        terraform = where.terraform
        assert set(terraform.plan().changes.values()) == {"create"}
        assert inventory(where.aws) == where.before
        cluster, wal = applied(where), Wal(kind="io2", gib=10, iops=500, shared=True)
        check_everything(cluster, where, {"a-0": 0, "a-1": 100})
        check_network(cluster)
        check_default_group_is_closed(cluster)
        check_volumes(cluster, wal, {"a-0": {"a-1"}, "a-1": {"a-0"}})
        ask_here(where.aws, monkeypatch)
        hosts_attach_their_own(cluster)

        terraform.override("more", 'module "lakehead" {\n  hosts_per_zone = 3\n}\n')
        changes = terraform.plan().changes
        assert {one for one in changes if not one.startswith((ALARMS, HEALING))} == {
            *(f'{kind}["a-2"]' for kind in (HOST, INTERFACE, VOLUME, GUARD)),
            *(f'{ATTACHMENT}["a-2-on-a-{number}"]' for number in range(2)),
            *(f'{ATTACHMENT}["a-{number}-on-a-2"]' for number in range(2)),
        }
        beside = (ALARMS, HEALING)
        assert {changes[one] for one in changes if not one.startswith(beside)} == {"create"}
        assert {changes[one] for one in changes if '"a-2"' not in one} <= {"create", "update"}
        kept = {slot: one["InstanceId"] for slot, one in cluster.instances.items()}
        cluster = applied(where)
        hosts_attach_their_own(cluster)
        terraform.check_nothing_to_do()
        cluster = where.cluster()
        check_everything(cluster, where, {"a-0": 0, "a-1": 100, "a-2": 200})
        hosts = {"a-0", "a-1", "a-2"}
        check_volumes(cluster, wal, dict.fromkeys(sorted(hosts), hosts))
        check_takers_have_the_disk(cluster)
        now = {slot: one["InstanceId"] for slot, one in cluster.instances.items()}
        assert kept.items() <= now.items()
        check_end(where, snapshots=3)


def test_multi_az_gets_a_setting_at_once_and_a_release_host_by_host_and_ends(
    tmp_path: Path,
) -> None:
    with place(tmp_path, "multi-az-object-wal") as where:
        terraform, slots = where.terraform, {"a-0": 0, "b-0": 100, "c-0": 200}
        assert set(terraform.plan().changes.values()) == {"create"}
        cluster = applied(where)
        check_everything(cluster, where, slots)
        check_network(cluster)
        check_default_group_is_closed(cluster)
        check_volumes(cluster, None, {})
        zones = {one["Placement"]["AvailabilityZone"] for one in cluster.instances.values()}
        assert zones == {"us-east-1a", "us-east-1b", "us-east-1c"}

        setting = '{ "log.retention.ms" = "86400000" }'
        terraform.override("setting", f'module "lakehead" {{\n  settings = {setting}\n}}\n')
        assert terraform.plan().changes == {SETTINGS_OBJECT: "update"}
        terraform.apply()
        assert terraform.output("cluster")["hosts_to_replace"] == []
        check_everything(where.cluster(), where, slots)
        report(where.aws, "a-0", "0123456789ab")
        said = plain(terraform.apply().text)
        assert "have not reported the settings" in said
        assert terraform.output("cluster")["hosts_with_other_settings"] == ["a-0"]
        report(where.aws, "a-0", terraform.output("cluster")["settings"]["version"])
        terraform.apply()
        assert terraform.output("cluster")["hosts_with_other_settings"] == []
        report(where.aws, "a-0")

        terraform.override(
            "release", f'module "lakehead" {{\n  package_sha256 = "{"f" * 64}"\n}}\n'
        )
        assert [one for one in terraform.plan().changes if HOST in one] == []
        kept = {slot: one["InstanceId"] for slot, one in cluster.instances.items()}
        said = plain(terraform.apply().text)
        assert "Made of another image, instance type or release" in said
        assert "now: a-0, b-0, c-0. Replace them one after the other" in said
        assert terraform.output("cluster")["hosts_to_replace"] == ["a-0", "b-0", "c-0"]
        servers = cluster.outputs["bootstrap_servers"]
        for number, slot in enumerate(slots):
            before = {s: one["InstanceId"] for s, one in where.cluster().instances.items()}
            replace = f'-replace={HOST}["{slot}"]'
            terraform.run("apply", replace, "-auto-approve", *terraform.given())
            cluster = where.cluster()
            now = {s: one["InstanceId"] for s, one in cluster.instances.items()}
            assert {one for one in slots if now[one] != before[one]} == {slot}
            assert cluster.outputs["hosts_to_replace"] == list(slots)[number + 1 :]
        after = {s: one["InstanceId"] for s, one in cluster.instances.items()}
        assert not kept.items() & after.items()
        terraform.check_nothing_to_do()
        check_everything(cluster, where, slots)
        assert cluster.outputs["bootstrap_servers"] == servers
        check_end(where)


def test_existing_vpc_gets_a_larger_volume_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place(tmp_path, "existing-vpc") as where:
        terraform = where.terraform
        assert set(terraform.plan().changes.values()) == {"create"}
        cluster = applied(where)
        check_everything(cluster, where, {"a-0": 0})
        check_network(cluster, allowed=["10.8.0.0/16"])
        wal = Wal(kind="gp3", gib=10, iops=3000, shared=False)
        check_volumes(cluster, wal, {"a-0": set()})
        ask_here(where.aws, monkeypatch)
        hosts_attach_their_own(cluster)

        terraform.override("larger", 'module "lakehead" {\n  wal_volume = { gib = 20 }\n}\n')
        plan = terraform.plan()
        assert plan.changes == {f'{VOLUME}["a-0"]': "update"}
        assert plan.updates == {f'{VOLUME}["a-0"]': {"size": (10, 20)}}
        cluster = applied(where)
        check_volumes(cluster, Wal(kind="gp3", gib=20, iops=3000, shared=False), {"a-0": {"a-0"}})
        check_a_volume_alone_moves_from_a_stopped_host(cluster)
        terraform.check_nothing_to_do()
        check_end(where)


def test_shipping_to_cloudwatch_begins_and_ends_without_a_change_of_hosts(tmp_path: Path) -> None:
    with place(tmp_path, "minimal") as where:
        terraform = where.terraform
        terraform.plan()
        cluster = applied(where)
        s3, logs = where.aws.client("s3"), where.aws.client("logs")
        address = {"Bucket": BUCKET, "Key": "lakehead-settings/cloudwatch.jsonl"}
        assert s3.get_object(**address)["Body"].read() == b"off\n"
        kept = {slot: one["InstanceId"] for slot, one in cluster.instances.items()}

        terraform.override("ship", 'module "lakehead" {\n  cloudwatch = {}\n}\n')
        changes = terraform.plan().changes
        named = [one for one in changes if not one.startswith((ALARMS, LOG_GROUP))]
        assert {one: changes[one] for one in named} == {
            AGENT_OBJECT: "update",
            "module.lakehead.module.brokers.aws_iam_role_policy.broker": "update",
            'module.lakehead.module.network.aws_vpc_endpoint.interface["logs"]': "create",
        }
        alarms = [one for one in changes if one.startswith(f"{ALARMS}aws_cloudwatch_metric_alarm")]
        assert len(alarms) == 6
        cluster = applied(where)
        names = sorted(cluster.outputs["log_groups"].values())
        assert names == [f"lakehead-{BUCKET}/journal", f"lakehead-{BUCKET}/metrics"]
        groups = logs.describe_log_groups()["logGroups"]
        assert sorted(one["logGroupName"] for one in groups) == names
        assert {one["retentionInDays"] for one in groups} == {30}
        agent, scrape = s3.get_object(**address)["Body"].read().decode().splitlines()
        assert json.loads(agent)["logs"].keys() == {"logs_collected", "metrics_collected"}
        (job,) = json.loads(scrape)["scrape_configs"]
        assert job["static_configs"][0]["targets"] == ["127.0.0.1:9404", "127.0.0.1:9405"]
        check_bucket(cluster)
        check_instances(cluster, {"a-0": 0, "a-1": 100}, where.hashes())
        assert {slot: one["InstanceId"] for slot, one in cluster.instances.items()} == kept
        assert cluster.outputs["hosts_to_replace"] == []

        terraform.override("ship", 'module "lakehead" {\n  cloudwatch = null\n}\n')
        terraform.apply()
        terraform.check_nothing_to_do()
        assert logs.describe_log_groups()["logGroups"] == []
        assert s3.get_object(**address)["Body"].read() == b"off\n"
        check_end(where, snapshots=2)


def test_first_table_is_made_and_ends(tmp_path: Path) -> None:
    with place(tmp_path, "first-table") as where:
        assert set(where.terraform.plan().changes.values()) == {"create"}
        cluster = applied(where)
        check_bucket(cluster)
        check_instances(cluster, {"a-0": 0}, where.hashes())
        check_network(cluster)
        check_volumes(cluster, None, {})
        check_end(where)


# A variable whose validation goes by another one is not looked at while that one is wrong.
WRONG: list[tuple[dict[str, str], list[str]]] = [
    (
        {
            "wal_volume": "{ gib = 1 }",
            "bucket": '"Lake.Of.Dots"',
            "client_cidrs": '{ all = "0.0.0.0/0" }',
            "instance_type": '"t2.large"',
        },
        [
            "wal_volume.gib is a whole number from 4",
            "bucket is 3 to 63 small letters",
            "client_cidrs are private IPv4 ranges",
            "instance_type is of a family before Nitro",
        ],
    ),
    (
        {"zones": '["us-west-9a", "us-west-9b", "us-west-9c"]', "hosts_per_zone": "1"},
        [
            "need exactly one zone",
            "set hosts_per_zone to 2 or more",
            "region is not among multi_attach_regions",
        ],
    ),
    (
        {"wal_volume": "{ gib = 4, iops = 5000 }"},
        ["An io2 volume has at most 1,000 IOPS per GiB"],
    ),
    ({"zones": '["us-east-1a", "us-east-1b"]'}, ["zones has one zone, or three to six"]),
    (
        {"zones": '["eu-west-1a"]', "instance_type": '"i3.large"'},
        [
            "The provider's region is us-east-1, and zones lie elsewhere",
            "Instance type i3.large is not built on Nitro",
        ],
    ),
]


def test_what_is_wrong_is_refused_by_the_plan_with_the_reason(tmp_path: Path) -> None:
    with place(tmp_path, "minimal") as where:
        for arguments, reasons in WRONG:
            lines = "".join(f"  {name} = {value}\n" for name, value in arguments.items())
            where.terraform.override("wrong", f'module "lakehead" {{\n{lines}}}\n')
            said = where.terraform.refused_plan()
            assert [reason for reason in reasons if reason not in said] == [], said
        assert inventory(where.aws) == where.before


def test_a_bucket_that_is_there_already_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with place(tmp_path, "minimal") as where:
        s3 = where.aws.client("s3")
        s3.create_bucket(Bucket=BUCKET)
        s3.put_object(Bucket=BUCKET, Key="of-another", Body=b"data")
        where.terraform.plan()
        said = where.terraform.run("apply", "planned", "-no-color", codes=(1,)).text
        assert "BucketAlready" in said
        assert inventory(where.aws) == where.before | {f"bucket {BUCKET}"}
        assert s3.get_object(Bucket=BUCKET, Key="of-another")["Body"].read() == b"data"
