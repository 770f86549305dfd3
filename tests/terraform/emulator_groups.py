"""What moto does otherwise than AWS with auto-scaling groups, put right in process."""

from collections.abc import Callable
from typing import Any

from moto.autoscaling import models as scaling
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult
from moto.core.types import Base64EncodedString
from moto.ec2.models.launch_templates import LaunchTemplate

from tests.terraform.emulator_parts import ShimMisfit, taken


def install() -> None:
    """Change moto. Raises ShimMisfit."""
    tell_scaling_as_it_was_set()
    refresh_groups()
    keep_upkeep()
    keep_mixed_instances()
    take_user_data_of_versions()


def tell_scaling_as_it_was_set() -> None:
    """Hooks have no queue and role of moto's invention; a policy is on, and predicts nothing."""
    make_hook = taken(
        scaling.LifecycleHook, "__init__", "self name as_name transition timeout result"
    )
    make_policy = taken(
        scaling.FakeScalingPolicy,
        "__init__",
        "self name policy_type metric_aggregation_type adjustment_type as_name "
        "min_adjustment_magnitude scaling_adjustment cooldown target_tracking_config "
        "step_adjustments estimated_instance_warmup predictive_scaling_configuration "
        "autoscaling_backend",
    )

    def hook(self: Any, *arguments: Any, **named: Any) -> None:
        make_hook(self, *arguments, **named)
        self.role_arn = self.notification_target_arn = None

    def policy(self: Any, *arguments: Any, **named: Any) -> None:
        make_policy(self, *arguments, **named)
        self.predictive_scaling_configuration = self.predictive_scaling_configuration or None
        self.enabled = True

    scaling.LifecycleHook.__init__ = hook
    scaling.FakeScalingPolicy.__init__ = policy


def refresh_groups() -> None:
    """An instance refresh, of which moto knows nothing, replaces the instances: all at once."""
    taken(scaling.AutoScalingBackend, "terminate_instance", "self instance_id should_decrement")
    if hasattr(AutoScalingResponse, "start_instance_refresh"):
        raise ShimMisfit("AutoScalingResponse knows start_instance_refresh by now")

    def start(self: Any) -> Any:
        backend = self.autoscaling_backend
        group = backend.autoscaling_groups[self._get_param("AutoScalingGroupName")]
        for instance_id in [one.instance.id for one in group.instance_states]:
            backend.terminate_instance(instance_id, False)
        return ActionResult({"InstanceRefreshId": f"refresh-of-{group.name}"})

    AutoScalingResponse.start_instance_refresh = start


_KEPT = {
    "DefaultInstanceWarmup": "default_instance_warmup",
    "InstanceMaintenancePolicy": "instance_maintenance_policy",
}


def keep_upkeep() -> None:
    """A group tells how long its instances warm up, and how it keeps them, as that was set."""

    def keeping(call: Callable[..., Any]) -> Callable[[Any], Any]:
        def called(self: Any) -> Any:
            answer = call(self)
            groups = self.autoscaling_backend.autoscaling_groups
            group = groups[self._get_param("AutoScalingGroupName")]
            for name, kept_as in _KEPT.items():
                if (value := self._get_param(name)) is not None:
                    setattr(group, kept_as, value)
            return answer

        return called

    for name in ("create_auto_scaling_group", "update_auto_scaling_group"):
        setattr(AutoScalingResponse, name, keeping(taken(AutoScalingResponse, name, "self")))


def keep_mixed_instances() -> None:
    """A change of a group that says nothing of what it starts leaves that as it is."""
    change = taken(
        scaling.FakeAutoScalingGroup,
        "update",
        "self availability_zones desired_capacity max_size min_size launch_config_name "
        "launch_template vpc_zone_identifier health_check_period health_check_type "
        "new_instances_protected_from_scale_in mixed_instances_policy",
    )

    def keeping(self: Any, **named: Any) -> None:
        kept = self.mixed_instances_policy
        told = ("launch_config_name", "launch_template", "mixed_instances_policy")
        if kept and not any(named.get(name) for name in told):
            # moto tells the template's name and id, and takes only one of them.
            kept["LaunchTemplate"]["LaunchTemplateSpecification"].pop("LaunchTemplateName")
            named["mixed_instances_policy"] = kept
        change(self, **named)

    scaling.FakeAutoScalingGroup.update = keeping


def take_user_data_of_versions() -> None:
    """A further version of a launch template has user data as the first one has."""
    make = taken(LaunchTemplate, "create_version", "self data description")

    def version(self: Any, data: dict[str, Any], description: str) -> Any:
        if isinstance(data.get("UserData"), str):
            data["UserData"] = Base64EncodedString(data["UserData"])
        return make(self, data, description)

    LaunchTemplate.create_version = version
