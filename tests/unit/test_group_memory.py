"""What members of groups may make a coordinator hold: metadata, assignments, ids that are never
used; those of one group, and all of them.
"""

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.consumer.consumer_group import ConsumerGroupSettings
from lakehead.broker.coordinator.group.group_metadata import GroupCounts
from lakehead.broker.coordinator.group.members import GroupMemory
from lakehead.broker.coordinator.group.messages import (
    GroupSettings,
    JoinResult,
    SyncRequest,
    SyncResult,
)
from lakehead.broker.coordinator.group.shard import GroupShard
from lakehead.broker.coordinator.group.share.share_group import ShareGroupSettings
from lakehead.broker.coordinator.group.share.share_groups import ShareGroups
from lakehead.broker.coordinator.log import BatchingLog, CoordinatorLog
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.clock import Clock, SystemClock
from lakehead.storage.tasks import TaskScope
from tests.property.test_coordinator_log import ListPartition, crash
from tests.support.topic_catalogs import catalog
from tests.unit.test_classic_group import World, join_request

FULL = ErrorCode.group_max_size_reached
RECORD_MAX = 10_000
SMALL = GroupSettings(initial_rebalance_delay_ms=0, record_max=RECORD_MAX)


def protocols(size: int, count: int = 1) -> tuple[tuple[str, bytes], ...]:
    return tuple((f"p{n}", bytes(size)) for n in range(count))


@pytest.mark.parametrize(("size", "count"), [(0, 1), (900, 1), (100, 9), (0, 200)])
def test_members_of_a_group_are_within_the_memory_of_two_records(size: int, count: int) -> None:
    world = World(SMALL)
    ids: list[str] = []
    for number in range(1000):
        answer = world.join(
            f"t{number}", protocols=protocols(size, count), instance_id=f"i{number}"
        )
        if answer is not None and answer.error is FULL:
            break
        ids = [member.member_id for member in world.group.members]
    assert 1 < len(ids) < 200
    assert sum(member.cost for member in world.group.members) <= 2 * RECORD_MAX
    # The others are as they were, may come back, and make room when they leave.
    assert [member.member_id for member in world.group.members] == ids
    world.join("again", ids[-1], protocols=protocols(size, count), instance_id=f"i{len(ids) - 1}")
    assert "again" not in world.joined or world.joined["again"].error is not FULL
    world.perform(world.group.leave([(ids[0], "i0")], world.now)[1])
    world.join("next", protocols=protocols(size, count), instance_id="next")
    assert "next" not in world.joined or world.joined["next"].error is not FULL


def test_a_member_that_is_too_large_alone_does_not_join_and_others_do() -> None:
    world = World(SMALL)
    refused = world.join("large", protocols=protocols(2 * RECORD_MAX))
    assert refused is not None
    assert (refused.error, refused.member_id) == (FULL, "")
    many = world.join("many", protocols=protocols(0, 2000))
    assert many is not None
    assert many.error is FULL
    taken = world.join("small", protocols=protocols(10))
    assert taken is not None
    assert taken.error is ErrorCode.none


def test_ids_that_are_given_out_and_never_used_are_forgotten_the_oldest_first() -> None:
    world = World()
    began = time.thread_time()
    given = []
    for number in range(20_000):
        answer = world.join(f"t{number}", needs_known_member_id=True)
        assert answer is not None
        assert answer.error is ErrorCode.member_id_required
        given.append(answer.member_id)
    kept = list(world.group.pending)
    assert 1_000 < len(kept) < 10_000
    assert kept == given[-len(kept) :]
    late = world.join("late", given[0])
    assert late is not None
    assert late.error is ErrorCode.unknown_member_id
    assert world.join("newest", given[-1]) is None or world.joined["newest"].error is (
        ErrorCode.none
    )
    assert time.thread_time() - began < 10


def test_no_id_is_forgotten_of_a_thousand_members_that_come_at_once() -> None:
    world = World()
    given = []
    for number in range(1_000):
        answer = world.join(f"t{number}", needs_known_member_id=True, client_id="c" * 100)
        assert answer is not None
        given.append(answer.member_id)
    assert list(world.group.pending) == given


class NoStates:
    """Has nothing to store of share-partitions."""

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        raise AssertionError(key)

    async def delete(self, key: SharePartitionKey) -> None:
        raise AssertionError(key)


class Node:
    """Shards of one node, on logs that are only written."""

    def __init__(self, memory: GroupMemory, clock: Clock | None = None) -> None:
        self.scope = TaskScope(crash)
        self.clock = clock or SystemClock()
        self.partitions = [ListPartition() for _ in range(3)]
        self.memory = memory
        self.shards = [self.shard(partition) for partition in self.partitions]
        self.ids = itertools.count()

    def shard(self, partition: ListPartition) -> GroupShard:
        log = CoordinatorLog(partition, self.clock, self.scope, name="log")
        return GroupShard(
            log,
            GroupSettings(initial_rebalance_delay_ms=0),
            self.clock,
            lambda prefix: f"{prefix}-{next(self.ids)}",
            lambda _name, _id: True,
            self.memory,
            lambda _group: ConsumerGroupSettings(),
            lambda: catalog({"t": 4}),
            GroupCounts(),
            self.shares,
        )

    def shares(self, log: BatchingLog, is_taken: Callable[[str], bool]) -> ShareGroups:
        return ShareGroups(
            log,
            self.clock,
            self.scope,
            self.memory,
            lambda _group: ShareGroupSettings(),
            lambda: catalog({"t": 4}),
            NoStates(),
            is_taken,
        )

    def join(
        self, number: int, size: int = 100, member_id: str = "", instance_id: str | None = None
    ) -> asyncio.Future[JoinResult]:
        request = join_request(
            member_id=member_id, protocols=protocols(size), instance_id=instance_id
        )
        return self.shards[number % 3].join(f"g{number}", request)

    async def joined(self, number: int, **changes: Any) -> JoinResult:
        future = self.join(number, **changes)
        for _ in range(5):
            self.confirm()
            await asyncio.sleep(0)
        return future.result()

    async def synced(self, number: int, member: JoinResult, size: int) -> SyncResult:
        request = SyncRequest(
            member_id=member.member_id,
            instance_id=None,
            generation=member.generation,
            protocol_type=None,
            protocol_name=None,
            assignments=((member.member_id, bytes(size)),),
        )
        future = self.shards[number % 3].sync(f"g{number}", request)
        for _ in range(5):
            self.confirm()
            await asyncio.sleep(0)
        return future.result()

    def confirm(self) -> None:
        for partition in self.partitions:
            partition.stream.confirm(10**6)


async def test_all_groups_of_a_node_are_within_its_memory_for_groups() -> None:
    """Small ones and large ones; those that are in go on, and make room when they leave."""
    node = Node(GroupMemory(200_000))
    taken: dict[int, JoinResult] = {}
    for number in range(1_000):
        answer = await node.joined(number, size=number % 7 * 100)
        assert answer.error in {ErrorCode.none, FULL}
        if answer.error is ErrorCode.none:
            taken[number] = answer
    assert 50 < len(taken) < 150
    assert 190_000 < node.memory.used <= 200_000
    assert sum(len(shard.groups) for shard in node.shards) == len(taken), "none for those refused"
    again = await node.joined(0, size=0, member_id=taken[0].member_id)
    assert again.error is ErrorCode.none
    assert (await node.joined(7, size=5_000, member_id=taken[7].member_id)).error is FULL
    assert (await node.synced(0, again, 50_000)).error is ErrorCode.unknown_server_error
    for number in list(taken)[:20]:
        shard = node.shards[number % 3]
        shard.leave(f"g{number}", [(taken[number].member_id, None)])
        shard.delete_group(f"g{number}")
    assert (await node.joined(2_000, size=600)).error is ErrorCode.none
    for shard in node.shards:
        shard.close(ErrorCode.not_coordinator)
    assert node.memory.used == 0
    await node.scope.close()


async def test_groups_that_are_found_in_the_log_are_taken_room_or_not() -> None:
    node = Node(GroupMemory())
    taken = [await node.joined(3 * number, instance_id="i") for number in range(50)]
    for number, member in enumerate(taken):
        assert (await node.synced(3 * number, member, 1_000)).error is ErrorCode.none
    used = node.memory.used
    assert used > 50 * (1_000 + 1_024)
    node.memory = GroupMemory(10_000)
    shard = node.shards[0] = node.shard(node.partitions[0])
    await shard.load()
    assert len(shard.groups) == 50
    assert used * 0.8 < node.memory.used < used * 1.2
    assert (await node.joined(3_000)).error is FULL
    back = node.join(0, member_id=taken[0].member_id, instance_id="i")
    assert not back.done() or back.result().error is ErrorCode.none
    await node.scope.close()
