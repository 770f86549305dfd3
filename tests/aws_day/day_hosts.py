"""Programs on hosts, by Systems Manager's Run Command: each prints its figures as JSON."""

import base64
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.aws_day.account import Account
from tests.aws_day.limits import Limits

_PROGRAMS = Path(__file__).parent / "on_host"
_PYTHON = "/opt/lakehead/bin/python"
_MARK = "FIGURES "
_READY_S = 1200
_PACED = "until [ -e /opt/lakehead/package ]; do sleep 2; done; mkdir -p /run/aws-day"


class HostFailed(Exception):
    """A program on a host failed. The message has the end of what it printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A program that runs on a host."""

    instance: str
    command: str
    program: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """Hosts of one trial's cluster."""

    account: Account
    limits: Limits

    def wait_ready(self, instance: str) -> float:
        """Wait until Systems Manager reaches a host; return the seconds that took."""
        ssm = self.account.client("ssm")
        given = [{"Key": "InstanceIds", "Values": [instance]}]

        def is_online() -> bool:
            found = ssm.describe_instance_information(Filters=given)["InstanceInformationList"]
            return any(one["PingStatus"] == "Online" for one in found)

        return self.limits.until(f"{instance} at Systems Manager", _READY_S, is_online)

    def begin(self, instance: str, program: str, *arguments: str, seconds: int = 600) -> Begun:
        """Start one of the programs of `on_host` as root, when the host has its packages."""
        self.limits.check()
        text = base64.b64encode((_PROGRAMS / f"{program}.py").read_bytes()).decode()
        path = f"/run/aws-day/{program}.py"
        command = self.account.client("ssm").send_command(
            InstanceIds=[instance],
            DocumentName="AWS-RunShellScript",
            Comment=program,
            Parameters={
                "commands": [
                    _PACED,
                    f"echo {text} | base64 -d >{path}",
                    f"AWS_REGION={self.account.region} {shlex.join([_PYTHON, path, *arguments])}",
                ],
                "executionTimeout": [str(seconds)],
            },
        )["Command"]["CommandId"]
        return Begun(instance=instance, command=command, program=program)

    def result(self, begun: Begun, seconds: float = 900) -> dict[str, float]:
        """Wait for a program's end; return its figures. Raises HostFailed and NotInTime."""
        ssm = self.account.client("ssm")
        told: dict[str, Any] = {}

        def is_over() -> bool:
            try:
                told.update(
                    ssm.get_command_invocation(CommandId=begun.command, InstanceId=begun.instance)
                )
            except ssm.exceptions.InvocationDoesNotExist:
                return False  # the command is younger than what Systems Manager tells
            return told["Status"] not in {"Pending", "InProgress", "Delayed", "Cancelling"}

        self.limits.until(f"{begun.program} on {begun.instance}", seconds, is_over)
        return figures(begun.program, told)

    def run(self, instance: str, program: str, *arguments: str) -> dict[str, float]:
        """Run a program to its end; return its figures."""
        return self.result(self.begin(instance, program, *arguments))


def figures(program: str, told: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a finished program. Raises HostFailed."""
    printed = told.get("StandardOutputContent", "")
    lines = [one for one in printed.splitlines() if one.startswith(_MARK)]
    if told["Status"] != "Success" or not lines:
        end = (printed + told.get("StandardErrorContent", "")).strip()[-800:]
        raise HostFailed(f"{program} ended as {told['Status']}: {end}")
    found = json.loads(lines[-1].removeprefix(_MARK))
    return {name: float(value) for name, value in found.items()}
