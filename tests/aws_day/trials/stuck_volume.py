"""A WAL volume on which no write returns: when its node ends, and when clients go on."""

from typing import Any

from tests.aws_day.day_report import Expected
from tests.aws_day.experiments import paused_volume, running, state
from tests.aws_day.trial import Scene, Trial

_PAUSE_MINUTES = 3
_LOAD_S = 480


class StuckVolume(Trial):
    """FIS pauses the volume of one of two hosts while a producer on the other one continues."""

    name = "stuck"
    minutes = 60
    fault_minutes = _PAUSE_MINUTES
    expected = (
        Expected(name="node_ended", unit="s", source="wal.device.timeout.ms + 5 s", at_most=10),
        Expected(
            name="longest_gap",
            unit="s",
            source="the pause, if it is for all that have the volume, + 60 s",
            at_most=_PAUSE_MINUTES * 60 + 60,
        ),
        Expected(name="lost", unit="records", source="never", at_least=0, at_most=0),
        Expected(name="twice", unit="records", source="never", at_least=0, at_most=0),
    )

    def arguments(self) -> dict[str, Any]:
        """Return what the cluster is: the example minimal."""
        return {"hosts_per_zone": 2, "wal_mode": "io2-multi-attach"}

    def run(self, scene: Scene) -> None:
        """Write, pause, and see what the nodes and the producer noticed."""
        stuck, other = scene.instance("a-0"), scene.instance("a-1")
        volume = _wal_volume(scene, "a-0")
        load = scene.client(other, "load", _LOAD_S)
        scene.limits.clock.sleep(60)  # the producer is at work
        fault = paused_volume(scene.account, volume, _PAUSE_MINUTES)
        began_ms = scene.limits.clock.now_ms()
        with running(
            fault,
            account=scene.account,
            ledger=scene.ledger,
            limits=scene.limits,
            trial=scene.trial,
        ) as experiment:
            fis = scene.account.client("fis")
            told = fis.get_experiment(id=experiment)["experiment"]
            began = told["actions"]["fault"].get("startTime") or told["startTime"]
            scene.limits.until(
                "the end of the pause",
                _PAUSE_MINUTES * 60 + 120,
                lambda: state(fis, experiment) not in {"pending", "initiating", "running"},
            )
        seen = scene.hosts.run(stuck, "event", "wal_device_stuck", str(began_ms))
        if seen["count"]:
            scene.figure("node_ended", max(0.0, seen["first_ms"] / 1000 - began.timestamp()))
        noticed = scene.hosts.result(load, seconds=3600)
        scene.figure("longest_gap", noticed["longest_gap_s"])
        scene.figure("lost", noticed["lost"])
        scene.figure("twice", noticed["twice"])


def _wal_volume(scene: Scene, slot: str) -> str:
    wanted = {"lakehead:bucket": scene.account.bucket(scene.trial), "lakehead:wal": slot}
    (volume,) = scene.account.client("ec2").describe_volumes(
        Filters=[{"Name": f"tag:{key}", "Values": [value]} for key, value in wanted.items()]
    )["Volumes"]
    found: str = volume["VolumeId"]
    return found
