"""Share groups over nodes: members join and have partitions, groups are described, moved to other
offsets and deleted, and outlive their coordinator; other kinds of groups keep their names.
"""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.messages import entity
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.object_store import MemoryStore
from tests.integration.test_node_protocol import running, until, with_topic
from tests.support.api_client import ApiClient
from tests.support.node_client import Client, close_clients
from tests.support.node_cluster import node_cluster
from tests.support.share_member import ACCEPT, ShareMember
from tests.support.wire import Batch

NONE, NOT_FOUND = ErrorCode.none, ErrorCode.group_id_not_found
LIMIT_S = 60


async def heartbeat(
    node: ApiClient, member_id: str, epoch: int, topics: Iterable[str] | None = None, **how: Any
) -> Any:
    return await node.ask(
        76,
        1,
        lambda m: entity(
            m,
            "ShareGroupHeartbeatRequest",
            group_id=how.get("group", "team"),
            member_id=member_id,
            member_epoch=epoch,
            subscribed_topic_names=None if topics is None else tuple(topics),
        ),
    )


async def joined(node: ApiClient, member_id: str, group: str = "team") -> Any:
    """Return the response by which a member has partitions."""
    response = await heartbeat(node, member_id, 0, ["t"], group=group)
    while response.error_code is NONE and not _partitions(response):
        await asyncio.sleep(0.01)
        response = await heartbeat(node, member_id, response.member_epoch, ["t"], group=group)
    assert response.error_code is NONE, response
    return response


def _partitions(response: Any) -> list[int]:
    topics = () if response.assignment is None else response.assignment.topic_partitions
    return [index for topic in topics for index in topic.partitions]


async def described(node: ApiClient, group: str = "team") -> Any:
    response = await node.ask(
        77,
        1,
        lambda m: entity(
            m,
            "ShareGroupDescribeRequest",
            group_ids=[group],
            include_authorized_operations=False,
        ),
    )
    return response.groups[0]


async def offsets(node: ApiClient, group: str = "team") -> dict[int, tuple[int, int]]:
    """Return (start offset, lag) by partition."""
    response = await node.ask(
        90,
        1,
        lambda m: entity(
            m,
            "DescribeShareGroupOffsetsRequest",
            groups=[
                entity(m, "DescribeShareGroupOffsetsRequestGroup", group_id=group, topics=None)
            ],
        ),
    )
    (found,) = response.groups
    assert found.error_code is NONE
    return {
        one.partition_index: (one.start_offset, one.lag)
        for topic in found.topics
        for one in topic.partitions
    }


async def alter(
    node: ApiClient, offset: int, group: str = "team", topic_name: str = "t"
) -> ErrorCode:
    def build(module: Any) -> Any:
        place = entity(
            module,
            "AlterShareGroupOffsetsRequestPartition",
            partition_index=0,
            start_offset=offset,
        )
        topic = entity(
            module, "AlterShareGroupOffsetsRequestTopic", topic_name=topic_name, partitions=[place]
        )
        return entity(module, "AlterShareGroupOffsetsRequest", group_id=group, topics=[topic])

    return ErrorCode((await node.ask(91, 0, build)).error_code)


async def forget(node: ApiClient, *names: str) -> dict[str, tuple[ErrorCode, str | None]]:
    """Return code and message of each topic whose offsets are deleted."""

    def build(module: Any) -> Any:
        topics = [
            entity(module, "DeleteShareGroupOffsetsRequestTopic", topic_name=name) for name in names
        ]
        return entity(module, "DeleteShareGroupOffsetsRequest", group_id="team", topics=topics)

    response = await node.ask(92, 0, build)
    assert response.error_code is NONE
    return {one.topic_name: (one.error_code, one.error_message) for one in response.responses}


async def delete(node: ApiClient, group: str = "team") -> ErrorCode:
    response = await node.ask(
        42, 2, lambda m: entity(m, "DeleteGroupsRequest", groups_names=[group])
    )
    return ErrorCode(response.results[0].error_code)


async def committed(node: ApiClient, *, version: int, generation: int) -> ErrorCode:
    """Return the code of a commit by a client that takes the group for one of consumers."""

    def build(module: Any) -> Any:
        one = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        partition = entity(module, "OffsetCommitRequestPartition", **one)
        topic = entity(module, "OffsetCommitRequestTopic", name="t", partitions=[partition])
        return entity(
            module,
            "OffsetCommitRequest",
            group_id="team",
            topics=[topic],
            member_id="",
            generation_id_or_member_epoch=generation,
        )

    response = await node.ask(8, version, build)
    return ErrorCode(response.topics[0].partitions[0].error_code)


async def listed(node: ApiClient) -> set[tuple[str, str, str]]:
    response = await node.ask(
        16, 5, lambda m: entity(m, "ListGroupsRequest", states_filter=(), types_filter=("Share",))
    )
    return {(one.group_id, one.group_type, one.group_state) for one in response.groups}


async def test_a_member_joins_takes_records_and_leaves() -> None:
    async with (
        running(group_share_assignment_interval_ms=0) as running_node,
        asyncio.timeout(LIMIT_S),
    ):
        client = await with_topic(running_node)
        node = ApiClient(running_node)
        await running_node.groups.partition_for("team")
        response = await joined(node, "a")
        assert sorted(_partitions(response)) == [0, 1]
        assert await listed(node) == {("team", "share", "Stable")}
        group = await described(node)
        assert (group.group_state, group.assignor_name) == ("Stable", "simple")
        assert [(one.member_id, one.member_epoch) for one in group.members] == [
            ("a", response.member_epoch)
        ]
        a = await ShareMember.connect(running_node, "a")
        a.send_fetch([0], wait_ms=LIMIT_S * 1000)
        key = SharePartitionKey("team", running_node.topics.by_name["t"].id_bytes, 0)
        # It begins at the end of the log, which is that at the time when it is loaded.
        await until(lambda: running_node.share_partitions.find(key) is not None)
        client.produce(Batch(values=(b"v",) * 5).encode())
        await client.produced()
        assert (await a.receive_fetch()).error_code is NONE
        assert await a.code({0: [(0, 2, [ACCEPT])]}) is NONE
        assert (await offsets(node))[0] == (0, 2)
        assert await alter(node, 1) is ErrorCode.non_empty_group
        assert await delete(node) is ErrorCode.non_empty_group
        left = await heartbeat(node, "a", -1)
        assert (left.error_code, left.member_epoch) == (NONE, -1)
        a.client.writer.close()
        assert await alter(node, 1) is NONE
        assert (await offsets(node))[0] == (1, 4)
        assert await forget(node, "t") == {"t": (NONE, None)}
        assert await offsets(node) == {}
        unknown = ErrorCode.unknown_topic_or_partition
        assert await forget(node, "t", "none") == {
            "t": (unknown, "There is no offset information to delete."),
            "none": (unknown, None),
        }
        assert await delete(node) is NONE
        assert await listed(node) == set()
        assert (await described(node)).error_code is NOT_FOUND


async def test_offsets_of_a_group_without_a_name_are_refused() -> None:
    async with running() as running_node, asyncio.timeout(LIMIT_S):
        await with_topic(running_node)
        node = ApiClient(running_node)
        await running_node.groups.partition_for("team")
        assert await alter(node, 1, group="") is ErrorCode.invalid_group_id
        assert await delete(node, group="") is NOT_FOUND


async def test_a_group_that_an_administrator_made_has_the_first_epochs() -> None:
    async with running() as running_node, asyncio.timeout(LIMIT_S):
        await with_topic(running_node)
        node = ApiClient(running_node)
        await running_node.groups.partition_for("team")
        assert await alter(node, 0, topic_name="none") is NONE
        assert await listed(node) == set(), "without a topic none is made"
        assert await alter(node, 0) is NONE
        group = await described(node)
        assert (group.group_epoch, group.assignment_epoch) == (1, 1)


async def test_groups_of_other_kinds_keep_their_names() -> None:
    async with (
        running(group_share_assignment_interval_ms=0) as running_node,
        asyncio.timeout(LIMIT_S),
    ):
        await with_topic(running_node)
        node = ApiClient(running_node)
        await running_node.groups.partition_for("team")
        await joined(node, "a")
        join = await node.ask(
            11,
            9,
            lambda m: entity(
                m,
                "JoinGroupRequest",
                group_id="team",
                session_timeout=10_000,
                rebalance_timeout=10_000,
                member_id="m",
                protocol_type="consumer",
                protocols=(entity(m, "JoinGroupRequestProtocol", name="range", metadata=b"m"),),
            ),
        )
        assert join.error_code is ErrorCode.inconsistent_group_protocol
        assert join.member_id == ""
        assert await committed(node, version=9, generation=-1) is NOT_FOUND
        assert await committed(node, version=8, generation=3) is NOT_FOUND
        fetched = await node.ask(
            9,
            9,
            lambda m: entity(
                m,
                "OffsetFetchRequest",
                groups=[
                    entity(
                        m,
                        "OffsetFetchRequestGroup",
                        group_id="team",
                        member_id=None,
                        member_epoch=-1,
                        topics=None,
                    )
                ],
                require_stable=False,
            ),
        )
        assert [(one.error_code, one.topics) for one in fetched.groups] == [(NONE, ())]
        for member, group in (("b", ""), ("", "team"), ("b" * 37, "team")):
            refused = await heartbeat(node, member, 0, ["t"], group=group)
            assert refused.error_code is ErrorCode.invalid_request
        assert (await heartbeat(node, "b", 0, [])).error_code is ErrorCode.invalid_request
        assert (await heartbeat(node, "b", 5)).error_code is ErrorCode.unknown_member_id
        assert (await heartbeat(node, "b", 5, group="other")).error_code is NOT_FOUND
        assert (await heartbeat(node, "b", -2)).error_code is ErrorCode.invalid_request


async def test_descriptions_of_other_kinds_name_the_kind_that_a_share_group_is_not() -> None:
    """As in Kafka, "not found" is left to groups that do not exist."""
    async with running() as running_node, asyncio.timeout(LIMIT_S):
        await with_topic(running_node)
        node = ApiClient(running_node)
        await running_node.groups.partition_for("team")
        assert await alter(node, 0) is NONE
        for group, classic, consumer in (
            ("team", "is not a classic group.", "is not a consumer group."),
            ("nobody", "not found.", "not found."),
        ):
            told = await node.ask(15, 6, partial(_groups_named, "DescribeGroupsRequest", group))
            assert _refusal(told) == (NOT_FOUND, f"Group {group} {classic}")
            told = await node.ask(
                69, 1, partial(_groups_named, "ConsumerGroupDescribeRequest", group)
            )
            assert _refusal(told) == (NOT_FOUND, f"Group {group} {consumer}")
            old = await node.ask(15, 5, partial(_groups_named, "DescribeGroupsRequest", group))
            assert (old.groups[0].error_code, old.groups[0].group_state) == (NONE, "Dead")
            deleted = await node.ask(47, 0, partial(_deletion, group))
            assert deleted.error_code is NOT_FOUND


def _groups_named(name: str, group: str, module: Any) -> Any:
    field = "groups" if name == "DescribeGroupsRequest" else "group_ids"
    return entity(module, name, **{field: (group,)}, include_authorized_operations=False)


def _deletion(group: str, module: Any) -> Any:
    return entity(module, "OffsetDeleteRequest", group_id=group, topics=())


def _refusal(response: Any) -> tuple[ErrorCode, str]:
    (group,) = response.groups
    return group.error_code, group.error_message


async def test_a_group_outlives_its_coordinator() -> None:
    store = MemoryStore()
    async with running(store) as running_node, asyncio.timeout(LIMIT_S):
        await with_topic(running_node)
        node = ApiClient(running_node)
        await running_node.groups.partition_for("team")
        epoch = (await joined(node, "a")).member_epoch
        assert await alter(node, 0, "idle") is NONE
    async with running(store) as running_node, asyncio.timeout(LIMIT_S):
        node = ApiClient(running_node)
        assert (await heartbeat(node, "a", epoch)).error_code is NONE
        assert await listed(node) == {("team", "share", "Stable"), ("idle", "share", "Empty")}
        assert (await offsets(node, "idle")) == {0: (0, 0)}


async def test_every_node_knows_the_ends_of_partitions() -> None:
    async with node_cluster(3) as cluster, asyncio.timeout(LIMIT_S):
        await cluster.nodes[1].replication_control.create("t", 3)
        await cluster.until(cluster.is_even)
        leaders = cluster.leaders("t")
        assert len(set(leaders)) == 3
        for index, leader in enumerate(leaders):
            client = await Client.connect(cluster.nodes[leader])
            client.produce(Batch(values=(b"v",) * (index + 1)).encode(), partition=index)
            assert (await client.produced())[0] == 0
        for node in cluster.nodes.values():
            ends = node.services.partition_ends
            assert [await ends.end("t", index) for index in range(4)] == [1, 2, 3, None]
        await close_clients()
