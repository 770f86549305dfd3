"""Committed offsets end with their topic, wherever their shard was when it was deleted."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.log import CoordinatorLog, OnDone
from lakehead.broker.coordinator.shards import partition_of
from lakehead.broker.node import Node
from lakehead.broker.protocol.messages import entity
from tests.integration.test_transaction_coordinator import node_at, producer
from tests.support.api_client import ApiClient

NONE = ErrorCode.none
GROUP, OFFSETS = "team", "__consumer_offsets"
GONE, OTHER = ("orders", 0), ("other", 0)
Deletion = Callable[[], Awaitable[None]]


async def commit(client: ApiClient, offset: int, version: int, retention_ms: int = -1) -> None:
    """OffsetCommit of both partitions."""

    def build(module: Any) -> Any:
        topics = []
        for name, index in (GONE, OTHER):
            partition = entity(
                module,
                "OffsetCommitRequestPartition",
                partition_index=index,
                committed_offset=offset,
                committed_metadata="",
            )
            topic = client.node.topics.find(name)
            assert topic is not None
            topics.append(
                entity(
                    module,
                    "OffsetCommitRequestTopic",
                    name=name,
                    topic_id=topic.uuid,
                    partitions=[partition],
                )
            )
        return entity(
            module,
            "OffsetCommitRequest",
            group_id=GROUP,
            member_id="",
            generation_id_or_member_epoch=-1,
            retention_time=retention_ms,
            topics=topics,
        )

    response = await client.ask(8, version, build)
    codes = [one.error_code for topic in response.topics for one in topic.partitions]
    assert codes == [NONE, NONE]


async def committed(node: Node) -> dict[tuple[str, int], int]:
    """The offsets of the group, once its shard serves."""
    return {place: found.offset for place, found in (await node.groups.offsets(GROUP)).items()}


async def delete(node: Node) -> None:
    topic = node.topics.find(GONE[0])
    assert topic is not None
    await node.replication_control.delete(topic.topic_id)


async def delete_and_make_again(node: Node) -> None:
    await delete(node)
    await node.replication_control.create(GONE[0], 1)


@asynccontextmanager
async def node_with_topics(folder: Path) -> AsyncIterator[ApiClient]:
    async with node_at(folder) as client:
        if client.node.topics.find(OTHER[0]) is None:
            await client.node.replication_control.create(OTHER[0], 1)
        await client.node.groups.partition_for(GROUP)
        await client.node.groups.loaded(GROUP)
        yield client


def shard_place(node: Node) -> tuple[Any, int]:
    topic = node.topics.by_name[OFFSETS]
    return topic, partition_of(GROUP, len(topic.partitions))


async def with_shard_closed(node: Node, deletion: Deletion) -> None:
    """Run `deletion` while no node serves the shard, as between two leaders."""
    place = shard_place(node)
    node.groups.shards.on_resignation(*place)
    await deletion()
    node.groups.shards.on_election(*place)


async def with_shard_loading(node: Node, deletion: Deletion) -> None:
    """Run `deletion` while the shard has read its log and does not serve yet."""
    place = shard_place(node)
    is_read, go_on = asyncio.Event(), asyncio.Event()
    replay = CoordinatorLog.replay

    async def slow_replay(log: CoordinatorLog) -> None:
        await replay(log)
        is_read.set()
        await go_on.wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CoordinatorLog, "replay", slow_replay)
        node.groups.shards.on_resignation(*place)
        node.groups.shards.on_election(*place)
        await is_read.wait()
        await deletion()
        go_on.set()
        await node.groups.loaded(GROUP)


async def with_shard_served(node: Node, deletion: Deletion) -> None:
    """Run `deletion` while the shard serves."""
    await deletion()


SHARDS = [with_shard_served, with_shard_closed, with_shard_loading]


@pytest.mark.parametrize("with_shard", SHARDS)
@pytest.mark.parametrize("change", [delete, delete_and_make_again])
async def test_offsets_end_with_their_topic_wherever_their_shard_is(
    tmp_path: Path,
    with_shard: Callable[[Node, Deletion], Awaitable[None]],
    change: Callable[[Node], Awaitable[None]],
) -> None:
    """And do not come back with a restart; those of other topics stay."""
    async with node_with_topics(tmp_path) as client:
        await commit(client, 5, 9)
        await with_shard(client.node, lambda: change(client.node))
        assert await committed(client.node) == {OTHER: 5}
        if change is delete:
            await client.node.replication_control.create(GONE[0], 1)
        assert await committed(client.node) == {OTHER: 5}
    async with node_with_topics(tmp_path) as client:
        assert await committed(client.node) == {OTHER: 5}
        await commit(client, 7, 10)
    async with node_with_topics(tmp_path) as client:
        assert await committed(client.node) == {GONE: 7, OTHER: 7}


async def test_offsets_that_name_their_own_end_go_with_the_name_of_their_topic(
    tmp_path: Path,
) -> None:
    """Kafka's record of such a commit has no place for a topic's id."""
    async with node_with_topics(tmp_path) as client:
        await commit(client, 5, 2, retention_ms=3_600_000)
        await with_shard_closed(client.node, lambda: delete(client.node))
        assert await committed(client.node) == {OTHER: 5}


@pytest.mark.parametrize("with_shard", SHARDS)
async def test_a_transaction_commits_no_offset_of_a_topic_that_was_deleted(
    tmp_path: Path, with_shard: Callable[[Node, Deletion], Awaitable[None]]
) -> None:
    async with node_with_topics(tmp_path) as node:
        client = await producer(node)
        assert await client.add_offsets(GROUP) is NONE
        for place in (GONE, OTHER):
            assert await client.commit_offset(node, GROUP, place, 5) is NONE
        await with_shard(node.node, lambda: delete_and_make_again(node.node))
        assert await committed(node.node) == {}
        assert await client.end() is NONE
        await client.until("CompleteCommit")
        assert await committed(node.node) == {OTHER: 5}
    async with node_with_topics(tmp_path) as node:
        assert await committed(node.node) == {OTHER: 5}


@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_transaction_keeps_its_offset_of_the_topic_that_was_made_again(
    tmp_path: Path, is_commit: bool
) -> None:
    async with node_with_topics(tmp_path) as node:
        await commit(node, 3, 9)
        client = await producer(node)

        async def change() -> None:
            await delete_and_make_again(node.node)

        await with_shard_closed(node.node, change)
        assert await client.add_offsets(GROUP) is NONE
        assert await client.commit_offset(node, GROUP, GONE, 5) is NONE
        await with_shard_closed(node.node, lambda: asyncio.sleep(0))
        assert await committed(node.node) == {OTHER: 3}
        assert await client.end(is_commit=is_commit) is NONE
        await client.until("CompleteCommit", "CompleteAbort")
        expected = {GONE: 5, OTHER: 3} if is_commit else {OTHER: 3}
        assert await committed(node.node) == expected
    async with node_with_topics(tmp_path) as node:
        assert await committed(node.node) == expected


async def test_a_topic_that_is_deleted_during_a_commit_refuses_it(
    tmp_path: Path,
) -> None:
    """TxnOffsetCommit waits for the coordinator of its transaction, and looks again after that."""
    async with node_with_topics(tmp_path) as node:
        client = await producer(node)
        assert await client.add_offsets(GROUP) is NONE
        verify = node.node.transactions.verify

        async def late_verify(*given: Any, **named: Any) -> Any:
            codes = await verify(*given, **named)
            await delete_and_make_again(node.node)
            return codes

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node.node.transactions, "verify", late_verify)
            refused = await client.commit_offset(node, GROUP, GONE, 5)
        assert refused is ErrorCode.unknown_topic_or_partition
        assert await client.commit_offset(node, GROUP, GONE, 1) is NONE, "of the new topic"
        assert await client.end() is NONE
        await client.until("CompleteCommit")
        assert await committed(node.node) == {GONE: 1}


async def test_a_commit_that_becomes_durable_after_the_deletion_is_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node_with_topics(tmp_path) as client:
        held: list[Callable[[], None]] = []
        append = CoordinatorLog.append

        def slow_append(log: CoordinatorLog, records: Any, on_done: OnDone) -> None:
            append(log, records, lambda error: held.append(lambda: on_done(error)))

        monkeypatch.setattr(CoordinatorLog, "append", slow_append)
        committing = asyncio.create_task(commit(client, 5, 9))
        async with asyncio.timeout(20):
            while not held:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0)
        await delete_and_make_again(client.node)
        shard = client.node.groups.shards.serving(GROUP)
        assert shard is not None
        held.pop(0)()
        await committing
        assert shard.groups[GROUP].offsets.keys() == {OTHER}
        monkeypatch.undo()
        for on_done in held:
            on_done()
        assert await committed(client.node) == {OTHER: 5}
