"""A spot instance is taken away: its nodes leave in time, and another host comes."""

from typing import Any

from tests.aws_day.day_report import Expected
from tests.aws_day.experiments import interrupted_spot, running
from tests.aws_day.trial import Scene, Trial
from tests.aws_day.trials.scaling import FEW, serving, spot_instances

_LOAD_S = 900
_AWAY_S = 600
_BACK_S = 1500


class SpotInterruption(Trial):
    """FIS gives a spot instance of the group two minutes' notice while a producer continues."""

    name = "spot"
    minutes = 75
    fault_minutes = 2
    expected = (
        Expected(name="away", unit="s", source="notice of 120 s + the group's own time"),
        Expected(name="replaced", unit="s", source="the hook's 900 s", at_most=900),
        Expected(name="longest_gap", unit="s", source="a move of partitions", at_most=15),
        Expected(name="lost", unit="records", source="never", at_least=0, at_most=0),
        Expected(name="twice", unit="records", source="never", at_least=0, at_most=0),
    )

    def arguments(self) -> dict[str, Any]:
        """Return what the cluster is: two hosts of a group, one of them spot."""
        return {"wal_mode": "object", "scaling": FEW}

    def run(self, scene: Scene) -> None:
        """Interrupt, and see when who is there."""
        victim = min(spot_instances(scene))
        (kept, *_) = sorted(serving(scene) - {victim})
        load = scene.client(kept, "load", _LOAD_S)
        scene.limits.clock.sleep(60)  # the producer is at work
        before = len(serving(scene))
        fault = interrupted_spot(scene.account, victim)
        with running(
            fault,
            account=scene.account,
            ledger=scene.ledger,
            limits=scene.limits,
            trial=scene.trial,
        ):
            away = scene.limits.until(
                "the interrupted host's end", _AWAY_S, lambda: victim not in serving(scene)
            )
            scene.figure("away", away)
            back = scene.limits.until(
                "a host in its place", _BACK_S, lambda: len(serving(scene)) >= before
            )
            scene.figure("replaced", away + back)
        noticed = scene.hosts.result(load, seconds=3600)
        scene.figure("longest_gap", noticed["longest_gap_s"])
        scene.figure("lost", noticed["lost"])
        scene.figure("twice", noticed["twice"])
