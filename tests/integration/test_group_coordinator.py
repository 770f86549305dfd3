"""The coordinator of a whole node, over its real log: what it promised it knows after a restart."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.coordinator import GroupCoordinator
from lakehead.broker.coordinator.group.messages import JoinRequest, JoinResult, SyncRequest
from lakehead.broker.coordinator.group.record_formats import CommittedOffset
from lakehead.broker.coordinator.shards import partition_of
from lakehead.broker.node import Node, start_node
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.messages import entity
from lakehead.broker.settings import Settings
from tests.support.api_client import api_client

WAL_MIB = 64
PLACE = ("orders", 0)
NONE = ErrorCode.none


def settings_for(folder: Path) -> Settings:
    return Settings(
        data=str(folder),
        port=0,
        wal_size=WAL_MIB << 20,
        cache_size=16 << 20,
        upload_age_ms=200,
        offsets_topic_num_partitions=3,
    )


@asynccontextmanager
async def node_at(settings: Settings) -> AsyncIterator[Node]:
    node = await start_node(settings, rng=random.Random(7))
    try:
        yield node
    finally:
        await node.close()


async def ready(node: Node, group_id: str) -> GroupCoordinator:
    await node.groups.partition_for(group_id)
    if node.topics.find(PLACE[0]) is None:
        await node.replication_control.create(PLACE[0], 1)
    return node.groups


def joining(member_id: str = "", **changes: object) -> JoinRequest:
    request = JoinRequest(
        member_id=member_id,
        instance_id=None,
        client_id="c",
        client_host="/127.0.0.1",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=(("range", b"m"),),
        needs_known_member_id=False,
        can_skip_assignment=True,
    )
    return replace(request, **changes)  # type: ignore[arg-type]


async def lone_member(groups: GroupCoordinator, group_id: str) -> JoinResult:
    joined = await groups.join(group_id, joining())
    synced = await groups.sync(
        group_id,
        SyncRequest(
            member_id=joined.member_id,
            instance_id=None,
            generation=joined.generation,
            protocol_type="consumer",
            protocol_name="range",
            assignments=((joined.member_id, b"mine"),),
        ),
    )
    assert synced.assignment == b"mine"
    return joined


@pytest.mark.parametrize(
    ("group_id", "code"),
    [
        ("", 0),
        ("g", 103),
        ("hello", 99162322),
        ("é€😀", 16752006),
        ("polygenelubricants", 0),
        ("x" * 32_767, 2080510088),
    ],
)
def test_groups_are_placed_by_javas_hash(group_id: str, code: int) -> None:
    assert partition_of(group_id, 2**31 - 1) == code


async def test_offsets_and_members_are_there_after_a_restart(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    async with node_at(settings) as node:
        groups = await ready(node, "g")
        member = await lone_member(groups, "g")
        check = groups.check_commit("g", member.member_id, None, 1)
        assert check is NONE
        await groups.commit("g", {PLACE: CommittedOffset(offset=41, metadata="no")})
        await groups.commit("g", {PLACE: CommittedOffset(offset=42, metadata="yes")})
    async with node_at(settings) as node:
        stored = (await node.groups.offsets("g"))[PLACE]
        assert (stored.offset, stored.metadata) == (42, "yes")
        assert await node.groups.heartbeat("g", member.member_id, None, 1) is NONE
        described = await node.groups.describe("g")
        assert described is not None
        assert described.snapshot is not None
        assert [m.assignment for m in described.snapshot.members] == [b"mine"]


async def test_a_deleted_group_does_not_come_back(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    async with node_at(settings) as node:
        groups = await ready(node, "g")
        member = await lone_member(groups, "g")
        await groups.commit("g", {PLACE: CommittedOffset(offset=1)})
        with pytest.raises(KafkaError) as refused:
            await groups.delete_group("g")
        assert refused.value.code is ErrorCode.non_empty_group
        assert await groups.leave("g", [(member.member_id, None)]) == [NONE]
        await groups.delete_group("g")
        assert await groups.describe("g") is None
    async with node_at(settings) as node:
        assert await node.groups.list_groups() == []
        assert await node.groups.offsets("g") == {}
        with pytest.raises(KafkaError) as missing:
            await node.groups.delete_group("g")
        assert missing.value.code is ErrorCode.group_id_not_found


async def test_offsets_of_a_group_with_members_do_not_expire(tmp_path: Path) -> None:
    """However old they are; those of one that was left go, and do not come back."""
    settings = settings_for(tmp_path)
    async with node_at(settings) as node:
        members = {
            group_id: await lone_member(await ready(node, group_id), group_id)
            for group_id in ("active", "left")
        }
        for group_id in members:
            old = CommittedOffset(offset=5, commit_timestamp_ms=1)
            await node.groups.commit(group_id, {PLACE: old})
        assert await node.groups.leave("left", [(members["left"].member_id, None)]) == [NONE]
        for shard in node.groups.shards.loaded():
            list(shard.expire(3_600_000))
        assert (await node.groups.offsets("left"))[PLACE].offset == 5, "it was left just now"
        for shard in node.groups.shards.loaded():
            list(shard.expire(-1))
        assert (await node.groups.offsets("active"))[PLACE].offset == 5
        assert await node.groups.offsets("left") == {}
    async with node_at(settings) as node:
        assert (await node.groups.offsets("active"))[PLACE].offset == 5
        assert await node.groups.offsets("left") == {}


async def test_a_commit_under_way_is_deleted_with_its_group(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    async with node_at(settings) as node:
        groups = await ready(node, "g")
        async with asyncio.TaskGroup() as tasks:
            committed = groups.commit("g", {PLACE: CommittedOffset(offset=1)})
            await asyncio.sleep(0)
            tasks.create_task(groups.delete_group("g"))
        await committed
        assert await groups.offsets("g") == {}
    async with node_at(settings) as node:
        assert await node.groups.offsets("g") == {}


async def test_offsets_of_a_deleted_topic_are_forgotten(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    async with node_at(settings) as node:
        groups = await ready(node, "g")
        await node.replication_control.create("other", 1)
        await groups.commit("g", {PLACE: CommittedOffset(offset=9), ("other", 0): ANY})
        topic = node.topics.find(PLACE[0])
        assert topic is not None
        await node.replication_control.delete(topic.topic_id)
        await groups.commit("g", {("other", 0): ANY})
        assert set(await groups.offsets("g")) == {("other", 0)}
    async with node_at(settings) as node:
        assert set(await node.groups.offsets("g")) == {("other", 0)}


ANY = CommittedOffset(offset=5)


async def test_a_fetch_sees_the_commits_before_it(tmp_path: Path) -> None:
    async with node_at(settings_for(tmp_path)) as node:
        groups = await ready(node, "g")
        commits = []
        for offset in range(20):
            commits.append(groups.commit("g", {PLACE: CommittedOffset(offset=offset)}))
            await asyncio.sleep(0)
            assert (await groups.offsets("g"))[PLACE].offset == offset
        for commit in commits:
            await commit


async def test_who_waits_is_answered_when_the_node_stops(tmp_path: Path) -> None:
    async with node_at(settings_for(tmp_path)) as node:
        groups = await ready(node, "g")
        await lone_member(groups, "g")
        waiting = asyncio.ensure_future(groups.join("g", joining(client_id="second")))
        await asyncio.sleep(0)
    assert (await waiting).error is ErrorCode.not_coordinator
    with pytest.raises(KafkaError) as refused:
        await groups.heartbeat("g", "m", None, 1)
    assert refused.value.code is ErrorCode.not_coordinator


async def test_refused_joins_leave_no_groups_behind(tmp_path: Path) -> None:
    async with node_at(settings_for(tmp_path)) as node:
        groups = await ready(node, "g")
        for number in range(50):
            with pytest.raises(KafkaError) as refused:
                await groups.join(f"g{number}", joining(session_timeout_ms=1))
            assert refused.value.code is ErrorCode.invalid_session_timeout
        assert await groups.list_groups() == []


async def test_before_the_topic_exists_nobody_coordinates(tmp_path: Path) -> None:
    async with node_at(settings_for(tmp_path)) as node:
        with pytest.raises(KafkaError) as refused:
            await node.groups.offsets("g")
        assert refused.value.code is ErrorCode.not_coordinator
        assert await node.groups.list_groups() == []


async def test_a_client_that_leaves_while_the_topic_is_made_leaves_no_half(tmp_path: Path) -> None:
    async with node_at(settings_for(tmp_path)) as node:
        for _ in range(20):
            asking = asyncio.ensure_future(node.groups.partition_for("g"))
            await asyncio.sleep(0)
            asking.cancel()
        await ready(node, "g")
        assert await node.groups.offsets("g") == {}


async def test_deletions_of_one_request_wait_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a write to the object store: one after the other, a hundred take longer than a client
    waits.
    """
    async with api_client(tmp_path) as client:
        groups, names = client.node.groups, [f"g{number}" for number in range(20)]
        for name in names:
            await groups.loaded(name)
            await groups.commit(name, {PLACE: CommittedOffset(offset=1)})
        together, delete = asyncio.Barrier(len(names)), groups.delete_group

        async def delete_together(group_id: str) -> None:
            await together.wait()
            await delete(group_id)

        monkeypatch.setattr(groups, "delete_group", delete_together)
        async with asyncio.timeout(20):
            response = await client.ask(
                42, 2, lambda module: entity(module, "DeleteGroupsRequest", groups_names=names)
            )
        assert [(one.group_id, one.error_code) for one in response.results] == [
            (name, NONE) for name in names
        ]
        assert await groups.list_groups() == []
