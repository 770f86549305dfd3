"""The example of docs/deploy.md as its user lives with it: brokers, and a host with Airflow."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.terraform.cluster_checks import Cluster, check_bucket, check_root_volume
from tests.terraform.inventory import inventory
from tests.terraform.test_terraform_cycle import HOST, applied, check_end, place

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
AIRFLOW = 'module.lakehead.module.airflow[0].aws_instance.airflow["airflow"]'
PORT = 8080


def airflow(cluster: Cluster) -> dict[str, Any]:
    """Airflow's instance, as the output names it."""
    named = cluster.outputs["airflow"]["instance"]
    (reservation,) = cluster.ec2.describe_instances(InstanceIds=[named])["Reservations"]
    (instance,) = reservation["Instances"]
    found: dict[str, Any] = instance
    return found


def check_airflow(cluster: Cluster) -> None:
    one = airflow(cluster)
    assert one["State"]["Name"] == "running"
    assert one["MetadataOptions"]["HttpTokens"] == "required"
    assert one["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
    assert not one.get("PublicIpAddress")
    check_root_volume(cluster, one)
    assert cluster.outputs["airflow"]["url"] == f"http://{one['PrivateIpAddress']}:{PORT}"
    (group,) = cluster.ec2.describe_security_groups(
        GroupIds=[named["GroupId"] for named in one["NetworkInterfaces"][0]["Groups"]]
    )["SecurityGroups"]
    (vpc,) = cluster.ec2.describe_vpcs(VpcIds=[one["VpcId"]])["Vpcs"]
    let_in = [
        (rule["FromPort"], rule["ToPort"], [source["CidrIp"] for source in rule["IpRanges"]])
        for rule in group["IpPermissions"]
    ]
    assert let_in == [(PORT, PORT, [vpc["CidrBlock"]])]
    let_out = [
        source["CidrIp"] for rule in group["IpPermissionsEgress"] for source in rule["IpRanges"]
    ]
    assert let_out == [vpc["CidrBlock"]], "beside S3 and the brokers only the endpoints"


def check_airflow_role(cluster: Cluster) -> None:
    iam = cluster.aws.client("iam")
    profile = airflow(cluster)["IamInstanceProfile"]["Arn"].rpartition("/")[2]
    (role,) = iam.get_instance_profile(InstanceProfileName=profile)["InstanceProfile"]["Roles"]
    named = {"RoleName": role["RoleName"]}
    # A policy of AWS' own may do more than Airflow needs.
    assert iam.list_attached_role_policies(**named)["AttachedPolicies"] == []
    (policy,) = iam.list_role_policies(**named)["PolicyNames"]
    document = iam.get_role_policy(**named, PolicyName=policy)["PolicyDocument"]
    assert document == json.loads(cluster.outputs["airflow_policy_json"])


def check_secret(cluster: Cluster) -> None:
    """There is a place for the password, by the key of the cluster, with nothing in it yet."""
    manager = cluster.aws.client("secretsmanager")
    secret = manager.describe_secret(SecretId=cluster.outputs["airflow"]["password_secret"])
    assert secret["KmsKeyId"] == cluster.key_arn
    with pytest.raises(manager.exceptions.ResourceNotFoundException):
        manager.get_secret_value(SecretId=secret["Name"])
    told = manager.put_secret_value(SecretId=secret["Name"], SecretString='{"admin": "word"}')
    assert told["Name"] == secret["Name"]


def check_ways_in(cluster: Cluster) -> None:
    endpoints = cluster.ec2.describe_vpc_endpoints()["VpcEndpoints"]
    services = {one["ServiceName"].rpartition(".")[2] for one in endpoints}
    assert services == {"s3", "ssm", "ssmmessages", "secretsmanager"}


def test_airflow_is_replaced_alone_and_all_of_it_ends(tmp_path: Path) -> None:
    with place(tmp_path, "first-table") as where:
        terraform = where.terraform
        assert set(terraform.plan().changes.values()) == {"create"}
        cluster = applied(where)
        check_bucket(cluster)
        check_airflow(cluster)
        check_airflow_role(cluster)
        check_secret(cluster)
        check_ways_in(cluster)
        terraform.check_nothing_to_do()
        watched = cluster.aws.client("cloudwatch").describe_alarms()["MetricAlarms"]
        assert "lakehead-lake-of-the-cycle-airflow-status" in {one["AlarmName"] for one in watched}

        schedules = 'dags = jsonencode({ schedules = { lakehead_verify = "0 4 1 * *" } })'
        dags = f"{{ package_sha256 = var.airflow_sha256, {schedules} }}"
        terraform.override("dags", f'module "lakehead" {{\n  airflow_host = {dags}\n}}\n')
        changes = dict(terraform.plan().changes)
        assert changes.pop(AIRFLOW) == "delete+create"
        assert {one for one in changes if HOST in one} == set()
        assert set(changes.values()) <= {"update"}, changes
        before = airflow(cluster)["InstanceId"]
        cluster = applied(where)
        assert airflow(cluster)["InstanceId"] != before
        check_airflow(cluster)
        held = cluster.aws.client("secretsmanager").get_secret_value(SecretId="lakehead/airflow")
        assert held["SecretString"] == '{"admin": "word"}', "until the new host tells its own"
        check_end(where)
        assert {one for one in inventory(where.aws) if one.startswith("secret")} == set()
