"""Instances claim slots: nobody shares one, and everybody gets one while there are enough."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.broker.ec2.slots import Slot, SlotClaims, has_address
from lakehead.storage.aws.client import AwsRefused, AwsUnanswered
from lakehead.storage.aws.instance import Instance
from lakehead.storage.errors import LakeheadError, SettingsError, StorageError
from tests.simulation.loop import simulate
from tests.support.fake_interfaces import FakeInterfaces
from tests.support.repetitions import examples

TAGS = {"lakehead:bucket": "b", "lakehead:cluster": "c", "lakehead:group": "c"}


def world(slots: int, zone: str = "z-1a") -> FakeInterfaces:
    ec2 = FakeInterfaces()
    for number in reversed(range(slots)):
        ec2.add_slot(f"a-{number}", 100 * number, zone)
    return ec2


def claims_of(
    ec2: FakeInterfaces,
    instance_id: str,
    *,
    tags: dict[str, str] | None = TAGS,
    zone_id: str = "z1-az3",
    is_here: Callable[[str], bool] = lambda address: True,
    wait_s: float = 600,
) -> SlotClaims:
    async def metadata() -> Instance:
        return Instance(
            instance_id=instance_id, region="z-1", zone="z-1a", zone_id=zone_id, tags=tags
        )

    return SlotClaims(metadata, lambda region: ec2, is_here, wait_s=wait_s)


def claim(ec2: FakeInterfaces, instance_id: str, **options: object) -> Slot:
    return simulate(lambda: claims_of(ec2, instance_id, **options).claim(), seed=1)  # type: ignore[arg-type]


def test_the_lowest_free_slot_of_the_zone_and_cluster_is_taken() -> None:
    ec2 = world(3)
    ec2.add_slot("b-0", 1, "z-1b")
    ec2.add_slot("a-0", 2, cluster="other")
    assert claim(ec2, "i-0") == Slot(
        cluster="c", name="a-0", node_id=0, zone_id="z1-az3", address="10.0.0.0"
    )
    assert claim(ec2, "i-1").name == "a-1"
    ec2.end("i-0")
    assert claim(ec2, "i-2").name == "a-0"


def test_after_a_reboot_an_instance_has_the_slot_it_had() -> None:
    ec2 = world(3)
    claim(ec2, "i-0")
    own = claim(ec2, "i-1")
    ec2.end("i-0")  # a lower one is free now
    before = ec2.calls.count("attach")
    assert claim(ec2, "i-1") == own
    assert ec2.calls.count("attach") == before


def test_where_all_are_taken_it_waits_until_one_is_free() -> None:
    async def scene() -> None:
        ec2 = world(1)
        await claims_of(ec2, "i-0").claim()
        asyncio.get_running_loop().call_later(300, ec2.end, "i-0")
        slot = await claims_of(ec2, "i-1").claim()
        assert slot.name == "a-0"
        assert 300 < asyncio.get_running_loop().time() < 310

    simulate(scene, seed=1)


def test_where_none_becomes_free_it_ends_in_time_with_one_line() -> None:
    ec2 = world(2)
    claim(ec2, "i-0")
    claim(ec2, "i-1")
    with pytest.raises(StorageError, match="in z-1a within 30 s: all 2 slots there are in use"):
        claim(ec2, "i-2", wait_s=30)
    assert ec2.holders() == {"a-0": "i-0", "a-1": "i-1"}
    assert len(ec2.calls) < 40


@pytest.mark.parametrize(
    ("tags", "missing"),
    [
        (None, "bucket"),
        ({}, "bucket"),
        ({"lakehead:group": "c"}, "bucket"),
        ({"lakehead:cluster": "c"}, "bucket"),
        ({"lakehead:bucket": "b"}, "cluster"),
    ],
)
def test_an_instance_without_a_tag_of_its_cluster_is_refused(
    tags: dict[str, str] | None, missing: str
) -> None:
    with pytest.raises(SettingsError, match=f"shows no tag lakehead:{missing}"):
        claim(world(1), "i-0", tags=tags)


def test_a_slot_s_rack_is_the_id_of_the_zone_and_never_its_name() -> None:
    with pytest.raises(SettingsError, match="do not contain the id of its zone"):
        claim(world(1), "i-0", zone_id="")
    assert claim(world(1), "i-0", zone_id="use1-az4").zone_id == "use1-az4"


def test_two_clusters_of_one_name_never_take_slots_of_each_other() -> None:
    ec2 = world(1)
    ec2.add_slot("a-0", 0, bucket="another")
    other = {**TAGS, "lakehead:bucket": "another"}
    claim(ec2, "i-0")
    claim(ec2, "i-1", tags=other)
    assert [ec2.table[f"eni-{bucket}-c-a-0"].instance_id for bucket in ("b", "another")] == [
        "i-0",
        "i-1",
    ]
    for tags in (TAGS, other):
        with pytest.raises(StorageError, match="all 1 slots there are in use"):
            claim(ec2, "i-2", tags=tags, wait_s=5)


def test_a_zone_without_slots_is_named() -> None:
    with pytest.raises(
        StorageError, match="z-1a has no interface with lakehead:bucket=b lakehead:cluster=c"
    ):
        claim(world(2, zone="z-1b"), "i-0", wait_s=5)


def test_an_interface_without_a_node_id_is_named() -> None:
    ec2 = world(1)
    ec2.table["eni-b-c-a-0"].tags.pop("lakehead:node-id")  # type: ignore[attr-defined]
    with pytest.raises(SettingsError, match="interface eni-b-c-a-0 needs a tag lakehead:node-id"):
        claim(ec2, "i-0")


def test_what_the_policy_forbids_ends_at_once() -> None:
    ec2 = world(1)

    def forbid(call: str, is_after: bool) -> None:
        raise AwsRefused("UnauthorizedOperation", "You are not authorized")

    ec2.trouble = forbid
    with pytest.raises(SettingsError, match=r"no slot may be claimed by i-0: .*Unauthorized"):
        claim(ec2, "i-0")
    assert len(ec2.calls) == 1


def test_a_service_that_does_not_answer_is_asked_until_the_time_is_up() -> None:
    ec2 = world(1)

    def lose(call: str, is_after: bool) -> None:
        raise AwsUnanswered("timeout")

    ec2.trouble = lose
    with pytest.raises(StorageError, match="within 60 s: timeout"):
        claim(ec2, "i-0", wait_s=60)


def test_it_is_not_ready_until_its_address_is_here() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        await claims_of(world(1), "i-0", is_here=lambda address: loop.time() > 7).claim()
        assert 7 < loop.time() < 9

    simulate(scene, seed=1)
    with pytest.raises(StorageError, match=r"10\.0\.0\.0, the address of slot a-0, is not on"):
        claim(world(1), "i-0", is_here=lambda address: False)


def test_an_address_of_this_machine_is_told_from_another() -> None:
    assert has_address("127.0.0.1")
    assert not has_address("192.0.2.7")  # of no machine: RFC 5737


@settings(max_examples=examples(120), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    instances=st.integers(1, 12),
    spare=st.integers(0, 3),
    odds=st.floats(0, 0.5),
    lags=st.booleans(),
)
def test_whoever_races_for_slots_each_gets_one_of_its_own(
    seed: int, instances: int, spare: int, odds: float, lags: bool
) -> None:
    """Answers are lost before and after what they tell of, what EC2 shows is old, and processes end
    in the middle and begin again. While it goes on, a slot has one instance, an instance one slot.
    """
    random = Random(seed)
    ec2 = world(instances + spare)
    ec2.lags = lags
    promised: dict[str, Slot] = {}

    async def machine(instance_id: str) -> None:
        while instance_id not in promised:
            try:
                async with asyncio.timeout(random.uniform(0.01, 30)):  # the process is killed
                    promised[instance_id] = await claims_of(ec2, instance_id).claim()
            except (TimeoutError, LakeheadError):
                await asyncio.sleep(random.random())
            check()

    def check() -> None:
        held = ec2.holders()
        assert len(set(held.values())) == len(held)
        assert all(held[slot.name] == one for one, slot in promised.items())

    async def time_passes() -> None:
        while len(promised) < instances:
            await asyncio.sleep(3)
            ec2.catch_up()

    def lose(call: str, is_after: bool) -> None:
        if asyncio.get_running_loop().time() < 60 and random.random() < odds:
            raise AwsUnanswered("lost")

    async def scene() -> None:
        ec2.trouble = lose
        async with asyncio.TaskGroup() as group:
            for number in range(instances):
                group.create_task(machine(f"i-{number}"))
            group.create_task(time_passes())
        check()
        # A reboot of all of them changes nothing.
        ec2.catch_up()
        for instance_id, slot in promised.items():
            assert await claims_of(ec2, instance_id).claim() == slot

    simulate(scene, seed=seed)


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32), odds=st.floats(0, 0.4))
def test_instances_come_and_go_and_each_gets_a_slot(seed: int, odds: float) -> None:
    """As a group does it: more are started than there are slots, while others end."""
    random = Random(seed)
    ec2 = world(4)

    async def life(instance_id: str) -> None:
        await asyncio.sleep(random.uniform(0, 200))
        slot = await claims_of(ec2, instance_id, wait_s=10_000).claim()
        await asyncio.sleep(random.uniform(0, 100))
        assert ec2.holders()[slot.name] == instance_id
        ec2.end(instance_id)

    def lose(call: str, is_after: bool) -> None:
        if random.random() < odds:
            raise AwsUnanswered("lost")

    async def scene() -> None:
        ec2.trouble = lose
        async with asyncio.TaskGroup() as group:
            for number in range(10):
                group.create_task(life(f"i-{number}"))
        assert ec2.holders() == {}

    simulate(scene, seed=seed)
