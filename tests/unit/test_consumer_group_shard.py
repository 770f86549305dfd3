"""Consumer groups over a coordinator's log: what a response says is durable, and what could not be
stored did not happen.
"""

import asyncio
import time

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.classic_group import ClassicGroup
from lakehead.broker.coordinator.group.consumer.consumer_group import (
    ConsumerGroup,
    HeartbeatRequest,
    HeartbeatResult,
)
from lakehead.broker.coordinator.group.group_metadata import GroupKind
from lakehead.broker.coordinator.group.members import GroupMemory
from lakehead.broker.coordinator.group.messages import JoinResult, SyncRequest
from lakehead.broker.coordinator.group.record_formats import CommittedOffset
from lakehead.broker.coordinator.group.shard import GroupShard
from lakehead.broker.protocol.errors import KafkaError
from tests.support.processor_time import check_within, measured
from tests.support.topic_catalogs import topic_id
from tests.unit.test_classic_group import join_request
from tests.unit.test_group_memory import Node

EVERY = {topic_id("t"): frozenset(range(4))}


def beat(member_id: str, epoch: int = 0) -> HeartbeatRequest:
    is_joining = epoch == 0
    return HeartbeatRequest(
        member_id=member_id,
        epoch=epoch,
        rebalance_timeout_ms=5_000 if is_joining else -1,
        topics=frozenset({"t"}) if is_joining else None,
        owned={} if is_joining else None,
    )


async def settled(node: Node, future: "asyncio.Future[HeartbeatResult]") -> HeartbeatResult:
    for _ in range(5):
        node.confirm()
        await asyncio.sleep(0)
    return future.result()


async def test_a_response_waits_until_all_that_it_says_is_durable() -> None:
    node = Node(GroupMemory())
    shard, partition = node.shards[0], node.partitions[0]
    joined = shard.consumer_heartbeat("g", beat("m"))
    await asyncio.sleep(0)
    assert len(partition.stream.batches) == 1, "all records of an event are one batch"
    again = shard.consumer_heartbeat("g", beat("m", 2))
    await asyncio.sleep(0)
    assert not joined.done()
    assert not again.done(), "it would tell of an epoch that is not durable"
    assert (await settled(node, joined)).assignment == EVERY
    assert (await settled(node, again)).epoch == 2
    assert shard.consumer_heartbeat("g", beat("m", 2)).done(), "nothing is on its way to the log"
    assert len(partition.stream.batches) == 1


async def test_a_change_that_could_not_be_stored_did_not_happen() -> None:
    node = Node(GroupMemory())
    shard, stream = node.shards[0], node.partitions[0].stream
    await settled(node, shard.consumer_heartbeat("g", beat("m")))
    stream.is_full = True
    refused = shard.consumer_heartbeat("g", beat("n"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(KafkaError) as caught:
        refused.result()
    assert caught.value.code is ErrorCode.not_coordinator
    stream.is_full = False
    group = shard.groups["g"].group
    assert set(group.members) == {"m"}
    going_on = await settled(node, shard.consumer_heartbeat("g", beat("m", 2)))
    assert (going_on.epoch, going_on.assignment) == (2, None)
    with pytest.raises(KafkaError) as caught:
        shard.consumer_heartbeat("g", beat("n", 3))
    assert caught.value.code is ErrorCode.unknown_member_id
    assert (await settled(node, shard.consumer_heartbeat("g", beat("n")))).epoch == 3


async def test_another_node_goes_on_with_what_is_durable() -> None:
    node = Node(GroupMemory())
    shard = node.shards[0]
    await settled(node, shard.consumer_heartbeat("g", beat("m")))
    lost = shard.consumer_heartbeat("g", beat("n"))
    await asyncio.sleep(0)
    left: GroupShard = node.shard(node.partitions[0].left())
    await left.load()
    assert not lost.done()
    assert left.groups["g"].kind is GroupKind.CONSUMER
    assert set(left.groups["g"].group.members) == {"m"}
    assert left.consumer_heartbeat("g", beat("m", 2)).result().epoch == 2


async def test_consumer_groups_are_within_the_memory_for_groups() -> None:
    memory = GroupMemory(100_000)
    node = Node(memory)
    taken, codes = 0, set()
    for number in range(200):
        try:
            await settled(node, node.shards[0].consumer_heartbeat(f"g{number}", beat("m" * 300)))
            taken += 1
        except KafkaError as error:
            codes.add(error.code)
    assert codes == {ErrorCode.group_max_size_reached}
    assert 20 < taken < 100
    assert memory.used <= memory.capacity + 4096, "partitions of the last one"
    for number in range(taken):
        leaving = beat("m" * 300, -1)
        await settled(node, node.shards[0].consumer_heartbeat(f"g{number}", leaving))
        node.shards[0].delete_group(f"g{number}")
        node.confirm()
        await asyncio.sleep(0)
    assert memory.used == 0
    assert not node.shards[0].groups


SUBSCRIPTION = 10
"""Bytes, all zero, of a subscription to no topics, and of an assignment of no partitions."""


async def refused(node: Node, future: "asyncio.Future[HeartbeatResult]") -> None:
    """Expect that a change could not be stored."""
    with pytest.raises(KafkaError) as caught:
        await settled(node, future)
    assert caught.value.code is ErrorCode.not_coordinator


async def classic_member(node: Node) -> JoinResult:
    """Have a stable classic group g0 with one member."""
    member = await node.joined(0, size=SUBSCRIPTION)
    assert (await node.synced(0, member, SUBSCRIPTION)).error is ErrorCode.none
    return member


def sync_request(
    member_id: str, generation: int, assignments: tuple[tuple[str, bytes], ...] = ()
) -> SyncRequest:
    return SyncRequest(
        member_id=member_id,
        instance_id=None,
        generation=generation,
        protocol_type=None,
        protocol_name=None,
        assignments=assignments,
    )


def classic_heartbeat(shard: GroupShard, member: JoinResult) -> ErrorCode:
    return shard.heartbeat("g0", member.member_id, None, member.generation)


async def test_an_upgrade_that_could_not_be_stored_leaves_the_classic_group() -> None:
    """Else its members would be unknown, and their generations begin at the first once more."""
    node = Node(GroupMemory())
    shard, stream = node.shards[0], node.partitions[0].stream
    member = await classic_member(node)
    stream.is_full = True
    await refused(node, shard.consumer_heartbeat("g0", beat("n")))
    stream.is_full = False
    assert shard.groups["g0"].kind is GroupKind.CLASSIC
    assert classic_heartbeat(shard, member) is ErrorCode.none
    await settled(node, shard.consumer_heartbeat("g0", beat("n")))
    assert set(shard.groups["g0"].group.members) == {member.member_id, "n"}


async def test_a_downgrade_that_could_not_be_stored_leaves_the_consumer_group() -> None:
    """Else a coordinator that follows would have members that the classic group has no more."""
    node = Node(GroupMemory())
    shard, stream = node.shards[0], node.partitions[0].stream
    member = await classic_member(node)
    await settled(node, shard.consumer_heartbeat("g0", beat("n")))
    stream.is_full = True
    await refused(node, shard.consumer_heartbeat("g0", beat("n", -1)))
    stream.is_full = False
    members = {member.member_id, "n"}
    assert isinstance(shard.groups["g0"].group, ConsumerGroup)
    assert set(shard.groups["g0"].group.members) == members
    left: GroupShard = node.shard(node.partitions[0].left())
    await left.load()
    assert set(left.groups["g0"].group.members) == members
    await settled(node, shard.consumer_heartbeat("g0", beat("n", -1)))
    assert shard.groups["g0"].kind is GroupKind.CLASSIC


async def test_an_empty_consumer_group_that_could_not_become_classic_goes_on() -> None:
    node = Node(GroupMemory())
    shard, stream = node.shards[0], node.partitions[0].stream
    await settled(node, shard.consumer_heartbeat("g0", beat("n")))
    await settled(node, shard.consumer_heartbeat("g0", beat("n", -1)))
    stream.is_full = True
    await node.joined(0, size=SUBSCRIPTION)
    stream.is_full = False
    assert shard.groups["g0"].kind is GroupKind.CONSUMER
    assert (await settled(node, shard.consumer_heartbeat("g0", beat("n")))).epoch == 4


async def test_a_protocol_that_the_group_does_not_use_need_not_be_one_of_consumers() -> None:
    """A member may name one of its own before those that all speak."""
    node = Node(GroupMemory())
    shard, common = node.shards[0], ("range", bytes(SUBSCRIPTION))
    for protocols in ((common,), (("own", b"?"), common)):
        shard.join("g0", join_request(protocols=protocols))
    group = shard.groups["g0"].group
    assert isinstance(group, ClassicGroup)
    first, second = (member.member_id for member in group.members)
    again = [
        shard.join("g0", join_request(member_id=member_id, protocols=protocols))
        for member_id, protocols in ((first, (common,)), (second, (("own", b"?"), common)))
    ]
    generation = again[0].result().generation
    synced = [
        shard.sync("g0", sync_request(member_id, generation, assignments=((first, b""),)))
        for member_id in (second, first)
    ]
    await asyncio.sleep(0)
    node.confirm()
    assert [(await one).error for one in synced] == [ErrorCode.none] * 2
    await settled(node, shard.consumer_heartbeat("g0", beat("n")))
    rejoined = shard.join(
        "g0", join_request(member_id=second, protocols=(("own", b"?"), common))
    ).result()
    assert rejoined.error is ErrorCode.unknown_server_error, "it speaks that one first now"
    code = shard.heartbeat("g0", second, None, generation)
    assert code in {ErrorCode.none, ErrorCode.rebalance_in_progress}
    shard.sync("g0", sync_request(second, generation)).result()
    await settled(node, shard.consumer_heartbeat("g0", beat("n", -1)))
    assert shard.groups["g0"].kind is GroupKind.CLASSIC


async def test_a_group_that_could_not_be_deleted_is_there_with_its_offsets() -> None:
    node = Node(GroupMemory())
    shard, stream = node.shards[0], node.partitions[0].stream
    await settled(node, shard.consumer_heartbeat("g", beat("n")))
    await settled(node, shard.consumer_heartbeat("g", beat("n", -1)))
    for group_id in ("g", "simple"):
        shard.commit(group_id, {("t", 0): CommittedOffset(offset=5)}, lambda _: None)
    await asyncio.sleep(0)
    node.confirm()
    stream.is_full = True
    for group_id in ("g", "simple"):
        assert shard.delete_group(group_id).result() is not None
        assert shard.groups[group_id].offsets["t", 0].offset == 5
    stream.is_full = False
    await settled(node, shard.consumer_heartbeat("g", beat("n")))
    stream.is_full = True
    shard.consumer_heartbeat("g", beat("n", -1))
    assert shard.delete_group("g").result() is not None, "its member could not leave"
    stream.is_full = False
    await settled(node, shard.consumer_heartbeat("g", beat("n", -1)))
    for group_id in ("g", "simple"):
        outcome = shard.delete_group(group_id)
        node.confirm()
        assert await outcome is None
    assert not shard.groups
    left = node.shard(node.partitions[0].left())
    await left.load()
    assert not left.groups


@measured
async def test_changes_that_could_not_be_stored_cost_no_more_in_a_shard_of_many_offsets() -> None:
    """A full log refuses each of many consumers that try to join, while the node goes on."""
    node = Node(GroupMemory())
    shard, stream = node.shards[0], node.partitions[0].stream
    old = CommittedOffset(offset=1)
    shard.commit("other", {("t", index): old for index in range(40_000)}, lambda _: None)
    await settled(node, shard.consumer_heartbeat("g", beat("m")))
    stream.is_full = True
    began = time.thread_time()
    for number in range(50):
        await refused(node, shard.consumer_heartbeat("g", beat(f"n{number}")))
    check_within(time.thread_time() - began, 0.5)
    assert set(shard.groups["g"].group.members) == {"m"}


@measured
async def test_the_end_of_a_transaction_costs_no_more_in_a_shard_of_many_groups() -> None:
    node = Node(GroupMemory())
    shard, count = node.shards[0], 5_000
    for number in range(count):
        shard.commit(f"g{number}", {("t", 0): CommittedOffset(offset=1)}, lambda _: None)
    await asyncio.sleep(0)
    node.confirm()
    began = time.thread_time()
    for producer_id in range(count):
        shard.transaction_ended(producer_id, is_commit=True)
    check_within(time.thread_time() - began, 0.2)
