"""The group of hosts of a trial's cluster, as EC2 Auto Scaling tells of it."""

from typing import Any

from tests.aws_day.trial import Scene

FEW = {"min": 2, "max": 4, "on_demand_base": 1, "spot_percent": 100}


def group(scene: Scene) -> dict[str, Any]:
    """Return the group."""
    name = scene.account.named(scene.trial)
    found = scene.account.client("autoscaling").describe_auto_scaling_groups(
        AutoScalingGroupNames=[name]
    )["AutoScalingGroups"]
    told: dict[str, Any] = found[0]
    return told


def serving(scene: Scene) -> set[str]:
    """Return the instances that serve."""
    return {
        one["InstanceId"]
        for one in group(scene)["Instances"]
        if one["LifecycleState"] == "InService"
    }


def spot_instances(scene: Scene) -> set[str]:
    """Return those of them that are spot instances."""
    told = scene.account.client("ec2").describe_instances(InstanceIds=sorted(serving(scene)))
    return {
        one["InstanceId"]
        for some in told["Reservations"]
        for one in some["Instances"]
        if one.get("InstanceLifecycle") == "spot"
    }
