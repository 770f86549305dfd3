"""Each version of each group API answers a right request with what it asks for."""

from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.messages import entity
from tests.support.api_client import GROUP, TOPIC, ApiClient, api_client, versions

NONE = ErrorCode.none
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApiClient]:
    async with api_client(tmp_path_factory.mktemp("versions")) as asking:
        yield asking


@pytest.mark.parametrize("version", versions(10))
async def test_find_coordinator(client: ApiClient, version: int) -> None:
    answer = await client.ask(
        10,
        version,
        lambda m: entity(m, "FindCoordinatorRequest", key=GROUP, coordinator_keys=(GROUP,)),
    )
    found = answer.coordinators[0] if version >= 4 else answer
    assert (found.error_code, found.node_id) == (NONE, 0)
    assert found.port == client.node.advertised_port


def joining(module: ModuleType, group: str, member_id: str) -> Any:
    protocol = entity(module, "JoinGroupRequestProtocol", name="range", metadata=b"m")
    return entity(
        module,
        "JoinGroupRequest",
        group_id=group,
        session_timeout=10_000,
        rebalance_timeout=10_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=(protocol,),
    )


@pytest.mark.parametrize("version", versions(11))
async def test_a_members_life(client: ApiClient, version: int) -> None:
    """Join, sync, heartbeat, describe and leave, each in the version that belongs together."""
    group = f"life-{version}"
    joined = await client.ask(11, version, lambda m: joining(m, group, ""))
    if version >= 4:
        assert joined.error_code is ErrorCode.member_id_required
        member_id = joined.member_id
        joined = await client.ask(11, version, lambda m: joining(m, group, member_id))
    assert (joined.error_code, joined.generation_id) == (NONE, 1)
    assert joined.leader == joined.member_id
    assert [member.metadata for member in joined.members] == [b"m"]
    common = {"group_id": group, "generation_id": 1, "member_id": joined.member_id}
    synced = await client.ask(
        14,
        min(version, 5),
        lambda m: entity(
            m,
            "SyncGroupRequest",
            **common,
            protocol_type="consumer",
            protocol_name="range",
            assignments=(
                entity(
                    m,
                    "SyncGroupRequestAssignment",
                    member_id=joined.member_id,
                    assignment=b"yours",
                ),
            ),
        ),
    )
    assert (synced.error_code, synced.assignment) == (NONE, b"yours")
    beaten = await client.ask(
        12, min(version, 4), lambda m: entity(m, "HeartbeatRequest", **common)
    )
    assert beaten.error_code is NONE
    described = await client.ask(
        15,
        min(version, 6),
        lambda m: entity(
            m, "DescribeGroupsRequest", groups=(group,), include_authorized_operations=True
        ),
    )
    assert described.groups[0].group_state == "Stable"
    assert described.groups[0].members[0].member_assignment == b"yours"
    assert described.groups[0].members[0].client_host == "/127.0.0.1"
    left = await client.ask(13, min(version, 5), lambda m: leaving(m, group, joined.member_id))
    assert left.error_code is NONE
    if version >= 3:
        assert [member.error_code for member in left.members] == [NONE]


def leaving(module: ModuleType, group: str, member_id: str) -> Any:
    members: tuple[Any, ...] = ()
    if hasattr(module, "MemberIdentity"):
        members = (entity(module, "MemberIdentity", member_id=member_id),)
    return entity(module, "LeaveGroupRequest", group_id=group, member_id=member_id, members=members)


def committing(
    module: ModuleType,
    topic: str,
    topic_id: UUID,
    offset: int,
    *,
    group: str = GROUP,
    generation: int = -1,
) -> Any:
    partition = entity(
        module,
        "OffsetCommitRequestPartition",
        partition_index=1,
        committed_offset=offset,
        committed_leader_epoch=0,
        committed_metadata="note",
    )
    wanted = entity(
        module, "OffsetCommitRequestTopic", name=topic, topic_id=topic_id, partitions=(partition,)
    )
    return entity(
        module,
        "OffsetCommitRequest",
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id="",
        retention_time=0,
        topics=(wanted,),
    )


@pytest.mark.parametrize("version", versions(8))
async def test_offset_commit(client: ApiClient, version: int) -> None:
    known = await client.ask(
        8, version, lambda m: committing(m, TOPIC, client.uuid(), 100 + version)
    )
    assert known.topics[0].partitions[0].error_code is NONE
    assert (await client.node.groups.offsets(GROUP))[TOPIC, 1].offset == 100 + version
    unknown = await client.ask(8, version, lambda m: committing(m, "nowhere", UUID(int=9), 1))
    expected = ErrorCode.unknown_topic_id if version >= 10 else ErrorCode.unknown_topic_or_partition
    assert unknown.topics[0].partitions[0].error_code is expected


@pytest.mark.parametrize("version", versions(8))
async def test_a_member_of_no_group_may_not_commit(client: ApiClient, version: int) -> None:
    answer = await client.ask(
        8,
        version,
        lambda m: committing(m, TOPIC, client.uuid(), 1, group="nobody", generation=3),
    )
    newer = ErrorCode.group_id_not_found
    expected = newer if version >= 9 else ErrorCode.illegal_generation
    assert answer.topics[0].partitions[0].error_code is expected
    assert await client.node.groups.describe("nobody") is None


@pytest.mark.parametrize("version", versions(8))
async def test_a_commit_of_old_clients_may_name_its_own_time(
    client: ApiClient, version: int
) -> None:
    await client.ask(8, version, lambda m: committing(m, TOPIC, client.uuid(), 77))
    for shard in client.node.groups.shards.loaded():
        list(shard.expire(3_600_000))
    left = await client.node.groups.offsets(GROUP)
    assert set(left) == (set() if version <= 4 else {(TOPIC, 1)})


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("version", versions(9))
async def test_offset_fetch(client: ApiClient, version: int, everything: bool) -> None:
    await client.ask(8, 9, lambda m: committing(m, TOPIC, client.uuid(), 55))
    if everything and version < 2:
        return
    plural = "s" if version >= 8 else ""

    def build(module: ModuleType) -> Any:
        topic = entity(
            module,
            f"OffsetFetchRequestTopic{plural}",
            name=TOPIC,
            topic_id=client.uuid(),
            partition_indexes=(0, 1),
        )
        topics = None if everything else (topic,)
        if version < 8:
            return entity(module, "OffsetFetchRequest", group_id=GROUP, topics=topics)
        group = entity(module, "OffsetFetchRequestGroup", group_id=GROUP, topics=topics)
        return entity(module, "OffsetFetchRequest", groups=(group,))

    answer = await client.ask(9, version, build)
    topics = answer.groups[0].topics if version >= 8 else answer.topics
    offsets = {p.partition_index: p.committed_offset for p in topics[0].partitions}
    assert offsets == ({1: 55} if everything else {0: -1, 1: 55})
    assert topics[0].partitions[-1].metadata == "note"


@pytest.mark.parametrize("version", versions(16))
async def test_list_and_delete_groups(client: ApiClient, version: int) -> None:
    await client.ask(8, 9, lambda m: committing(m, TOPIC, client.uuid(), 1))
    listed = await client.ask(16, version, lambda m: entity(m, "ListGroupsRequest"))
    assert GROUP in {group.group_id for group in listed.groups}
    deleted = await client.ask(
        42,
        min(version, 2),
        lambda m: entity(m, "DeleteGroupsRequest", groups_names=(GROUP, "nobody")),
    )
    codes = [result.error_code for result in deleted.results]
    assert codes == [NONE, ErrorCode.group_id_not_found]


async def test_offset_delete(client: ApiClient) -> None:
    await client.ask(8, 9, lambda m: committing(m, TOPIC, client.uuid(), 1))

    def build(module: ModuleType) -> Any:
        partition = entity(module, "OffsetDeleteRequestPartition", partition_index=1)
        topic = entity(module, "OffsetDeleteRequestTopic", name=TOPIC, partitions=(partition,))
        return entity(module, "OffsetDeleteRequest", group_id=GROUP, topics=(topic,))

    answer = await client.ask(47, 0, build)
    assert answer.topics[0].partitions[0].error_code is NONE
    assert await client.node.groups.offsets(GROUP) == {}
