"""What moto has not of hosts and of faults: Systems Manager reaches them, programs print, and an
experiment takes a spot instance away.
"""

import json
from typing import Any

from moto.autoscaling import models as scaling
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.fis.models import FISBackend
from moto.ssm.models import Command
from moto.ssm.responses import SimpleSystemManagerResponse

from tests.aws_day.emulated_hosts import PRINTED
from tests.terraform.emulator_parts import ShimMisfit, taken


def install() -> None:
    """Change moto. Raises ShimMisfit."""
    reach_hosts()
    print_figures()
    mark_spot_instances()
    interrupt_spot_instances()
    tell_of_refreshes()


def reach_hosts() -> None:
    """Every running instance is at Systems Manager."""
    if hasattr(SimpleSystemManagerResponse, "describe_instance_information"):
        raise ShimMisfit("SimpleSystemManagerResponse knows describe_instance_information by now")

    def describe(self: Any) -> Any:
        given = self._get_param("Filters") or []
        ids = [value for one in given if one["Key"] == "InstanceIds" for value in one["Values"]]
        found = [{"InstanceId": one, "PingStatus": "Online"} for one in ids]
        return ActionResult({"InstanceInformationList": found})

    SimpleSystemManagerResponse.describe_instance_information = describe


def print_figures() -> None:
    """A command whose comment names one of our programs prints what that would."""
    respond = taken(Command, "invocation_response", "self instance_id plugin_name")

    def printing(self: Any, instance_id: str, plugin_name: str) -> Any:
        told = respond(self, instance_id, plugin_name)
        if printed := PRINTED.get(self.comment):
            now_ms = int(utcnow().timestamp() * 1000)
            told["StandardOutputContent"] = f"FIGURES {json.dumps(printed(now_ms))}\n"
        return told

    Command.invocation_response = printing


def mark_spot_instances() -> None:
    """Of a group's instances, those beyond its on-demand base say that they are spot instances."""
    replace = taken(
        scaling.FakeAutoScalingGroup,
        "replace_autoscaling_group_instances",
        "self count_needed propagated_tags",
    )

    def marking(self: Any, count_needed: int, propagated_tags: dict[str, str]) -> None:
        replace(self, count_needed, propagated_tags)
        shared = (self.mixed_instances_policy or {}).get("InstancesDistribution", {})
        base = int(shared.get("OnDemandBaseCapacity", 0))
        if int(shared.get("OnDemandPercentageAboveBaseCapacity", 100)) == 0:
            for one in self.instance_states[base:]:
                one.instance.lifecycle = "spot"

    scaling.FakeAutoScalingGroup.replace_autoscaling_group_instances = marking


def interrupt_spot_instances() -> None:
    """An experiment that interrupts a spot instance ends it, and its group replaces it."""
    start = taken(
        FISBackend,
        "start_experiment",
        "self client_token experiment_template_id experiment_options tags",
    )

    def starting(self: Any, *arguments: Any, **named: Any) -> Any:
        told = start(self, *arguments, **named)
        actions = [one["actionId"] for one in told["actions"].values()]
        if "aws:ec2:send-spot-instance-interruptions" in actions:
            groups = scaling.autoscaling_backends[self.account_id][self.region_name]
            for target in told["targets"].values():
                for arn in target["resourceArns"]:
                    groups.terminate_instance(arn.rpartition("/")[2], False)
        return told

    FISBackend.start_experiment = starting


def tell_of_refreshes() -> None:
    """Every refresh was rolled back."""
    if hasattr(AutoScalingResponse, "describe_instance_refreshes"):
        raise ShimMisfit("AutoScalingResponse knows describe_instance_refreshes by now")

    def describe(self: Any) -> Any:
        name = self._get_param("AutoScalingGroupName")
        refresh = {"InstanceRefreshId": f"refresh-of-{name}", "AutoScalingGroupName": name}
        return ActionResult({"InstanceRefreshes": [refresh | {"Status": "RollbackSuccessful"}]})

    AutoScalingResponse.describe_instance_refreshes = describe
