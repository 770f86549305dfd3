"""How soon a record is acknowledged with the write-ahead log in S3 Express One Zone."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tests.aws_day.day_report import Expected
from tests.aws_day.trial import Scene, Trial

_LOAD_S = 300


class Express(Trial):
    """One host with `wal_express`, and a producer on it that sends a hundred records a second."""

    name = "express"
    minutes = 45
    not_emulated: Mapping[str, Any] = MappingProxyType({"wal_express": False})
    expected = (
        Expected(name="p50", unit="ms", source="single milliseconds, AWS", at_most=20),
        Expected(name="p99", unit="ms", source="single milliseconds, with room", at_most=100),
        Expected(name="lost", unit="records", source="never", at_least=0, at_most=0),
        Expected(name="twice", unit="records", source="never", at_least=0, at_most=0),
    )

    def arguments(self) -> dict[str, Any]:
        """Return what the cluster is."""
        return {"hosts_per_zone": 1, "wal_mode": "object", "wal_express": True}

    def run(self, scene: Scene) -> None:
        """Write and read back."""
        load = scene.client(scene.instance("a-0"), "load", _LOAD_S, seconds=1800)
        noticed = scene.hosts.result(load, seconds=1800)
        scene.figure("p50", noticed["p50_ms"])
        scene.figure("p99", noticed["p99_ms"])
        scene.figure("lost", noticed["lost"])
        scene.figure("twice", noticed["twice"])
