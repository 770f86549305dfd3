"""Clients of other networks, applied to an AWS of this machine: both sides are looked at by boto3,
and removed. `make tf-cycle` runs this.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.terraform.emulator import Emulator
from tests.terraform.inventory import inventory
from tests.terraform.terraform import Terraform
from tests.terraform.test_terraform_cycle import (
    OVERRIDE,
    SETTINGS_OBJECT,
    Place,
    applied,
    check_end,
    place,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
ACCOUNT = "arn:aws:iam::210987654321:root"
LINK = "module.lakehead.module.private_link[0]."
NODES = (0, 1, 100, 101, 200, 201)


def balancer_of(aws: Emulator) -> dict[str, Any]:
    (found,) = aws.client("elbv2").describe_load_balancers()["LoadBalancers"]
    return dict(found)


def leads(aws: Emulator) -> dict[int, set[tuple[str, int]]]:
    """Where each port of the load balancer leads: addresses and ports."""
    elb = aws.client("elbv2")
    found = {}
    arn = balancer_of(aws)["LoadBalancerArn"]
    for listener in elb.describe_listeners(LoadBalancerArn=arn)["Listeners"]:
        (action,) = listener["DefaultActions"]
        targets = elb.describe_target_health(TargetGroupArn=action["TargetGroupArn"])
        found[listener["Port"]] = {
            (one["Target"]["Id"], one["Target"]["Port"])
            for one in targets["TargetHealthDescriptions"]
        }
    return found


def check_leads(aws: Emulator, hosts: dict[str, Any]) -> None:
    """Each node's port leads to its host, the bootstrap's to the first node of each."""
    expected = {
        20000 + host["node_id"] + index: {(host["address"], 9192 + index)}
        for host in hosts.values()
        for index in range(2)
    }
    first = {(host["address"], 9192) for host in hosts.values()}
    assert leads(aws) == {9092: first, **expected}


def check_groups(aws: Emulator) -> None:
    """Checks go to each node's own probe, and no zone leaves the name for one node's sake."""
    elb = aws.client("elbv2")
    groups = elb.describe_target_groups()["TargetGroups"]
    assert sorted(one["HealthCheckPort"] for one in groups) == ["9404"] * 4 + ["9405"] * 3
    assert {one["HealthCheckPath"] for one in groups} == {"/ready"}
    failover = []
    for one in groups:
        told = elb.describe_target_group_attributes(TargetGroupArn=one["TargetGroupArn"])
        attributes = {found["Key"]: found["Value"] for found in told["Attributes"]}
        kept = "target_health_state.unhealthy.connection_termination.enabled"
        assert attributes[kept] == "false"
        assert attributes["preserve_client_ip.enabled"] == "false"
        failover.append(
            attributes.get("target_group_health.dns_failover.minimum_healthy_targets.count")
        )
    assert failover.count("off") == len(NODES)


def check_service(aws: Emulator, principals: set[str]) -> None:
    ec2 = aws.client("ec2")
    (service,) = ec2.describe_vpc_endpoint_service_configurations()["ServiceConfigurations"]
    assert service["AcceptanceRequired"]
    assert service["NetworkLoadBalancerArns"] == [balancer_of(aws)["LoadBalancerArn"]]
    allowed = ec2.describe_vpc_endpoint_service_permissions(ServiceId=service["ServiceId"])
    assert {one["Principal"] for one in allowed["AllowedPrincipals"]} == principals


def clients(where: Place, folder: Path, cluster: dict[str, Any]) -> Terraform:
    """The clients' account, which is the same here, with a VPC of its own."""
    ec2 = where.aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.60.0.0/16")["Vpc"]["VpcId"]
    subnets = {}
    for index, letter in enumerate("abc"):
        given = {"AvailabilityZone": f"us-east-1{letter}", "CidrBlock": f"10.60.{index}.0/24"}
        made = ec2.create_subnet(VpcId=vpc, **given)["Subnet"]
        subnets[made["AvailabilityZone"]] = made["SubnetId"]
    terraform = Terraform(
        folder=folder,
        environment=where.terraform.environment,
        variables={
            "cluster": json.dumps(cluster),
            "vpc_id": vpc,
            "subnet_ids": json.dumps(subnets),
            "client_cidrs": '{ vpc = "10.60.0.0/16" }',
        },
    )
    terraform.override("retries", OVERRIDE)
    terraform.init()
    return terraform


def end_vpc(aws: Emulator, vpc_id: str) -> None:
    ec2 = aws.client("ec2")
    for subnet in ec2.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [vpc_id]}])["Subnets"]:
        ec2.delete_subnet(SubnetId=subnet["SubnetId"])
    ec2.delete_vpc(VpcId=vpc_id)


def check_names(aws: Emulator, domain: str, racks: list[str]) -> None:
    """The domain stands for the endpoint, RACK.DOMAIN for its place in that zone."""
    route53, ec2 = aws.client("route53"), aws.client("ec2")
    (zone,) = [z for z in route53.list_hosted_zones()["HostedZones"] if z["Name"] == f"{domain}."]
    assert zone["Config"]["PrivateZone"]
    records = {
        one["Name"].rstrip("."): one["AliasTarget"]["DNSName"].rstrip(".")
        for one in route53.list_resource_record_sets(HostedZoneId=zone["Id"])["ResourceRecordSets"]
        if one["Type"] == "A"
    }
    assert set(records) == {domain, *(f"{rack}.{domain}" for rack in racks)}
    zones = {
        z["ZoneId"]: z["ZoneName"] for z in ec2.describe_availability_zones()["AvailabilityZones"]
    }
    first, _, rest = records[domain].partition(".")
    for rack in racks:
        assert records[f"{rack}.{domain}"] == f"{first}-{zones[rack]}.{rest}"


def test_clients_of_another_account_have_a_port_for_each_node(tmp_path: Path) -> None:
    principals = json.dumps([ACCOUNT])
    with place(tmp_path, "private-link", allowed_principals=principals) as where:
        terraform, aws = where.terraform, where.aws
        assert set(terraform.plan().changes.values()) == {"create"}
        cluster = applied(where)
        hosts = cluster.outputs["hosts"]
        link = terraform.output("private_link")
        check_leads(aws, hosts)
        check_groups(aws)
        check_service(aws, {ACCOUNT})
        racks = sorted(host["rack"] for host in hosts.values())
        assert link["client"]["racks"] == racks
        told = balancer_of(aws)
        assert told["EnforceSecurityGroupInboundRulesOnPrivateLinkTraffic"] == "off"
        assert told["Scheme"] == "internal"

        side = clients(where, terraform.folder.parent / "private-link-client", link["client"])
        side.apply()
        side.check_nothing_to_do()
        check_names(aws, "lake.example.com", racks)
        assert side.output("bootstrap_servers") == "lake.example.com:9092"
        side.destroy()
        assert side.addresses() == set()
        end_vpc(aws, side.variables["vpc_id"])

        # Another account, and a port for each host's third node: no host is made again.
        other = "arn:aws:iam::333333333333:role/readers"
        more = 'module "lakehead" {\n  nodes_per_host = 3\n}\n'
        terraform.override("more", more)
        both = json.dumps([ACCOUNT, other])
        changes = terraform.plan(allowed_principals=both).changes
        assert changes[SETTINGS_OBJECT] == "update"
        assert not [one for one in changes if "aws_instance" in one or "network_interface" in one]
        added = [one for one in changes if one.startswith(f"{LINK}aws_lb_listener.node")]
        assert {changes[one] for one in added} == {"create"}
        assert len(added) == 3
        assert not [one for one in changes.values() if "delete" in one]
        terraform.apply_planned()
        check_service(aws, {ACCOUNT, other})
        assert sorted(leads(aws))[1:4] == [20000, 20001, 20002]

        taken = 'module "lakehead" {\n  private_link = null\n}\n'
        terraform.override("more", taken)
        changes = terraform.plan(allowed_principals=both).changes
        ended = [one for one, what in changes.items() if "delete" in what]
        assert ended
        assert not [one for one in ended if not one.startswith(LINK)]
        terraform.apply_planned()
        assert [one for one in inventory(aws) if one.startswith(("load balancer", "target"))] == []
        check_end(where)
