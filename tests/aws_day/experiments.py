"""Experiments of AWS's Fault Injection Service: made, run and removed."""

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.aws_day.account import TAG, TRIAL_TAG, Account
from tests.aws_day.day_ledger import Ledger
from tests.aws_day.limits import Limits

ACTION_MINUTE = 0.10
"""Dollars of a minute of an action (AWS FIS pricing)."""
_ROLE_S = 120
_RUNNING_S = 300
_ACTIONS = {
    "aws:ebs:pause-volume-io": ["ec2:DescribeVolumes", "ec2:PauseVolumeIO"],
    "aws:ec2:send-spot-instance-interruptions": [
        "ec2:DescribeInstances",
        "ec2:SendSpotInstanceInterruptions",
    ],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One action on one resource. `target` is FIS's kind of it, such as Volumes."""

    action: str
    target: str
    resource_type: str
    arn: str
    parameters: Mapping[str, str]
    minutes: float


def paused_volume(account: Account, volume: str, minutes: int) -> Fault:
    """Return a fault in which no read or write of a volume returns."""
    return Fault(
        action="aws:ebs:pause-volume-io",
        target="Volumes",
        resource_type="aws:ec2:ebs-volume",
        arn=f"arn:aws:ec2:{account.region}:{account.account_id}:volume/{volume}",
        parameters={"duration": f"PT{minutes}M"},
        minutes=minutes,
    )


def interrupted_spot(account: Account, instance: str) -> Fault:
    """Return a fault that takes a spot instance away after two minutes' notice."""
    return Fault(
        action="aws:ec2:send-spot-instance-interruptions",
        target="SpotInstances",
        resource_type="aws:ec2:spot-instance",
        arn=f"arn:aws:ec2:{account.region}:{account.account_id}:instance/{instance}",
        parameters={"durationBeforeInterruption": "PT2M"},
        minutes=2,
    )


@contextmanager
def running(
    fault: Fault, *, account: Account, ledger: Ledger, limits: Limits, trial: str
) -> Iterator[str]:
    """Have a fault from the body's beginning on; at its end the experiment is stopped, and its
    template and role are gone. Gives the experiment's id.
    """
    name = f"{account.named(trial)}-fis"
    iam = account.client("iam")
    fis = account.client("fis")
    with ledger.kept(trial, "role", name, lambda: remove_role(iam, name)):
        role = _role(account, iam, name, fault.action, trial)
        limits.clock.sleep(15)  # a new role is known everywhere only after some seconds
        limits.check()
        template = ""

        def remove() -> None:
            if template:
                fis.delete_experiment_template(id=template)

        with ledger.kept(trial, "experiment template", name, remove):
            template = _template(fis, account, fault, role, trial)
            started = fis.start_experiment(
                clientToken=str(uuid.uuid4()),
                experimentTemplateId=template,
                tags={TAG: account.run, TRIAL_TAG: trial},
            )["experiment"]["id"]
            limits.spending.pay(ACTION_MINUTE * fault.minutes)
            try:
                _wait_for_running(fis, limits, started)
                yield started
            finally:
                if state(fis, started) in {"pending", "initiating", "running"}:
                    fis.stop_experiment(id=started)


def state(fis: Any, experiment: str) -> str:
    """Return the state of an experiment."""
    told: str = fis.get_experiment(id=experiment)["experiment"]["state"]["status"]
    return told


def remove_role(iam: Any, name: str) -> None:
    """Delete a role with what it holds, if it is there."""
    try:
        profiles = iam.list_instance_profiles_for_role(RoleName=name)["InstanceProfiles"]
        for one in profiles:
            iam.remove_role_from_instance_profile(
                InstanceProfileName=one["InstanceProfileName"], RoleName=name
            )
        for policy in iam.list_role_policies(RoleName=name)["PolicyNames"]:
            iam.delete_role_policy(RoleName=name, PolicyName=policy)
        for one in iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]:
            iam.detach_role_policy(RoleName=name, PolicyArn=one["PolicyArn"])
        iam.delete_role(RoleName=name)
    except iam.exceptions.NoSuchEntityException:
        return


def _role(account: Account, iam: Any, name: str, action: str, trial: str) -> str:
    trust = {
        "Effect": "Allow",
        "Principal": {"Service": "fis.amazonaws.com"},
        "Action": "sts:AssumeRole",
        "Condition": {"StringEquals": {"aws:SourceAccount": account.account_id}},
    }
    made = iam.create_role(
        RoleName=name,
        AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [trust]}),
        Tags=account.tags(trial),
    )
    allowed = {"Effect": "Allow", "Action": _ACTIONS[action], "Resource": "*"}
    iam.put_role_policy(
        RoleName=name,
        PolicyName="fault",
        PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [allowed]}),
    )
    arn: str = made["Role"]["Arn"]
    return arn


def _template(fis: Any, account: Account, fault: Fault, role: str, trial: str) -> str:
    made = fis.create_experiment_template(
        clientToken=str(uuid.uuid4()),
        description=f"{account.run} {trial}",
        stopConditions=[{"source": "none"}],
        targets={
            "one": {
                "resourceType": fault.resource_type,
                "resourceArns": [fault.arn],
                "selectionMode": "ALL",
            }
        },
        actions={
            "fault": {
                "actionId": fault.action,
                "parameters": dict(fault.parameters),
                "targets": {fault.target: "one"},
            }
        },
        roleArn=role,
        tags={TAG: account.run, TRIAL_TAG: trial, "Name": account.named(trial)},
    )
    template: str = made["experimentTemplate"]["id"]
    return template


def _wait_for_running(fis: Any, limits: Limits, experiment: str) -> None:
    begun = {"running", "completed"}
    over = {"failed", "stopped", "cancelled"}

    def is_begun() -> bool:
        now = state(fis, experiment)
        if now in over:
            told = fis.get_experiment(id=experiment)["experiment"]["state"]
            raise RuntimeError(f"the experiment ended as {now}: {told.get('reason', '')}")
        return now in begun

    limits.until("the experiment", _RUNNING_S, is_begun)
