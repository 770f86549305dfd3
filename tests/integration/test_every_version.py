"""Each version of each group and administration API answers a right request with what it asks for,
in bytes of that version.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from kio.schema.errors import ErrorCode

from broker import api
from broker.node import Node, start_node
from broker.protocol.api import RequestContext
from broker.protocol.frame import encode_response
from broker.protocol.messages import entity
from broker.settings import Settings

TOPIC, GROUP = "known", "team"
Ask = Callable[..., Awaitable[Any]]
REGISTRY = api.registry()
NONE = ErrorCode.none


class Client:
    """Asks a node in the versions it is told to."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def uuid(self) -> UUID:
        topic = self.node.topics.find(TOPIC)
        assert topic is not None
        return topic.uuid

    async def ask(self, key: int, version: int, build: Callable[[ModuleType], Any]) -> Any:
        route = REGISTRY.route(key)
        assert route is not None
        assert route.handle is not None
        context = RequestContext(
            api=route.api,
            version=version,
            client_id="client",
            client_host="127.0.0.1",
            node=self.node,
            connection=None,
        )
        answer = route.handle(build(context.request), context)
        if asyncio.iscoroutine(answer):
            answer = await answer
        assert encode_response(answer, 1)
        return answer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    settings = Settings(
        data=str(tmp_path_factory.mktemp("versions")),
        port=0,
        wal_size=64 << 20,
        cache_size=16 << 20,
        offsets_topic_num_partitions=2,
    )
    node = await start_node(settings, rng=random.Random(3))
    await node.catalog.create(TOPIC, 2)
    await node.groups.partition_for(GROUP)
    yield Client(node)
    await node.close()


def versions(key: int) -> list[int]:
    route = REGISTRY.route(key)
    assert route is not None
    return list(range(route.api.versions[0], route.api.versions[1] + 1))


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("version", versions(10))
async def test_find_coordinator(client: Client, version: int) -> None:
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
async def test_a_members_life(client: Client, version: int) -> None:
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


def committing(module: ModuleType, topic: str, topic_id: UUID, offset: int) -> Any:
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
        group_id=GROUP,
        generation_id_or_member_epoch=-1,
        member_id="",
        retention_time=0,
        topics=(wanted,),
    )


@pytest.mark.parametrize("version", versions(8))
async def test_offset_commit(client: Client, version: int) -> None:
    known = await client.ask(
        8, version, lambda m: committing(m, TOPIC, client.uuid(), 100 + version)
    )
    assert known.topics[0].partitions[0].error_code is NONE
    assert (await client.node.groups.offsets(GROUP))[TOPIC, 1].offset == 100 + version
    unknown = await client.ask(8, version, lambda m: committing(m, "nowhere", UUID(int=9), 1))
    expected = ErrorCode.unknown_topic_id if version >= 10 else ErrorCode.unknown_topic_or_partition
    assert unknown.topics[0].partitions[0].error_code is expected


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("version", versions(9))
async def test_offset_fetch(client: Client, version: int, everything: bool) -> None:
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
async def test_list_and_delete_groups(client: Client, version: int) -> None:
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


async def test_offset_delete(client: Client) -> None:
    await client.ask(8, 9, lambda m: committing(m, TOPIC, client.uuid(), 1))

    def build(module: ModuleType) -> Any:
        partition = entity(module, "OffsetDeleteRequestPartition", partition_index=1)
        topic = entity(module, "OffsetDeleteRequestTopic", name=TOPIC, partitions=(partition,))
        return entity(module, "OffsetDeleteRequest", group_id=GROUP, topics=(topic,))

    answer = await client.ask(47, 0, build)
    assert answer.topics[0].partitions[0].error_code is NONE
    assert await client.node.groups.offsets(GROUP) == {}


@pytest.mark.parametrize("version", versions(19))
async def test_create_grow_and_delete_topics(client: Client, version: int) -> None:
    name = f"made-{version}"

    def creating(module: ModuleType, *, only_check: bool) -> Any:
        config = entity(module, "CreatableTopicConfig", name="retention.ms", value="1000")
        topic = entity(
            module,
            "CreatableTopic",
            name=name,
            num_partitions=2,
            replication_factor=3,
            assignments=(),
            configs=(config,),
        )
        return entity(
            module,
            "CreateTopicsRequest",
            topics=(topic,),
            timeout=1000,
            validate_only=only_check,
        )

    checked = await client.ask(19, version, lambda m: creating(m, only_check=True))
    assert checked.topics[0].error_code is NONE
    assert client.node.topics.find(name) is None
    made = await client.ask(19, version, lambda m: creating(m, only_check=False))
    assert made.topics[0].error_code is NONE
    if version >= 5:
        assert {c.name: c.value for c in made.topics[0].configs}["retention.ms"] == "1000"
    again = await client.ask(19, version, lambda m: creating(m, only_check=False))
    assert again.topics[0].error_code is ErrorCode.topic_already_exists

    def growing(module: ModuleType) -> Any:
        topic = entity(module, "CreatePartitionsTopic", name=name, count=4, assignments=None)
        return entity(
            module, "CreatePartitionsRequest", topics=(topic,), timeout=1000, validate_only=False
        )

    grown = await client.ask(37, min(version - 2, 3), growing)
    assert grown.results[0].error_code is NONE
    topic = client.node.topics.find(name)
    assert topic is not None
    assert [partition is not None for partition in topic.partitions] == [True] * 4

    def deleting(module: ModuleType) -> Any:
        states: tuple[Any, ...] = ()
        if hasattr(module, "DeleteTopicState"):
            states = (entity(module, "DeleteTopicState", name=None, topic_id=topic.uuid),)
        return entity(
            module, "DeleteTopicsRequest", topic_names=(name,), topics=states, timeout=1000
        )

    gone = await client.ask(20, min(version - 1, 6), deleting)
    assert gone.responses[0].error_code is NONE
    assert client.node.topics.find(name) is None


@pytest.mark.parametrize("version", versions(32))
async def test_describe_configs(client: Client, version: int) -> None:
    def build(module: ModuleType) -> Any:
        resources = [
            entity(
                module,
                "DescribeConfigsResource",
                resource_type=kind,
                resource_name=name,
                configuration_keys=None,
            )
            for kind, name in ((2, TOPIC), (4, "0"), (2, "nowhere"), (99, "x"))
        ]
        return entity(
            module,
            "DescribeConfigsRequest",
            resources=resources,
            include_synonyms=True,
            include_documentation=True,
        )

    answer = await client.ask(32, version, build)
    assert [result.error_code for result in answer.results] == [
        NONE,
        NONE,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_request,
    ]
    assert len(answer.results[0].configs) > 30


@pytest.mark.parametrize(("key", "version"), [(33, 0), (33, 1), (33, 2), (44, 0), (44, 1)])
async def test_alter_configs(client: Client, key: int, version: int) -> None:
    def build(module: ModuleType) -> Any:
        config = entity(
            module, "AlterableConfig", name="cleanup.policy", value="compact", config_operation=2
        )
        resource = entity(
            module,
            "AlterConfigsResource",
            resource_type=2,
            resource_name=TOPIC,
            configs=(config,),
        )
        name = "AlterConfigsRequest" if key == 33 else "IncrementalAlterConfigsRequest"
        return entity(module, name, resources=(resource,), validate_only=False)

    answer = await client.ask(key, version, build)
    assert answer.responses[0].error_code is NONE
    policy = client.node.state.topics[TOPIC].configs["cleanup.policy"]
    assert policy in {"compact", "delete,compact"}


@pytest.mark.parametrize("version", versions(60))
async def test_describe_cluster(client: Client, version: int) -> None:
    answer = await client.ask(
        60,
        version,
        lambda m: entity(
            m,
            "DescribeClusterRequest",
            include_cluster_authorized_operations=True,
            include_fenced_brokers=True,
        ),
    )
    assert [broker.broker_id for broker in answer.brokers] == [0]
    assert answer.cluster_id == client.node.state.cluster_id


async def test_describe_topic_partitions_page_by_page(client: Client) -> None:
    seen = []
    cursor = None
    for _ in range(20):

        def build(module: ModuleType, cursor: Any = cursor) -> Any:
            start = None
            if cursor is not None:
                start = entity(
                    module,
                    "Cursor",
                    topic_name=cursor.topic_name,
                    partition_index=cursor.partition_index,
                )
            return entity(
                module,
                "DescribeTopicPartitionsRequest",
                topics=(),
                response_partition_limit=1,
                cursor=start,
            )

        page = await client.ask(75, 0, build)
        seen += [(t.name, p.partition_index) for t in page.topics for p in t.partitions]
        cursor = page.next_cursor
        if cursor is None:
            break
    state = client.node.state
    expected = [
        (n, i) for n in sorted(state.topics) for i in range(len(state.topics[n].partitions))
    ]
    assert seen == expected


@pytest.mark.parametrize("version", versions(21))
async def test_delete_records(client: Client, version: int) -> None:
    def build(module: ModuleType) -> Any:
        partitions = [
            entity(module, "DeleteRecordsPartition", partition_index=index, offset=offset)
            for index, offset in ((0, -1), (0, 5), (7, 0))
        ]
        topic = entity(module, "DeleteRecordsTopic", name="emptied", partitions=partitions)
        return entity(module, "DeleteRecordsRequest", topics=(topic,), timeout=1000)

    await client.node.catalog.ensure("emptied")
    answer = await client.ask(21, version, build)
    assert [p.error_code for p in answer.topics[0].partitions] == [
        NONE,
        ErrorCode.offset_out_of_range,
        ErrorCode.unknown_topic_or_partition,
    ]


@pytest.mark.parametrize("version", versions(74))
async def test_list_config_resources(client: Client, version: int) -> None:
    answer = await client.ask(74, version, lambda m: entity(m, "ListConfigResourcesRequest"))
    names = {resource.resource_name for resource in answer.config_resources}
    assert (TOPIC in names) == (version >= 1)
