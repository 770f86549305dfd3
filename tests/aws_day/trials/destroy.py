"""The end of a cluster: refused while it has data, complete when it is meant, and what stays can be
read.
"""

from typing import Any

from tests.aws_day.day_report import Expected
from tests.aws_day.leftovers import leftovers
from tests.aws_day.trial import Scene, Trial

_LOAD_S = 30
_SNAPSHOT_S = 1200


class Destroy(Trial):
    """The example minimal, with records in it."""

    name = "destroy"
    minutes = 60
    expected = (
        Expected(name="refused", unit="", source="the guard", at_least=1, at_most=1),
        Expected(name="gone_in_refusal", unit="", source="the guard", at_least=0, at_most=0),
        Expected(name="destroy", unit="min", source="no figure yet"),
        Expected(name="snapshots", unit="", source="one of each WAL volume", at_least=2, at_most=2),
        Expected(
            name="readable", unit="", source="a volume is made of each", at_least=2, at_most=2
        ),
    )

    def arguments(self) -> dict[str, Any]:
        """Return what the cluster is: the example minimal."""
        return {"hosts_per_zone": 2, "wal_mode": "io2-multi-attach"}

    def run(self, scene: Scene) -> None:
        """Destroy twice; then make volumes of the snapshots, and remove both."""
        scene.hosts.result(scene.client(scene.instance("a-0"), "load", _LOAD_S))
        before = leftovers(scene.account, scene.trial)
        said = scene.cluster.refused_destroy()
        scene.figure("refused", float("Nothing was destroyed" in said))
        after = leftovers(scene.account, scene.trial)
        scene.figure("gone_in_refusal", len(set(before) - set(after)))
        clock = scene.limits.clock
        began = clock.monotonic()
        scene.cluster.destroy(lambda: None)
        scene.figure("destroy", (clock.monotonic() - began) / 60)
        left = leftovers(scene.account, scene.trial)
        others = [str(one) for one in left if one.kind != "snapshot"]
        if others:
            scene.note(f"Terraform left beside snapshots: {', '.join(others)}")
        snapshots = [one.name for one in left if one.kind == "snapshot"]
        scene.figure("snapshots", len(snapshots))
        readable = sum(_is_readable(scene, one) for one in snapshots)
        scene.figure("readable", readable)
        for one in snapshots:
            scene.account.client("ec2").delete_snapshot(SnapshotId=one)


def _is_readable(scene: Scene, snapshot: str) -> bool:
    """Make a volume of a snapshot, which needs its key, and delete it."""
    ec2 = scene.account.client("ec2")
    tags = [{"ResourceType": "volume", "Tags": scene.account.tags(scene.trial)}]
    volume = ""

    def remove() -> None:
        if volume:
            ec2.delete_volume(VolumeId=volume)

    with scene.ledger.kept(scene.trial, "volume", f"of {snapshot}", remove):
        volume = ec2.create_volume(
            AvailabilityZone=scene.account.zone, SnapshotId=snapshot, TagSpecifications=tags
        )["VolumeId"]

        def told() -> str:
            found = ec2.describe_volumes(VolumeIds=[volume])["Volumes"]
            return str(found[0]["State"]) if found else "error"

        scene.limits.until(
            "a volume of a snapshot", _SNAPSHOT_S, lambda: told() in {"available", "error"}
        )
        return told() == "available"
