"""A clean-up knows everything that the modules of the trials can make, and the policy allows it."""

import json
import re
from pathlib import Path

import pytest

from tests.aws_day.cluster import SOURCE
from tests.aws_day.leftovers import FINDERS, REMOVERS
from tests.terraform.policy_evaluation import action_matches, listed, statements

POLICY = json.loads((Path(__file__).parent / "policy.json").read_text())
# Trials use no Airflow, Spark, load balancer or names.
MODULES = (".", *(f"modules/{name}" for name in (
    "network", "security", "storage", "brokers", "wal", "elastic", "observability", "healing",
    "cloudwatch",
)))  # fmt: skip
KINDS = {
    "aws_autoscaling_group": "scaling group",
    "aws_cloudwatch_dashboard": "dashboard",
    "aws_cloudwatch_event_rule": "rule of events",
    "aws_cloudwatch_log_group": "log group",
    "aws_cloudwatch_metric_alarm": "alarm",
    "aws_ebs_volume": "volume",
    "aws_iam_instance_profile": "instance profile",
    "aws_iam_role": "role",
    "aws_instance": "instance",
    "aws_kms_key": "key",
    "aws_launch_template": "launch template",
    "aws_network_interface": "network interface",
    "aws_route_table": "route table",
    "aws_s3_bucket": "bucket",
    "aws_s3_directory_bucket": "directory bucket",
    "aws_secretsmanager_secret": "secret",
    "aws_security_group": "security group",
    "aws_subnet": "subnet",
    "aws_vpc": "vpc",
    "aws_vpc_endpoint": "endpoint",
}
# What goes with something else, and what no trial asks for.
PARTS = (
    r"aws_autoscaling_policy|aws_cloudwatch_event_target|aws_default_security_group|"
    r"aws_iam_role_policy|aws_route_table_association|aws_volume_attachment|"
    r"aws_s3_bucket_\w+|aws_s3_object|aws_vpc_security_group_(?:in|e)gress_rule"
)
ACTIONS = {
    "autoscaling": "autoscaling:CreateAutoScalingGroup",
    "cloudwatch_event": "events:PutRule",
    "cloudwatch_log": "logs:CreateLogGroup",
    "cloudwatch": "cloudwatch:PutMetricAlarm",
    "iam": "iam:CreateRole",
    "kms": "kms:CreateKey",
    "s3_directory": "s3express:CreateBucket",
    "s3": "s3:CreateBucket",
    "secretsmanager": "secretsmanager:CreateSecret",
}


def resource_types() -> set[str]:
    text = "".join(
        path.read_text() for module in MODULES for path in (SOURCE / module).glob("*.tf")
    )
    return set(re.findall(r'^resource "(aws_\w+)"', text, re.MULTILINE))


def test_every_kind_of_thing_that_trials_make_is_looked_for_and_removed() -> None:
    unknown = {one for one in resource_types() - set(KINDS) if not re.fullmatch(PARTS, one)}
    assert unknown == set(), "say what a clean-up does about these"
    assert len(KINDS) > 15
    assert set(KINDS.values()) <= {kind for kind, _ in FINDERS}
    assert {kind for kind, _ in FINDERS} == set(REMOVERS)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_least_policy_lets_terraform_make_it(kind: str) -> None:
    (action,) = [name for prefix, name in ACTIONS.items() if kind.startswith(f"aws_{prefix}_")][
        :1
    ] or ["ec2:RunInstances"]
    allowed = [one for statement in statements(POLICY) for one in listed(statement["Action"])]
    assert any(action_matches(one, action) for one in allowed)


def test_the_least_policy_names_nothing_of_others() -> None:
    for statement in statements(POLICY):
        assert statement["Effect"] == "Allow"
        assert statement["Action"] != "*"
        for resource in listed(statement["Resource"]):
            is_named = "day-" in resource or "aws-service-role" in resource
            assert (
                is_named
                or "Condition" in statement
                or all(
                    re.match(r"(?:iam|s3|s3express):List|sts:Get", action)
                    for action in listed(statement["Action"])
                )
            )
