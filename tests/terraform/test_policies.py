"""Least privilege: each role is allowed what it was seen to need, nothing that it must not, and
nothing beyond.

`recorded_calls.json` is what real programs asked of a real S3 server (tests/terraform/recording);
`rendered_policies.json` is what Terraform makes of infra/terraform.
"""

import asyncio
from collections.abc import Iterable
from itertools import starmap
from typing import Any

import pytest

from tests.terraform.policy_cases import (
    ACCOUNT,
    BUCKET_ARN,
    DOCUMENTED,
    FOR_FAILURES,
    KEY,
    REGION,
    ROLES,
    STATED,
    STATED_OF_RUNS,
    UNRECORDED,
    Case,
    never,
    request,
)
from tests.terraform.policy_evaluation import (
    Decision,
    Policy,
    Request,
    decide,
    decide_by_key,
    listed,
    statements,
)
from tests.terraform.policy_rendering import rendered
from tests.terraform.recording.aws_door import AwsCall, recorded_aws
from tests.terraform.recording.calls import Need, read_needs
from tests.terraform.recording.ec2_calls import (
    INSTANCE,
    INTERFACE,
    OF_CLUSTER,
    TAGS,
    VOLUME,
    ask_all,
    needed_on_ec2,
    operations,
)

RENDERED = rendered()
RECORDED = read_needs()
KEY_POLICY: Policy = RENDERED["object"]["module.storage.aws_kms_key.this[0]"]
FREE_KEY_POLICY: Policy = RENDERED["express"]["module.storage.aws_kms_key.this[0]"]
"""The key's policy once `force_destroy` was applied."""
BUCKET_POLICY: Policy = RENDERED["object"]["module.storage.aws_s3_bucket_policy.this"]
POLICIES: dict[tuple[str, str], Policy] = {
    (run, who): {
        "Version": "2012-10-17",
        "Statement": [one for held in documents for one in statements(held)],
    }
    for run, of_run in RENDERED.items()
    for who, addresses in ROLES.items()
    if (documents := [of_run[address] for address in addresses if address in of_run])
}
"""What roles hold, by how they were rendered: one policy, as division decides nothing."""
HELD = [pytest.param(run, who, id=f"{who}-{run}") for run, who in POLICIES]
EC2_OF_RUNS = {
    "io2": {"DescribeVolumes", "DescribeInstances", "AttachVolume"},
    "gp3": {"DescribeVolumes", "DescribeInstances", "AttachVolume", "DetachVolume"},
    "scaling": {
        *("DescribeNetworkInterfaces", "AttachNetworkInterface"),
        *("CompleteLifecycleAction", "SetInstanceHealth"),
    },
}
"""Which calls to EC2 brokers make, by how they were rendered."""


@pytest.fixture(scope="module")
def ec2_calls() -> list[AwsCall]:
    """What brokers ask of EC2, from boto3's requests."""
    with recorded_aws() as (endpoint, calls), pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        asyncio.run(ask_all())
    return calls


def of_s3(need: Need, runs: Iterable[str]) -> Case:
    """Return what runs were seen to need as a request of this account."""
    place, slash, key = need.resource.partition("/")
    resource = KEY if place == "KEY" else f"{BUCKET_ARN}{slash}{key}"
    context = {
        name: value.replace("REGION", f"{REGION}.amazonaws.com") for name, value in need.context
    }
    return Case(", ".join(runs), need.action, resource, context)


def needs(run: str, who: str, calls: Iterable[AwsCall]) -> list[Case]:
    """Return all that a role needs in a cluster."""
    known = EC2_OF_RUNS.get(run, set()) if who == "broker" else set()
    on_ec2 = [call for call in calls if call.action.partition(":")[2] in known]
    return [
        *starmap(of_s3, RECORDED[who].items()),
        *STATED[who],
        *STATED_OF_RUNS.get((run, who), ()),
        *(case for call in on_ec2 for case in needed_on_ec2(call)),
    ]


def decided(case: Case, who: str, policy: Policy) -> Decision:
    asked = request(case, who)
    if asked.resource.startswith("arn:aws:kms:"):
        return decide_by_key(asked, [policy], KEY_POLICY)
    bucket = BUCKET_POLICY if asked.resource.startswith(BUCKET_ARN) else None
    return decide(asked, [policy], bucket)


def denied(cases: Iterable[Case], who: str, policy: Policy) -> list[Case]:
    return [case for case in cases if decided(case, who, policy) is not Decision.ALLOWED]


@pytest.mark.parametrize(("run", "who"), HELD)
def test_what_was_recorded_is_allowed(run: str, who: str, ec2_calls: list[AwsCall]) -> None:
    cases = needs(run, who, ec2_calls)
    assert len({case.action for case in cases}) >= 6, "a recording that recorded nothing"
    assert denied(cases, who, POLICIES[run, who]) == []


@pytest.mark.parametrize("who", sorted(DOCUMENTED))
def test_what_engines_call_on_aws_by_their_documentation_is_allowed(who: str) -> None:
    assert denied(DOCUMENTED[who], who, POLICIES["object", who]) == []


def test_a_volume_is_freed_from_an_instance_that_has_lost_its_tags(
    ec2_calls: list[AwsCall],
) -> None:
    (call,) = (one for one in ec2_calls if one.action == "ec2:DetachVolume")
    cases = list(needed_on_ec2(call, {**TAGS, INSTANCE: {}}))
    assert denied(cases, "broker", POLICIES["gp3", "broker"]) == []


@pytest.mark.parametrize("who", list(ROLES))
def test_nothing_is_allowed_without_tls(who: str) -> None:
    for case in starmap(of_s3, RECORDED[who].items()):
        if case.action.startswith("s3:"):
            plain = case._replace(context={**case.context, "aws:SecureTransport": "false"})
            policy = POLICIES["object", who]
            assert decided(plain, who, policy) is Decision.EXPLICIT_DENY


@pytest.mark.parametrize(("run", "who"), HELD)
def test_what_must_never_be_is_denied(run: str, who: str) -> None:
    cases = list(never(who))
    assert len(cases) > 100
    refused = denied(cases, who, POLICIES[run, who])
    assert [case for case in cases if case not in refused] == []


def parts(policy: Policy) -> list[dict[str, Any]]:
    """Return the policy's statements, each taken apart into those of one action and resource."""
    return [
        {**statement, "Action": action, "Resource": resource}
        for statement in statements(policy)
        for action in listed(statement["Action"])
        for resource in listed(statement["Resource"])
    ]


@pytest.mark.parametrize(("run", "who"), HELD)
def test_each_action_on_each_resource_is_needed(
    run: str, who: str, ec2_calls: list[AwsCall]
) -> None:
    policy, cases = POLICIES[run, who], needs(run, who, ec2_calls)
    every = parts(policy)
    idle = {
        (who, part["Sid"], part["Action"], part["Resource"])
        for index, part in enumerate(every)
        if (who, part["Sid"]) not in UNRECORDED
        and not denied(cases, who, {**policy, "Statement": every[:index] + every[index + 1 :]})
    }
    assert idle == {one for one in FOR_FAILURES if one[0] == who}, "no recorded call needs it"


def test_what_is_said_of_unrecorded_statements_is_of_some_policy() -> None:
    known = {(who, one["Sid"]) for (_, who), held in POLICIES.items() for one in statements(held)}
    assert set(UNRECORDED) - known == set()


@pytest.mark.parametrize(("run", "who"), HELD)
def test_no_statement_is_about_everything(run: str, who: str) -> None:
    for statement in statements(POLICIES[run, who]):
        assert statement["Effect"] == "Allow"
        for action in listed(statement["Action"]):
            assert "*" not in action, statement
            # Descriptions know no resources, nor do the channels of a session.
            known = ("ec2:Describe", "ssmmessages:", "ssm:UpdateInstanceInformation")
            assert statement["Resource"] != "*" or action.startswith(known)


def test_the_key_of_a_bucket_that_may_hold_data_is_deleted_by_no_role() -> None:
    """Whatever tries it: another apply, a destroy, an administrator at the console."""
    everything = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    admin: Policy = {"Version": "2012-10-17", "Statement": [everything]}
    for name in ("admin", "terraform", "atlantis"):
        role = f"arn:aws:iam::{ACCOUNT}:role/{name}"
        for action in ("kms:ScheduleKeyDeletion", "kms:PutKeyPolicy", "kms:DescribeKey"):
            asked = Request(action=action, resource=KEY, principal=role)
            kept = action == "kms:ScheduleKeyDeletion"
            expected = Decision.EXPLICIT_DENY if kept else Decision.ALLOWED
            assert decide_by_key(asked, [admin], KEY_POLICY) is expected
            assert decide_by_key(asked, [admin], FREE_KEY_POLICY) is Decision.ALLOWED


def test_every_call_to_ec2_is_among_the_recorded(ec2_calls: list[AwsCall]) -> None:
    recorded = {call.action.partition(":")[2] for call in ec2_calls}
    assert recorded == operations()
    assert set().union(*EC2_OF_RUNS.values()) == recorded


@pytest.mark.parametrize("run", sorted(EC2_OF_RUNS & RENDERED.keys()))
@pytest.mark.parametrize("other", [VOLUME, INSTANCE, INTERFACE])
@pytest.mark.parametrize(
    "tags",
    [
        pytest.param({}, id="untagged"),
        pytest.param({**OF_CLUSTER, "lakehead:cluster": "another"}, id="another name"),
        pytest.param({**OF_CLUSTER, "lakehead:bucket": "another"}, id="the same name"),
        pytest.param({"lakehead:cluster": "lakehead"}, id="no bucket"),
    ],
)
def test_what_belongs_to_another_cluster_is_left_alone(
    run: str, other: str, tags: dict[str, str], ec2_calls: list[AwsCall]
) -> None:
    """A call is refused when one of the things that it is about is refused."""
    policy = POLICIES[run, "broker"]
    for call in ec2_calls:
        changes = call.action.startswith("ec2:") and "Describe" not in call.action
        # The volume's tags decide: a terminated instance loses its own.
        if other == INSTANCE and call.action == "ec2:DetachVolume":
            continue
        if changes and other in call.parameters.values():
            cases = list(needed_on_ec2(call, {**TAGS, other: tags}))
            assert denied(cases, "broker", policy), call


def test_roles_have_no_other_policies_and_are_taken_by_their_services_only() -> None:
    for run, documents in RENDERED.items():
        assert [one for one in documents if "policy_attachment" in one] == [], run
        held = {one for one in documents if ".aws_iam_role_policy." in one}
        assert held <= {address for addresses in ROLES.values() for address in addresses}, run
        for address, trust in documents.items():
            if ".aws_iam_role." in address:
                (statement,) = statements(trust)
                assert statement["Action"] == "sts:AssumeRole"
                assert set(statement["Principal"]) == {"Service"}, address
                eve = Request(action="sts:AssumeRole", principal=f"arn:aws:iam::{ACCOUNT}:user/eve")
                asked = {**trust, "Statement": [{**statement, "Resource": "*"}]}
                assert decide(eve, [], asked) is Decision.IMPLICIT_DENY
