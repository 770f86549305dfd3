"""How long EC2 takes to attach and detach a volume, also from a host that was stopped by force."""

import statistics
from typing import Any

from tests.aws_day.day_report import Expected
from tests.aws_day.trial import Scene, Trial
from tests.aws_day.trials.scratch import attach, scratch_volume, stop, wait_for

_TIMES = 5
_SOURCE = "others' experience, 10 to 20 s"


class Attachments(Trial):
    """A scratch gp3 volume goes to and fro between two hosts."""

    name = "attach"
    minutes = 60
    expected = (
        Expected(name="attach_median", unit="s", source=_SOURCE, at_most=20),
        Expected(name="seen_median", unit="s", source=_SOURCE, at_most=25),
        Expected(name="detach_median", unit="s", source=_SOURCE, at_most=20),
        Expected(name="stop", unit="s", source="part of a takeover with gp3"),
        Expected(name="force_detach", unit="s", source=_SOURCE, at_most=60),
    )

    def arguments(self) -> dict[str, Any]:
        """Return what the cluster is: two hosts without volumes; a stopped one stays so."""
        return {"hosts_per_zone": 2, "wal_mode": "object", "self_healing": False}

    def run(self, scene: Scene) -> None:
        """Attach, look, detach, five times; then from a host that was stopped by force."""
        ec2, clock = scene.account.client("ec2"), scene.limits.clock
        one, other = scene.instance("a-0"), scene.instance("a-1")
        attached, seen, detached = [], [], []
        with scratch_volume(scene, shared=False) as volume:
            for _ in range(_TIMES):
                watch = scene.hosts.begin(one, "device", volume, "300")
                clock.sleep(5)  # the program begins to look
                asked_ms = clock.now_ms()
                attach(scene, volume, one)
                attached.append(wait_for(scene, volume, {one}))
                told = scene.hosts.result(watch)
                seen.append(max(0.0, (told["seen_ms"] - asked_ms) / 1000))
                ec2.detach_volume(VolumeId=volume, InstanceId=one)
                detached.append(wait_for(scene, volume, set()))
            attach(scene, volume, other)
            wait_for(scene, volume, {other})
            scene.figure("stop", stop(scene, other, by_force=True))
            ec2.detach_volume(VolumeId=volume, InstanceId=other, Force=True)
            scene.figure("force_detach", wait_for(scene, volume, set()))
        scene.figure("attach_median", statistics.median(attached))
        scene.figure("seen_median", statistics.median(seen))
        scene.figure("detach_median", statistics.median(detached))
