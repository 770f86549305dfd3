"""A release that does not start is rolled out: it is rolled back, and clients notice nothing."""

import json
from typing import Any

from tests.aws_day.day_report import Expected
from tests.aws_day.trial import Scene, Trial
from tests.aws_day.trials.scaling import FEW, group, serving

_BY_ITSELF_S = 4500
_BY_US_S = 1800
_LOAD_S = 1800
_OVER = {"Successful", "Failed", "Cancelled", "RollbackSuccessful", "RollbackFailed"}
_WRONG = "f" * 64


class BrokenRefresh(Trial):
    """An instance refresh to packages with another checksum: no new host can serve."""

    name = "refresh"
    minutes = 160
    expected = (
        Expected(name="rolled_back", unit="", source="auto_rollback", at_least=1, at_most=1),
        Expected(name="by_itself", unit="", source="auto_rollback", at_least=1, at_most=1),
        Expected(name="minutes", unit="min", source="the hook's 15 min + the group's own time"),
        Expected(name="fewest_hosts", unit="", source="min_healthy 100 %", at_least=2),
        Expected(name="lost", unit="records", source="never", at_least=0, at_most=0),
        Expected(name="longest_gap", unit="s", source="no host leaves", at_most=5),
    )

    def arguments(self) -> dict[str, Any]:
        """Return what the cluster is: two hosts of a group, none of them spot."""
        return {"wal_mode": "object", "scaling": {**FEW, "on_demand_base": 4, "spot_percent": 0}}

    def run(self, scene: Scene) -> None:
        """Roll out what cannot start, and wait for its end."""
        (first, *_) = sorted(serving(scene))
        load = scene.client(first, "load", _LOAD_S, seconds=7200)
        scene.limits.clock.sleep(60)  # the producer is at work
        _break(scene)
        fewest = [len(serving(scene))]
        status = ""

        def is_over() -> bool:
            nonlocal status
            fewest.append(len(serving(scene)))
            status = _refresh_status(scene)
            return status in _OVER

        clock = scene.limits.clock
        began = clock.monotonic()
        scaling = scene.account.client("autoscaling")
        while not is_over():
            scene.limits.check()
            if clock.monotonic() - began > _BY_ITSELF_S:
                break
            clock.sleep(15)
        by_itself = status in _OVER
        if not by_itself:
            name = group(scene)["AutoScalingGroupName"]
            scaling.rollback_instance_refresh(AutoScalingGroupName=name)
            scene.limits.until("the refresh that is rolled back by us", _BY_US_S, is_over)
        scene.figure("rolled_back", float(status == "RollbackSuccessful"))
        scene.figure("by_itself", float(by_itself))
        scene.figure("minutes", (clock.monotonic() - began) / 60)
        scene.figure("fewest_hosts", min(fewest))
        scene.note(f"The refresh ended as {status}.")
        noticed = scene.hosts.result(load, seconds=7200)
        scene.figure("lost", noticed["lost"])
        scene.figure("longest_gap", noticed["longest_gap_s"])


def _break(scene: Scene) -> None:
    path = scene.cluster.folder / "main.tf.json"
    root = json.loads(path.read_text())
    root["module"]["lakehead"]["package_sha256"] = _WRONG
    path.write_text(json.dumps(root, indent=1))
    scene.cluster.apply()


def _refresh_status(scene: Scene) -> str:
    found = scene.account.client("autoscaling").describe_instance_refreshes(
        AutoScalingGroupName=group(scene)["AutoScalingGroupName"]
    )["InstanceRefreshes"]
    return str(found[0]["Status"]) if found else ""
