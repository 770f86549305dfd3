"""Offsets that are committed in transactions, by what the shard of a group shows of them."""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.consumer.consumer_group import HeartbeatRequest
from lakehead.broker.coordinator.group.members import GroupMemory
from lakehead.broker.coordinator.group.record_formats import CommittedOffset
from lakehead.broker.coordinator.group.shard import GroupShard
from lakehead.storage.format.control_batch import Marker, encode_marker
from tests.property.test_coordinator_log import ListPartition
from tests.unit.test_group_memory import Node

PRODUCER = 7
OTHERS = 3_500
"""A shard gives way to other tasks at each thousand keys that it loads."""
OLD, NEW = CommittedOffset(offset=1), CommittedOffset(offset=2)
PLACE = ("t", 0)


async def written(node: Node) -> ListPartition:
    """A log with many offsets, and with one in a transaction that is open."""
    shard, partition = node.shards[0], node.partitions[0]
    shard.commit("g", {("t", index): OLD for index in range(OTHERS)}, lambda _: None)
    shard.commit_in_transaction("g", PRODUCER, 0, {PLACE: NEW})
    await asyncio.sleep(0)
    partition.stream.confirm(10**6)
    return partition


def end(
    partition: ListPartition, shard: GroupShard, loading: asyncio.Task[None], commits: bool
) -> None:
    """Write a marker; a shard that serves gets to know it."""
    marker = encode_marker(
        Marker(commits, 0), producer_id=PRODUCER, producer_epoch=0, timestamp_ms=0
    )

    def durable(_error: Exception | None) -> None:
        if loading.done():
            shard.transaction_ended(PRODUCER, is_commit=commits)

    partition.append(memoryview(marker), durable)
    partition.stream.confirm(1)


@pytest.mark.parametrize("commits", [True, False])
async def test_a_transaction_that_ends_while_its_groups_are_loaded_counts(*, commits: bool) -> None:
    """Else a consumer that starts over processes records again that are done with, and one that
    requests stable offsets waits for ever.
    """
    node = Node(GroupMemory())
    left = await written(node)
    is_loaded, turns = False, 0
    while not is_loaded:
        partition = left.left()
        shard = node.shard(partition)
        loading = asyncio.create_task(shard.load())
        for _ in range(turns):
            await asyncio.sleep(0)
        is_loaded = loading.done()
        end(partition, shard, loading, commits)
        await loading
        assert shard.groups["g"].offsets[PLACE] == (NEW if commits else OLD), turns
        assert not shard.groups["g"].unstable, turns
        turns += 1
    assert turns > 5


async def test_members_of_consumer_groups_are_loaded_in_turns() -> None:
    groups, members = 30, 50
    node = Node(GroupMemory())
    shard, topics = node.shards[0], frozenset({"t"})
    for number in range(groups * members):
        request = HeartbeatRequest(
            member_id=f"m{number}", epoch=0, topics=topics, owned={}, rebalance_timeout_ms=60_000
        )
        shard.consumer_heartbeat(f"g{number % groups}", request)
    await asyncio.sleep(0)
    node.confirm()
    again = node.shard(node.partitions[0])
    loading, loaded, most = asyncio.create_task(again.load()), 0, 0
    while not loading.done():
        await asyncio.sleep(0)
        before, loaded = loaded, sum(len(one.group.members) for one in again.groups.values())
        most = max(most, loaded - before)
    await loading
    assert loaded == groups * members
    assert most < groups * members / 2
    for one in (shard, again):
        one.close(ErrorCode.not_coordinator)
    await node.scope.close()
