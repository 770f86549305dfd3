"""EBS volumes are found and attached, whatever EC2 answers, and never taken from who may write."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakehead.storage.aws.client import AwsRefused, AwsUnanswered
from lakehead.storage.aws.instance import Instance
from lakehead.storage.aws.volumes import InstanceVolumes, NvmeDevices
from lakehead.storage.errors import LakeheadError, SettingsError, StorageError
from tests.simulation.loop import simulate
from tests.support.fake_ec2 import FakeDevices, FakeEc2
from tests.support.repetitions import examples

T = TypeVar("T")
OF_CLUSTER = {"lakehead:bucket": "b", "lakehead:cluster": "c"}
VOLUME = "vol-0123456789abcdef0"


def world(*, is_shared: bool, hosts: int = 2) -> FakeEc2:
    ec2 = FakeEc2()
    for number in range(hosts):
        ec2.add_instance(f"i-{number}")
    ec2.add_volume(VOLUME, is_shared=is_shared)
    return ec2


def volumes_of(
    ec2: FakeEc2, instance_id: str, tags: dict[str, str] | None = None
) -> InstanceVolumes:
    async def metadata() -> Instance:
        return Instance(
            instance_id=instance_id, region="z-1", zone=ec2.zone_of[instance_id], tags=tags
        )

    return InstanceVolumes(metadata, lambda region: ec2, FakeDevices(ec2, instance_id))


def run(coro: Coroutine[Any, Any, T]) -> T:
    return simulate(lambda: coro, seed=1)


def test_a_volume_is_found_by_slot_by_the_instances_own_slot_and_by_id() -> None:
    ec2 = world(is_shared=True)
    ec2.add_volume("vol-00000001", is_shared=True, slot="a-1")
    tags = {"lakehead:bucket": "b", "lakehead:cluster": "c", "lakehead:slot": "a-1"}
    volumes = volumes_of(ec2, "i-0", tags)
    assert run(volumes.find("a-0")).volume_id == VOLUME
    assert run(volumes.find("")).volume_id == "vol-00000001"
    assert run(volumes.find(VOLUME)).volume_id == VOLUME


def test_tags_that_the_metadata_service_does_not_tell_are_asked_of_ec2() -> None:
    ec2 = world(is_shared=True)
    ec2.tags_of["i-0"] = {"lakehead:bucket": "b", "lakehead:cluster": "c", "lakehead:slot": "a-0"}
    assert run(volumes_of(ec2, "i-0", None).find("")).volume_id == VOLUME


@pytest.mark.parametrize(
    ("name", "tags", "line"),
    [
        ("a-9", OF_CLUSTER, "but these exist: none"),
        ("a-0", {**OF_CLUSTER, "lakehead:cluster": "other"}, "but these exist: none"),
        ("a-0", {**OF_CLUSTER, "lakehead:bucket": "other"}, "but these exist: none"),
        ("a-0", {"lakehead:cluster": "c"}, "no tag lakehead:bucket"),
        ("a-0", {"lakehead:bucket": "b"}, "no tag lakehead:cluster"),
        ("a-0", None, "no tag lakehead:bucket"),
        ("", OF_CLUSTER, "no tag lakehead:slot"),
        ("vol-xyz", {}, "not the id of an EBS volume"),
        ("vol-0123456789abcdef1", {}, "but these exist: none"),
    ],
)
def test_a_volume_that_is_not_found_is_one_clear_line(
    name: str, tags: dict[str, str] | None, line: str
) -> None:
    with pytest.raises(SettingsError, match=line):
        run(volumes_of(world(is_shared=True), "i-0", tags).find(name))


@pytest.mark.parametrize("bucket", ["b", "another"])
def test_of_two_clusters_of_one_name_each_finds_its_own_volume(bucket: str) -> None:
    ec2 = world(is_shared=True)
    ec2.add_volume("vol-00000001", is_shared=True, bucket="another")
    tags = {"lakehead:bucket": bucket, "lakehead:cluster": "c", "lakehead:slot": "a-0"}
    found = [run(volumes_of(ec2, "i-0", tags).find(name)).volume_id for name in ("a-0", "")]
    assert found == [VOLUME if bucket == "b" else "vol-00000001"] * 2


def test_two_volumes_of_one_slot_are_refused_with_both_names() -> None:
    ec2 = world(is_shared=True)
    ec2.add_volume("vol-00000001", is_shared=True)
    with pytest.raises(SettingsError, match=f"{VOLUME}, vol-00000001"):
        run(volumes_of(ec2, "i-0", OF_CLUSTER).find("a-0"))


def test_nodes_of_one_host_attach_its_volume_at_once_and_all_get_it() -> None:
    async def scene() -> None:
        ec2 = world(is_shared=False)
        nodes = [volumes_of(ec2, "i-0") for _ in range(4)]
        paths = await asyncio.gather(*(node.attach(VOLUME) for node in nodes))
        assert set(paths) == {Path("/dev/disk/by-id") / VOLUME}
        assert ec2.holders(VOLUME) == ["i-0"]

    run(scene())


def test_volumes_that_one_host_attaches_at_once_get_names_of_their_own() -> None:
    async def scene() -> None:
        ec2 = world(is_shared=True)
        more = [f"vol-{number:08x}" for number in range(12)]
        for volume_id in more:
            ec2.add_volume(volume_id, is_shared=True, slot=volume_id)
        await asyncio.gather(*(volumes_of(ec2, "i-0").attach(v) for v in more))
        assert len(set(ec2.names.values())) == len(more)

    run(scene())


@pytest.mark.parametrize(
    ("tag", "taken", "name"),
    [
        ("/dev/sdk", "", "/dev/sdk"),
        ("/dev/sdk", "/dev/sdk", "/dev/sdl"),
        ("/dev/xvdcz", "/dev/xvdcz", "/dev/sdf"),
    ],
)
def test_a_volume_is_attached_under_the_name_of_its_tag_if_that_is_free(
    tag: str, taken: str, name: str
) -> None:
    async def scene() -> None:
        ec2 = world(is_shared=True)
        volume = ec2.table[VOLUME]
        ec2.table[VOLUME] = replace(volume, tags={**volume.tags, "lakehead:device": tag})
        if taken:
            ec2.names["i-0", "vol-00000001"] = taken
        await volumes_of(ec2, "i-0").attach(VOLUME)
        assert ec2.names["i-0", VOLUME] == name

    run(scene())


def test_a_tag_that_is_no_device_name_is_passed_over() -> None:
    async def scene() -> None:
        ec2 = world(is_shared=True)
        volume = ec2.table[VOLUME]
        ec2.table[VOLUME] = replace(volume, tags={**volume.tags, "lakehead:device": "/dev/sda1"})
        await volumes_of(ec2, "i-0").attach(VOLUME)
        assert ec2.names["i-0", VOLUME] not in {"", "/dev/sda1"}

    run(scene())


def test_another_zone_is_refused_before_anything_is_asked_of_it() -> None:
    ec2 = world(is_shared=True)
    ec2.add_instance("i-far", "z-1b")
    with pytest.raises(SettingsError, match=r"z-1a and i-far in z-1b"):
        run(volumes_of(ec2, "i-far").attach(VOLUME))
    assert "attach" not in ec2.calls


def test_the_seventeenth_instance_is_refused() -> None:
    async def scene() -> None:
        ec2 = world(is_shared=True, hosts=17)
        for number in range(16):
            await volumes_of(ec2, f"i-{number}").attach(VOLUME)
        with pytest.raises(SettingsError, match="16 instances, the most"):
            await volumes_of(ec2, "i-16").attach(VOLUME)

    run(scene())


@pytest.mark.parametrize("state", ["running", "pending"])
def test_a_volume_of_one_host_is_not_taken_from_one_that_may_write(state: str) -> None:
    async def scene() -> None:
        ec2 = world(is_shared=False)
        await volumes_of(ec2, "i-0").attach(VOLUME)
        ec2.state_of["i-0"] = state
        with pytest.raises(StorageError, match=f"i-0, which is {state} and may write"):
            await volumes_of(ec2, "i-1").attach(VOLUME)
        assert ec2.holders(VOLUME) == ["i-0"]
        assert "detach" not in ec2.calls

    run(scene())


@pytest.mark.parametrize("state", ["stopped", "terminated"])
def test_a_volume_of_one_host_moves_once_its_instance_has_ended(state: str) -> None:
    async def scene() -> None:
        ec2 = world(is_shared=False)
        await volumes_of(ec2, "i-0").attach(VOLUME)
        ec2.state_of["i-0"] = "shutting-down"
        asyncio.get_running_loop().call_later(20, ec2.state_of.update, {"i-0": state})
        await volumes_of(ec2, "i-1").attach(VOLUME)
        assert ec2.holders(VOLUME) == ["i-1"]
        assert ec2.calls.count("detach") == 1

    run(scene())


def test_of_an_instance_that_ec2_does_not_know_nothing_is_detached() -> None:
    """It may be EC2 that errs."""

    async def scene() -> None:
        ec2 = world(is_shared=False)
        await volumes_of(ec2, "i-0").attach(VOLUME)
        del ec2.state_of["i-0"]
        with pytest.raises(StorageError, match="within 60 s: i-0, which has it, is unknown"):
            await volumes_of(ec2, "i-1").attach(VOLUME)
        assert "detach" not in ec2.calls

    run(scene())


def test_without_an_answer_it_ends_in_time_with_the_reason() -> None:
    async def scene() -> None:
        ec2 = world(is_shared=True)

        def silent(call: str, is_after: bool) -> None:
            raise AwsUnanswered("AWS did not answer: timeout")

        ec2.trouble = silent
        volumes = volumes_of(ec2, "i-0")
        for call in (volumes.attach, volumes.find):
            began = asyncio.get_running_loop().time()
            with pytest.raises(StorageError, match="within 60 s: AWS did not answer: timeout"):
                await call(VOLUME)
            assert asyncio.get_running_loop().time() - began == pytest.approx(60)
        assert len(ec2.calls) < 80

    run(scene())


def test_a_policy_that_forbids_it_is_said_at_once() -> None:
    async def scene() -> None:
        ec2 = world(is_shared=True)

        def forbid(call: str, is_after: bool) -> None:
            if call == "attach":
                raise AwsRefused("UnauthorizedOperation", "you may not")

        ec2.trouble = forbid
        with pytest.raises(SettingsError, match="UnauthorizedOperation: you may not"):
            await volumes_of(ec2, "i-0").attach(VOLUME)
        assert ec2.calls.count("attach") == 1

    run(scene())


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32), is_shared=st.booleans(), odds=st.floats(0, 0.6))
@example(seed=5104184, is_shared=False, odds=0.15625)
def test_whatever_is_lost_the_volume_is_with_whom_it_was_promised(
    seed: int, is_shared: bool, odds: float
) -> None:
    """Several hosts want it, one of them dies, answers are lost before and after what they tell
    of. Who was told that it is attached has it, and of an unshared one only the dead lost it.
    """
    rng = Random(seed)

    async def scene() -> None:
        ec2 = world(is_shared=is_shared, hosts=3)

        def lose(call: str, is_after: bool) -> None:
            if asyncio.get_running_loop().time() < 30 and rng.random() < odds:
                raise AwsUnanswered("lost")

        ec2.trouble = lose

        async def want(instance_id: str) -> str:
            try:
                await volumes_of(ec2, instance_id).attach(VOLUME)
            except LakeheadError:
                return ""
            assert instance_id in ec2.holders(VOLUME) or ec2.state_of[instance_id] != "running"
            return instance_id

        loop = asyncio.get_running_loop()
        loop.call_later(rng.random() * 20, ec2.state_of.update, {"i-0": "stopped"})
        got = await asyncio.gather(*(want(f"i-{number}") for number in range(3)))
        running = {i for i in got if i and ec2.state_of[i] == "running"}
        assert running <= set(ec2.holders(VOLUME))
        assert len(running) <= 1 or is_shared
        if is_shared:
            assert running >= {"i-1", "i-2"}
        else:
            assert len(ec2.holders(VOLUME)) <= 1

    simulate(scene, seed=seed)


def linked(root: Path, serial: str | None) -> NvmeDevices:
    (root / "dev/disk/by-id").mkdir(parents=True)
    (root / "dev/nvme3n1").touch()
    link = root / "dev/disk/by-id" / f"nvme-Amazon_Elastic_Block_Store_{VOLUME.replace('-', '')}"
    link.symlink_to("../../nvme3n1")
    if serial is not None:
        folder = root / "sys/class/block/nvme3n1/device"
        folder.mkdir(parents=True)
        (folder / "serial").write_text(serial)
    return NvmeDevices(root, is_disk=Path.is_file)


@pytest.mark.parametrize("serial", ["vol0123456789abcdef0\n", "vol-0123456789abcdef0   \n"])
async def test_the_disk_of_a_volume_has_its_serial_number(tmp_path: Path, serial: str) -> None:
    assert await linked(tmp_path, serial).is_here(VOLUME)


@pytest.mark.parametrize("serial", ["vol00000000000000000", "", None])
async def test_a_link_to_another_disk_is_refused(tmp_path: Path, serial: str | None) -> None:
    with pytest.raises(SettingsError, match="not volume vol-0123456789abcdef0"):
        await linked(tmp_path, serial).is_here(VOLUME)


async def test_a_disk_that_is_not_there_is_not_here(tmp_path: Path) -> None:
    assert not await NvmeDevices(tmp_path).is_here(VOLUME)
