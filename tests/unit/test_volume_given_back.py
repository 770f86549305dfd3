"""A volume that only one instance can have is given back after a takeover, and its own instance
has it again without anybody's help.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from immutables import Map

from lakehead.storage.aws.client import AwsUnanswered
from lakehead.storage.errors import LakeheadError, StorageError
from lakehead.storage.metadata.state import MetadataImage, NodeState, StreamState
from lakehead.storage.metadata.table import Table
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.stream.unrecovered_wals import UnrecoveredWals, is_to_give_back
from lakehead.storage.wal import WriteAheadLog
from lakehead.storage.wal.address import open_wal, take_wal
from lakehead.storage.wal.ebs import hand_back
from tests.simulation.loop import simulate
from tests.support.repetitions import examples
from tests.unit.test_ebs_address import SIZE, VOLUME, OneVolume
from tests.unit.test_ebs_volumes import run, volumes_of, world
from tests.unit.test_stream_engine import append, read_all
from tests.unit.test_takeover import fence
from tests.unit.test_takeover_by_device import in_memory, node, two_streams
from tests.unit.test_wal_takeover import Disk

ALONE = f"block:ebs:{VOLUME}?zone=z-1a&shared=no"
SHARED = f"block:ebs:{VOLUME}?zone=z-1a&shared=yes"


def test_a_taker_gives_the_volume_back_and_its_own_instance_has_it_again() -> None:
    async def scene() -> None:
        ec2 = world(is_shared=False, hosts=3)
        owner, taker, other = (volumes_of(ec2, f"i-{number}") for number in range(3))
        await owner.attach(VOLUME, is_own=True)
        ec2.state_of["i-0"] = "stopped"
        await taker.attach(VOLUME)
        ec2.state_of["i-0"] = "running"
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(owner.attach(VOLUME, is_own=True))
            await asyncio.sleep(20)
            assert ec2.holders(VOLUME) == ["i-1"]
            with pytest.raises(StorageError, match="i-1, which is running and may write"):
                await other.attach(VOLUME)
            await taker.give_back(VOLUME)
            await waiting
        assert ec2.holders(VOLUME) == ["i-0"]
        await taker.give_back(VOLUME)
        assert ec2.holders(VOLUME) == ["i-0"], "what is not here any more is left alone"

    run(scene())


def test_a_shared_volume_stays_where_it_is() -> None:
    async def scene() -> None:
        ec2 = world(is_shared=True)
        await volumes_of(ec2, "i-0").attach(VOLUME)
        await volumes_of(ec2, "i-0").give_back(VOLUME)
        assert ec2.holders(VOLUME) == ["i-0"]
        assert "detach" not in ec2.calls

    run(scene())


def test_a_volume_that_is_not_given_back_in_time_is_named_by_its_owner() -> None:
    async def scene() -> None:
        ec2 = world(is_shared=False)
        await volumes_of(ec2, "i-1").attach(VOLUME)
        with pytest.raises(StorageError, match=r"within 60 s: .* i-1, .* unless it is giving it"):
            await volumes_of(ec2, "i-0").attach(VOLUME, is_own=True)

    run(scene())


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 2**32), odds=st.floats(0, 0.6))
def test_whatever_answers_are_lost_a_volume_comes_back(seed: int, odds: float) -> None:
    """The taker is asked several times, as by its several nodes; nobody else ever loses it."""
    rng = Random(seed)

    async def scene() -> None:
        ec2 = world(is_shared=False)
        owner, taker = volumes_of(ec2, "i-0"), volumes_of(ec2, "i-1")
        await taker.attach(VOLUME)
        began = asyncio.get_running_loop().time()

        def lose(call: str, is_after: bool) -> None:
            if asyncio.get_running_loop().time() < began + 30 and rng.random() < odds:
                raise AwsUnanswered("lost")

        async def leave(after_s: float) -> None:
            await asyncio.sleep(after_s)
            await volumes_of(ec2, "i-1").give_back(VOLUME)

        ec2.trouble = lose
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(leave(rng.random() * 20))
            await owner.attach(VOLUME, is_own=True)
        assert ec2.holders(VOLUME) == ["i-0"]

    simulate(scene, seed=seed)


async def test_nothing_is_given_back_while_a_process_here_has_a_slice(tmp_path: Path) -> None:
    volumes = OneVolume(tmp_path, is_shared=False, is_here=True)
    logs: list[WriteAheadLog] = [
        await open_wal(
            f"{ALONE}&{SIZE}",
            rng=random.Random(1),
            node_id=node_id,
            host_id="a",
            cluster_id="c",
            volumes=volumes,
        )
        for node_id in range(2)
    ]
    for log in logs:
        assert not await hand_back(ALONE, cluster_id="c", volumes=volumes)
        await log.close()
    taken = await take_wal(ALONE, node_id=1, cluster_id="c", host_id="b", volumes=volumes)
    assert not await hand_back(ALONE, cluster_id="c", volumes=volumes)
    await taken.close()
    assert volumes.asked == []
    assert await hand_back(ALONE, cluster_id="c", volumes=volumes)
    assert volumes.asked == [f"give back {VOLUME}"]
    assert not await hand_back(ALONE, cluster_id="c", volumes=volumes), "it is gone"
    volumes.is_here = True
    for other in (SHARED, "block:/dev/x", "object:"):
        assert not await hand_back(other, cluster_id="c", volumes=volumes)
    with pytest.raises(LakeheadError, match="is the WAL of cluster c"):
        await hand_back(ALONE, cluster_id="another", volumes=volumes)


def state_of(nodes: Sequence[NodeState], open_by: int = -1) -> MetadataImage:
    streams = Table[int, StreamState]()
    stream = StreamState(stream_id=0, topic_id="t", partition=0, node_id=open_by, is_open=True)
    return MetadataImage(
        nodes=Map({n.node_id: n for n in nodes}),
        streams=streams if open_by < 0 else streams.set(0, stream),
    )


def test_a_volume_is_given_back_once_nothing_of_it_is_needed_here() -> None:
    left, beside, taker = (
        NodeState(
            node_id=node_id,
            epoch=1,
            incarnation="i",
            host="h",
            port=1,
            rack=None,
            host_id=host_id,
            wal=wal,
            is_fenced=host_id == "a",
        )
        for node_id, host_id, wal in [(0, "a", ALONE), (1, "a", ALONE), (2, "b", "object:")]
    )
    everybody = [left, beside, taker]
    assert is_to_give_back(state_of(everybody), taker, left)
    assert not is_to_give_back(state_of(everybody, open_by=1), taker, left), "node 1 is not done"
    recovered = replace(beside, wal_epoch=2)
    assert is_to_give_back(state_of([left, recovered, taker], open_by=1), taker, left)
    for change in (replace(beside, is_fenced=False), replace(beside, host_id="b")):
        assert not is_to_give_back(state_of([left, change, taker]), taker, left)
    shared = replace(left, wal=SHARED)
    assert not is_to_give_back(state_of([shared, taker]), taker, shared)


async def test_a_recovery_ends_with_the_volume_given_back() -> None:
    store, disk, given = MemoryStore(), Disk(), list[str]()
    await disk.format("a")

    async def take(uri: str, **options: object) -> WriteAheadLog:
        assert uri == ALONE
        return await disk.take("b", other_hosts=("a",))

    async def give(uri: str, *, cluster_id: str) -> bool:
        assert cluster_id == taker.metadata.state.cluster_id
        given.append(uri)
        return True

    own = ALONE.replace(VOLUME, "vol-00000001")
    async with (
        node(store, 0, "a", ALONE, lambda: disk.open("a")) as lost,
        node(store, 1, "b", own, in_memory) as taker,
    ):
        streams = await two_streams(lost)
        written = [[await append(s) for _ in range(5)] for s in streams]
        left = UnrecoveredWals(taker, own, take=take, hand_back=give)
        await left.give_back_all()
        assert given == [], "its node lives"
        dead = await fence(taker, 0)
        await left.give_back_all()
        assert given == [], "what it held is not recovered yet"
        assert await left.recover(dead) > 0
        assert given == [ALONE]
        await left.give_back_all()
        assert given == [ALONE] * 2, "as a taker does that was ended in between"
        assert [await read_all(s) for s in await taker.open_streams([0, 1])] == written
