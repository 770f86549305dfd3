"""Committed offsets of a topic that is deleted, in a shard of very many offsets."""

import asyncio
import time
from collections import deque
from itertools import pairwise

from lakehead.broker.coordinator.group.members import GroupMemory
from lakehead.broker.coordinator.group.record_formats import CommittedOffset
from tests.support.processor_time import check_within, measured
from tests.unit.test_group_memory import Node

GROUPS, PARTITIONS = 1_000, 10
OLD, NEW = CommittedOffset(offset=1), CommittedOffset(offset=2)


async def committed() -> Node:
    node = Node(GroupMemory())
    for number in range(GROUPS):
        places = [(topic, index) for topic in ("gone", "kept") for index in range(PARTITIONS)]
        node.shards[0].commit(f"g{number}", dict.fromkeys(places, OLD), lambda _: None)
    await asyncio.sleep(0)
    node.confirm()
    return node


def offsets_left(node: Node) -> int:
    return sum(len(live.offsets) for live in node.shards[0].groups.values())


async def test_groups_take_turns_and_none_shows_an_offset_of_a_topic_that_is_gone() -> None:
    node = await committed()
    shard = node.shards[0]
    shard.delete_topics({"gone"})
    last = shard.find(f"g{GROUPS - 1}")
    assert last is not None
    assert last.offsets.keys() == {("kept", index) for index in range(PARTITIONS)}
    left = [offsets_left(node), *(offsets_left(node) for _ in shard.forget_deleted_topics())]
    assert offsets_left(node) == GROUPS * PARTITIONS
    assert max(before - after for before, after in pairwise(left)) <= 1_500
    await asyncio.sleep(0)
    node.confirm()
    assert len(shard.groups) == GROUPS
    again = node.shard(node.partitions[0])
    await again.load()
    assert {place for live in again.groups.values() for place in live.offsets} == {
        ("kept", index) for index in range(PARTITIONS)
    }
    await node.scope.close()


async def test_a_commit_for_the_topic_that_is_made_again_stays() -> None:
    node = await committed()
    shard = node.shards[0]
    shard.delete_topics({"gone"})
    shard.commit("g7", {("gone", 0): NEW}, lambda _: None)
    shard.delete_topics({"other"})
    deque(shard.forget_deleted_topics())
    await asyncio.sleep(0)
    node.confirm()
    assert offsets_left(node) == GROUPS * PARTITIONS + 1
    again = node.shard(node.partitions[0])
    await again.load()
    assert again.groups["g7"].offsets["gone", 0] == NEW
    await node.scope.close()


async def test_a_commit_that_is_durable_after_the_deletion_leaves_nothing_in_the_log() -> None:
    node = await committed()
    shard = node.shards[0]
    shard.commit("late", {("gone", 0): NEW}, lambda _: None)
    await asyncio.sleep(0)
    shard.delete_topics({"gone"})
    node.confirm()
    deque(shard.forget_deleted_topics())
    await asyncio.sleep(0)
    node.confirm()
    again = node.shard(node.partitions[0])
    await again.load()
    assert "late" not in again.groups
    assert offsets_left(node) == GROUPS * PARTITIONS
    await node.scope.close()


@measured
async def test_very_many_topics_that_are_deleted_at_once_are_noted_in_no_time() -> None:
    """An entry of the metadata may delete hundreds, in one turn. With a set of them for each group
    these took 15 seconds.
    """
    node = await committed()
    shard = node.shards[0]
    began = time.thread_time()
    for number in range(2_000):
        shard.delete_topics({f"gone-{number}"})
    shard.delete_topics({"gone"})
    deque(shard.forget_deleted_topics())
    check_within(time.thread_time() - began, 2.0)
    assert offsets_left(node) == GROUPS * PARTITIONS
    await node.scope.close()
