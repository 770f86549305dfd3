"""Which offsets of a group have lived their time, as Kafka counts it (KIP-211)."""

import asyncio
import struct
from dataclasses import replace

import pytest

from lakehead.broker.coordinator.group.classic_group import ClassicGroup
from lakehead.broker.coordinator.group.consumer.consumer_group import (
    ConsumerGroup,
    ConsumerGroupSettings,
    HeartbeatRequest,
)
from lakehead.broker.coordinator.group.group_metadata import GroupMetadata, Subscriptions
from lakehead.broker.coordinator.group.members import GroupMemory
from lakehead.broker.coordinator.group.messages import GroupSettings, GroupSnapshot, MemberSnapshot
from lakehead.broker.coordinator.group.record_formats import (
    CommittedOffset,
    decode_offset,
    encode_offset,
)
from tests.support.topic_catalogs import catalog
from tests.unit.test_group_memory import Node

HOUR = 3_600_000
NOW = 1_000 * HOUR
T, U = ("t", 0), ("u", 0)
OLD = CommittedOffset(offset=1, commit_timestamp_ms=NOW - 5 * HOUR)
NEW = replace(OLD, commit_timestamp_ms=NOW - HOUR)


def subscription(*topics: str) -> bytes:
    names = b"".join(struct.pack(">h", len(t)) + t.encode() for t in topics)
    return struct.pack(">hi", 1, len(topics)) + names + b"rest"


def snapshot(*subscriptions: bytes, protocol_type: str = "consumer") -> GroupSnapshot:
    members = tuple(
        MemberSnapshot(
            member_id=f"m{number}",
            instance_id=None,
            client_id="c",
            client_host="/h",
            rebalance_timeout_ms=1,
            session_timeout_ms=1,
            subscription=subscribed,
            assignment=b"",
        )
        for number, subscribed in enumerate(subscriptions)
    )
    return GroupSnapshot(
        protocol_type=protocol_type,
        generation=1,
        protocol_name="range",
        leader="m0" if members else None,
        members=members,
    )


def group(stored: GroupSnapshot, *, empty_since_ms: int = -1) -> GroupMetadata:
    machine = ClassicGroup.restored("g", GroupSettings(), str, stored, 0.0)
    return GroupMetadata(machine, {T: OLD, U: NEW}, empty_since_ms=empty_since_ms)


def test_of_a_simple_consumer_each_offset_ages_from_its_commit() -> None:
    assert group(snapshot(protocol_type="")).expired(NOW, 2 * HOUR) == {T}


def test_of_a_group_that_was_left_none_ages_before_it_was() -> None:
    assert group(snapshot(), empty_since_ms=NOW - HOUR).expired(NOW, 2 * HOUR) == set()
    assert group(snapshot(), empty_since_ms=NOW - 3 * HOUR).expired(NOW, 2 * HOUR) == {T}
    assert group(snapshot(), empty_since_ms=NOW - HOUR).expired(NOW, HOUR) == {T, U}


def test_of_a_group_with_members_those_of_topics_that_nobody_consumes_age() -> None:
    assert group(snapshot(subscription("t", "x"))).expired(NOW, HOUR) == {U}
    assert group(snapshot(subscription("u"), subscription("x"))).expired(NOW, HOUR) == {T}
    assert group(snapshot(subscription("t"), subscription("u"))).expired(NOW, HOUR) == set()


def test_of_a_consumer_group_those_of_topics_without_a_subscription_age() -> None:
    topics = catalog({"t": 1, "u": 1})
    machine = ConsumerGroup("g", ConsumerGroupSettings, lambda: topics)
    live = GroupMetadata(machine, {T: OLD, U: NEW})
    assert live.expired(NOW, 2 * HOUR) == {T}, "by their commit, whenever members left"
    machine.heartbeat(HeartbeatRequest(member_id="m", epoch=0, topics=frozenset({"t"})), 0.0)
    assert live.expired(NOW, HOUR) == {U}
    machine.heartbeat(HeartbeatRequest(member_id="m", epoch=2, topics=frozenset({"u"})), 0.0)
    assert live.expired(NOW, HOUR) == {T}


@pytest.mark.parametrize("protocol_type", ["connect", "consumer"])
def test_where_nobody_knows_what_members_consume_nothing_ages(protocol_type: str) -> None:
    stored = snapshot(b"what", protocol_type=protocol_type)
    assert group(stored).expired(NOW, 0) == set()


def test_what_is_being_written_does_not_age() -> None:
    live = group(snapshot(protocol_type=""))
    live.uncommitted.update([T])
    live.pending_transactional[7] = {U}
    assert live.expired(NOW, 0) == set()


def test_a_commit_may_name_its_own_end() -> None:
    live = group(snapshot(protocol_type=""))
    short = replace(NEW, expire_timestamp_ms=NOW - 1)
    live.offsets[U] = decode_offset(encode_offset(short))
    assert live.offsets[U] == short
    live.offsets[T] = replace(OLD, expire_timestamp_ms=NOW + 1)
    assert live.expired(NOW, 2 * HOUR) == {U}


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\0",
        subscription("t")[:-6],
        struct.pack(">hi", 0, 2**31 - 1),
        b"\0\1\0\0\0\1\0\2\xff\xfe",
    ],
)
def test_a_subscription_that_cannot_be_read_counts_as_one_to_everything(damaged: bytes) -> None:
    assert "anything" in Subscriptions(snapshot(subscription("t"), damaged))


def test_without_members_nothing_is_subscribed_to() -> None:
    assert "t" not in Subscriptions(snapshot())
    assert "t" not in Subscriptions(snapshot(b"x", protocol_type="connect"))


async def test_offsets_expire_a_thousand_at_a_time_and_what_is_committed_meanwhile_stays() -> None:
    """A node may have a million, and has to respond meanwhile."""
    node = Node(GroupMemory())
    shard, count = node.shards[0], 500
    old = CommittedOffset(offset=1, commit_timestamp_ms=1)
    for number in range(count):
        shard.commit(f"g{number}", {("t", index): old for index in range(9)}, lambda _: None)
    await asyncio.sleep(0)
    node.confirm()
    steps = shard.expire(HOUR)
    expired = [next(steps), next(steps)]
    new = CommittedOffset(offset=2, commit_timestamp_ms=node.clock.now_ms())
    shard.commit("g499", {T: new}, lambda _: None)
    del shard.groups["g498"]
    expired += steps
    await asyncio.sleep(0)
    node.confirm()
    assert max(expired) < 1_100
    assert sum(expired) == 9 * (count - 2) + 8
    assert {name: live.offsets for name, live in shard.groups.items()} == {"g499": {T: new}}
