"""A block WAL by the name of an EBS volume: what the cluster is told, who may take it, and how."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from immutables import Map

from lakehead.storage.aws.ec2 import EbsVolume
from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.state import MetadataImage, NodeState
from lakehead.storage.stream.unrecovered_wals import may_reach_device
from lakehead.storage.wal.address import locate_wal, open_wal, public_address, take_wal
from lakehead.storage.wal.ebs import may_have

SIZE = "size=4MiB&slices=2"
VOLUME = "vol-0123456789abcdef0"


class OneVolume:
    """The volumes of a machine that has one, `is_here` or to be attached: a file."""

    def __init__(self, folder: Path, *, is_shared: bool = True, is_here: bool = False) -> None:
        self.disk = folder / "disk"
        self.is_shared = is_shared
        self.is_here = is_here
        self.asked: list[str] = []

    async def find(self, name: str) -> EbsVolume:
        self.asked.append(f"find {name}")
        return EbsVolume(volume_id=VOLUME, zone="z-1a", state="in-use", is_shared=self.is_shared)

    async def here(self, volume_id: str) -> Path | None:
        assert volume_id == VOLUME
        return self.disk if self.is_here else None

    async def attach(self, volume_id: str, *, is_own: bool = False) -> Path:
        self.asked.append(f"attach {volume_id}{' of its own' * is_own}")
        self.is_here = True
        return self.disk

    async def give_back(self, volume_id: str) -> None:
        self.asked.append(f"give back {volume_id}")
        self.is_here = False


@pytest.mark.parametrize("name", ["", "a-0", VOLUME])
async def test_the_cluster_is_told_the_volume_and_no_more(tmp_path: Path, name: str) -> None:
    volumes = OneVolume(tmp_path)
    uri = await locate_wal(f"block:ebs:{name}?{SIZE}&preempt=plain&format=yes", volumes)
    told = public_address(uri)
    assert told == f"block:ebs:{VOLUME}?preempt=plain&zone=z-1a&shared=yes"
    assert volumes.asked == [f"find {name}"]


async def test_other_addresses_stay_as_they_are_and_ask_nothing() -> None:
    for uri in ("block:/dev/disk/by-id/x?slices=2", "object:", "memory:", "block:./ebs:x"):
        assert await locate_wal(uri) == uri


async def test_what_ec2_knows_is_not_taken_from_the_user(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="leave out shared"):
        await locate_wal("block:ebs:a-0?shared=no", OneVolume(tmp_path))


async def test_a_mistake_in_an_option_is_found_before_anything_is_attached(tmp_path: Path) -> None:
    volumes = OneVolume(tmp_path)
    with pytest.raises(SettingsError, match="no option sise"):
        await open_wal("block:ebs:a-0?sise=1", rng=random.Random(1), volumes=volumes)
    assert volumes.asked == []


async def test_a_volume_is_attached_to_be_opened_and_to_be_taken_over(tmp_path: Path) -> None:
    own = await locate_wal(f"block:ebs:a-0?{SIZE}", OneVolume(tmp_path))
    volumes = OneVolume(tmp_path)
    wal = await open_wal(own, rng=random.Random(1), host_id="a", cluster_id="c", volumes=volumes)
    await wal.close()
    assert volumes.asked == [f"attach {VOLUME} of its own"]

    for is_here in (False, True):
        other = OneVolume(tmp_path, is_here=is_here)
        left = await take_wal(
            public_address(own), node_id=0, host_id="b", cluster_id="c", volumes=other
        )
        assert other.asked == ([] if is_here else [f"attach {VOLUME}"])
        await left.close()


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_disk_of_one_instance_needs_no_reservation_and_a_shared_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    volumes = OneVolume(tmp_path, is_shared=is_shared, is_here=True)
    own = await locate_wal(f"block:ebs:a-0?{SIZE}", volumes)
    wal = await open_wal(own, rng=random.Random(1), host_id="a", cluster_id="c", volumes=volumes)
    await wal.close()
    monkeypatch.setattr(Path, "is_block_device", lambda path: path == volumes.disk)
    taking = take_wal(public_address(own), node_id=0, host_id="b", cluster_id="c", volumes=volumes)
    if is_shared:  # a file has none, as a volume that is not io2
        with pytest.raises(SettingsError, match="reservation"):
            await taking
    else:
        await (await taking).close()


def test_volumes_of_one_zone_are_reached_by_nodes_that_have_such_too() -> None:
    def wal(zone: str, volume: str = "vol-1") -> str:
        return f"block:ebs:{volume}?preempt=plain&zone={zone}&shared=yes"

    assert may_have(wal("z-1a", "vol-2"), wal("z-1a"))
    assert not may_have(wal("z-1b"), wal("z-1a"))
    assert not may_have("object:", wal("z-1a"))
    assert not may_have("block:/dev/x", "block:/dev/y")
    assert not may_have("", "")

    def node(node_id: int, zone: str, *, is_fenced: bool = False) -> NodeState:
        return NodeState(
            node_id=node_id,
            epoch=1,
            incarnation="i",
            host="h",
            port=1,
            rack=None,
            host_id=f"host {node_id}",
            wal=wal(zone, f"vol-{node_id}"),
            is_fenced=is_fenced,
        )

    nodes = {0: node(0, "z-1a", is_fenced=True), 1: node(1, "z-1a"), 2: node(2, "z-1b")}
    state = MetadataImage(nodes=Map(nodes))
    assert may_reach_device(state, nodes[1], nodes[0])
    assert not may_reach_device(state, nodes[2], nodes[0])
