"""A preempted host writes no more: reservations of EBS, by the WAL's own code."""

from typing import Any

from tests.aws_day.day_report import Expected
from tests.aws_day.trial import Scene, Trial
from tests.aws_day.trials.scratch import attach, scratch_volume, stop, wait_for

_HOLD_S = 90
_BEGIN_S = 20
"""In which the holder's program has begun to write."""
_CLOCKS_MS = 10
"""How far clocks of two instances are apart at the most, by Amazon's time service."""
_SOURCE = "QEMU, docs/storage/block-wal.md"


def _expected(way: str) -> tuple[Expected, ...]:
    return (
        Expected(name=f"{way}_done", unit="", source=_SOURCE, at_least=1, at_most=1),
        Expected(name=f"{way}_preempt", unit="ms", source=_SOURCE, at_most=1000),
        Expected(name=f"{way}_late_writes", unit="", source="the fence", at_least=0, at_most=0),
        Expected(name=f"{way}_errno", unit="", source="EBADE", at_least=52, at_most=52),
    )


class Reservations(Trial):
    """A scratch io2 volume that two hosts have: one writes, the other preempts it."""

    name = "io2"
    minutes = 60
    expected = (
        *_expected("plain"),
        *_expected("abort"),
        Expected(name="kept_over_a_stop", unit="", source="AWS says nothing of it"),
    )

    def arguments(self) -> dict[str, Any]:
        """Return what the cluster is: the example minimal, in which a stopped host stays so."""
        return {"hosts_per_zone": 2, "wal_mode": "io2-multi-attach", "self_healing": False}

    def run(self, scene: Scene) -> None:
        """Fence in both ways, then stop the taker's instance and look again."""
        holder, taker = scene.instance("a-0"), scene.instance("a-1")
        with scratch_volume(scene, shared=True) as volume:
            for instance in (holder, taker):
                attach(scene, volume, instance)
            wait_for(scene, volume, {holder, taker})
            for instance in (holder, taker):
                scene.hosts.run(instance, "device", volume, "120")
            for way in ("plain", "abort"):
                held = scene.hosts.begin(holder, "reservations", "hold", volume, str(_HOLD_S))
                scene.limits.clock.sleep(_BEGIN_S)
                took = scene.hosts.run(taker, "reservations", "take", volume, way)
                was = scene.hosts.result(held)
                late_ms = was["last_write_began_ms"] - took["returned_ms"] - _CLOCKS_MS
                scene.figure(f"{way}_done", took["done"])
                scene.figure(f"{way}_preempt", took["preempt_ms"])
                scene.figure(f"{way}_late_writes", float(late_ms > 0))
                scene.figure(f"{way}_errno", was["refused_errno"])
                if way == "plain":
                    scene.hosts.run(taker, "reservations", "clear", volume)
            stop(scene, taker, by_force=False)
            seen = scene.hosts.run(holder, "reservations", "look", volume)
            scene.figure("kept_over_a_stop", seen["is_taker"])
            scene.note("kept_over_a_stop: 1 kept, 0 not kept or the kernel cannot read it.")
