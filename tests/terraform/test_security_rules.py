"""The broker group's rules under a state of earlier releases, on an AWS of this machine. `make
tf-cycle` runs this.
"""

import json
import os
from pathlib import Path

import pytest

from bench.own_environment import NotInstalled
from tests.terraform.emulator import Emulator, emulator
from tests.terraform.terraform import NotHere, Terraform, copied, environment, program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
MODULE = "module.security."
FORMER = {
    'aws_vpc_security_group_ingress_rule.brokers["nodes"]': (
        "aws_vpc_security_group_ingress_rule.nodes[0]"
    ),
    'aws_vpc_security_group_egress_rule.brokers["nodes"]': (
        "aws_vpc_security_group_egress_rule.nodes[0]"
    ),
    'aws_vpc_security_group_ingress_rule.brokers["kafka"]': (
        "aws_vpc_security_group_ingress_rule.brokers"
    ),
    'aws_vpc_security_group_egress_rule.brokers["kafka"]': (
        "aws_vpc_security_group_egress_rule.brokers"
    ),
}
"""Addresses of the rules now, and in earlier releases."""


def root_of(aws: Emulator) -> str:
    vpc = aws.client("ec2").create_vpc(CidrBlock="10.42.0.0/16")["Vpc"]["VpcId"]
    key = aws.client("kms").create_key()["KeyMetadata"]["Arn"]
    module = {
        "source": "./modules/security",
        "name": "lakehead",
        "tags": {"lakehead:cluster": "lakehead"},
        "vpc_id": vpc,
        "client_cidrs": {"vpc": "10.42.0.0/16"},
        "kafka_ports": {"first": 9092, "last": 9093},
        "metrics_ports": {"first": 9404, "last": 9405},
        "node_ports": {"first": 9292, "last": 9293},
        "kms_key_arn": key,
    }
    return json.dumps({"provider": {"aws": {"max_retries": 3}}, "module": {"security": module}})


def rules(aws: Emulator) -> dict[str, tuple[bool, int, str]]:
    """Return the rules of all groups by id: whether out, first port, description."""
    found = aws.client("ec2").describe_security_group_rules()["SecurityGroupRules"]
    return {
        one["SecurityGroupRuleId"]: (
            one["IsEgress"],
            one.get("FromPort", -1),
            one.get("Description", ""),
        )
        for one in found
    }


def test_a_state_of_an_earlier_release_keeps_its_rules(tmp_path: Path) -> None:
    try:
        program()
        found = environment(tmp_path)
        with emulator(tmp_path / "emulator.log") as aws:
            folder = copied(tmp_path) / "root"
            folder.mkdir()
            (folder / "modules").symlink_to("../modules")
            (folder / "main.tf.json").write_text(root_of(aws))
            terraform = Terraform(
                folder=folder,
                environment=found
                | aws.environment()
                | {"PATH": f"{aws.programs}:{os.environ['PATH']}"},
            )
            terraform.init()
            terraform.apply()
            made, now = rules(aws), terraform.addresses()
            assert {f"{MODULE}{one}" for one in FORMER} <= now
            for address, former in FORMER.items():
                terraform.run("state", "mv", MODULE + address, MODULE + former)
            assert {f"{MODULE}{one}" for one in FORMER.values()} <= terraform.addresses()

            assert terraform.plan().changes == {}
            terraform.apply_planned()
            assert terraform.addresses() == now
            assert rules(aws) == made
            terraform.check_nothing_to_do()
            assert aws.faults() == []
    except (NotHere, NotInstalled) as error:
        pytest.skip(str(error))
