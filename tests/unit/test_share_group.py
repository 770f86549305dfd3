"""The machine of share groups, their assignor, and their records byte by byte as Kafka's."""

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.consumer.consumer_record_formats import (
    GroupEpoch,
    Target,
    TargetEpoch,
)
from lakehead.broker.coordinator.group.members import GroupMemory
from lakehead.broker.coordinator.group.messages import GroupState
from lakehead.broker.coordinator.group.record_formats import decode_key
from lakehead.broker.coordinator.group.share.share_assignor import assign
from lakehead.broker.coordinator.group.share.share_group import (
    ShareGroup,
    ShareGroupSettings,
    ShareHeartbeat,
    ShareHeartbeatResult,
)
from lakehead.broker.coordinator.group.share.share_groups import ShareGroups
from lakehead.broker.coordinator.group.share.share_record_formats import (
    KnownPartitions,
    ShareAssignment,
    ShareGroupKey,
    ShareGroupRecord,
    ShareGroupValue,
    ShareMemberMetadata,
    ShareRecordKind,
    StatePartitions,
    decode_share_value,
    encode_share_key,
    encode_share_value,
)
from lakehead.broker.coordinator.log import BatchingLog, CoordinatorLog, OnDone
from lakehead.broker.coordinator.record_reader import UnknownRecord
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import WalFull
from lakehead.storage.format.records import iter_kafka_records
from lakehead.storage.tasks import TaskScope
from tests.property.test_coordinator_log import ListPartition, crash
from tests.support.topic_catalogs import catalog

SESSION_S = 45.0
TOPIC_ID = bytes(range(1, 17))
KINDS = ShareRecordKind
PARTITIONS = {TOPIC_ID: frozenset({0, 2})}

# Written by the classes of Kafka 4.2 for the same fields.
VALUES: dict[ShareRecordKind, tuple[ShareGroupValue, str]] = {
    KINDS.MEMBER: (
        ShareMemberMetadata(client_id="c", client_host="/h", topics=frozenset({"a", "b"})),
        "0000000263032f68030261026200",
    ),
    KINDS.GROUP: (GroupEpoch(epoch=5, topics_hash=9), "000000000005000000000000000900"),
    KINDS.TARGET_EPOCH: (TargetEpoch(epoch=5), "00000000000500"),
    KINDS.TARGET: (
        Target(partitions=PARTITIONS),
        "0000020102030405060708090a0b0c0d0e0f100300000000000000020000",
    ),
    KINDS.CURRENT: (
        ShareAssignment(epoch=5, previous_epoch=4, assigned=PARTITIONS),
        "0000000000050000000400020102030405060708090a0b0c0d0e0f100300000000000000020000",
    ),
    KINDS.PARTITIONS: (
        StatePartitions(
            initialized={TOPIC_ID: KnownPartitions("t", frozenset({0, 2}))},
            deleting={TOPIC_ID: "d"},
        ),
        (
            "000001020102030405060708090a0b0c0d0e0f1002740300000000000000020002"
            "0102030405060708090a0b0c0d0e0f1002640000"
        ),
    ),
}


class World:
    """A group, its topics and the time."""

    def __init__(self, *, interval_ms: int = 0, **counts: int) -> None:
        self.limits = ShareGroupSettings(max_size=3, assignment_interval_ms=interval_ms)
        self.catalog = catalog(counts or {"t": 4})
        self.now = 100.0
        self.group = self.fresh()

    def fresh(self) -> ShareGroup:
        return ShareGroup("g", lambda: self.limits, lambda: self.catalog)

    def heartbeat(
        self, member_id: str, epoch: int, topics: set[str] | None = None
    ) -> ShareHeartbeatResult:
        given = None if topics is None else frozenset(topics)
        return self.group.heartbeat(
            ShareHeartbeat(member_id=member_id, epoch=epoch, topics=given), self.now
        )

    def initialize(self) -> None:
        self.group.initialized(self.group.to_initialize())

    def refusal(self, member_id: str, epoch: int) -> ErrorCode:
        with pytest.raises(KafkaError) as caught:
            self.heartbeat(member_id, epoch, {"t"} if epoch == 0 else None)
        return caught.value.code


def count(result: ShareHeartbeatResult) -> int:
    assert result.assignment is not None
    return sum(map(len, result.assignment.values()))


@pytest.mark.parametrize("kind", KINDS)
def test_records_are_laid_out_as_kafkas(kind: ShareRecordKind) -> None:
    value, text = VALUES[kind]
    assert encode_share_value(value).hex() == text
    assert decode_share_value(kind, bytes.fromhex(text)) == value
    for size in range(len(text) // 2 - 1):
        with pytest.raises(UnknownRecord):
            decode_share_value(kind, bytes.fromhex(text)[:size])


def test_keys_are_laid_out_as_kafkas() -> None:
    assert encode_share_key(ShareGroupKey(KINDS.MEMBER, "gr", "m")).hex() == "000a0002677200016d"
    assert encode_share_key(ShareGroupKey(KINDS.GROUP, "gr")).hex() == "000b00026772"
    for kind in KINDS:
        member_id = "m" if kind in {KINDS.MEMBER, KINDS.TARGET, KINDS.CURRENT} else ""
        key = ShareGroupKey(kind, "gr", member_id)
        assert decode_key(encode_share_key(key)) == key


def test_members_have_partitions_once_they_have_a_state() -> None:
    world = World()
    joined = world.heartbeat("a", 0, {"t", "missing"})
    assert count(joined) == 0
    assert {len(indexes) for indexes in world.group.to_initialize().values()} == {4}
    world.initialize()
    assert world.group.to_initialize() == {}
    second = world.heartbeat("a", joined.epoch)
    assert (count(second), second.epoch > joined.epoch) == (4, True)
    assert world.heartbeat("a", second.epoch).assignment is None
    other = world.heartbeat("b", 0, {"t"})
    assert count(other) == 2
    assert count(world.heartbeat("a", second.epoch)) == 2
    assert world.group.state is GroupState.STABLE


def test_changes_within_the_assignment_interval_share_one_assignment() -> None:
    world = World(interval_ms=1_000)
    epoch = world.heartbeat("a", 0, {"t"}).epoch
    world.initialize()
    waiting = world.heartbeat("a", epoch)
    assert (waiting.epoch, waiting.assignment, world.group.epoch) == (2, None, 3)
    other = world.heartbeat("b", 0, {"t"})
    assert (other.epoch, count(other), world.group.epoch) == (2, 0, 4)
    world.now += 1.0
    due = world.heartbeat("a", epoch)
    assert (due.epoch, count(due)) == (4, 2)
    assert count(world.heartbeat("b", 2)) == 2


def test_states_of_new_partitions_let_the_epoch_grow_with_the_next_heartbeat() -> None:
    world = World()
    world.heartbeat("a", 0, {"t"})
    world.initialize()
    assert world.group.epoch == 2
    assert world.heartbeat("b", 0, {"t"}).epoch == 3
    assert world.heartbeat("a", 2).epoch == 3


def test_a_member_has_nothing_of_topics_that_it_left_even_before_the_next_assignment() -> None:
    world = World(interval_ms=1_000, t=2, u=2)
    world.heartbeat("a", 0, {"t", "u"})
    world.initialize()
    world.now += 1.0
    assert count(world.heartbeat("a", 2)) == 4
    assert count(world.heartbeat("a", 3, {"u"})) == 2


def test_epochs_are_held_against_those_that_are_known() -> None:
    world = World()
    assert world.refusal("a", 3) is ErrorCode.unknown_member_id
    epoch = world.heartbeat("a", 0, {"t"}).epoch
    world.initialize()
    newer = world.heartbeat("a", epoch).epoch
    assert world.heartbeat("a", epoch).epoch == newer, "a response was lost"
    assert world.refusal("a", newer + 1) is ErrorCode.fenced_member_epoch
    world.heartbeat("b", 0, {"t"})
    world.heartbeat("a", newer)
    assert world.refusal("a", epoch) is ErrorCode.fenced_member_epoch
    assert world.heartbeat("a", 0, {"t"}).epoch >= newer


def test_a_full_group_takes_no_more_members() -> None:
    world = World()
    for name in "abc":
        world.heartbeat(name, 0, {"t"})
    assert world.refusal("d", 0) is ErrorCode.group_max_size_reached
    world.group.leave("a", -1)
    world.heartbeat("d", 0, {"t"})
    with pytest.raises(KafkaError):
        world.group.leave("a", -1)


def test_the_silent_are_removed_and_the_rest_has_their_partitions() -> None:
    world = World()
    world.heartbeat("a", 0, {"t"})
    world.initialize()
    epoch = world.heartbeat("b", 0, {"t"}).epoch
    world.now += SESSION_S - 1
    epoch = world.heartbeat("b", epoch).epoch
    world.group.tick(world.now + 2)
    assert list(world.group.members) == ["b"]
    assert count(world.heartbeat("b", epoch)) == 4
    world.group.tick(world.now + 2 * SESSION_S)
    assert world.group.state is GroupState.EMPTY


def test_new_partitions_and_deleted_topics_are_noticed() -> None:
    world = World(t=2, u=1)
    world.heartbeat("a", 0, {"t", "u"})
    world.initialize()
    epoch = world.heartbeat("a", 2).epoch
    world.catalog = catalog({"t": 3})
    changed = world.heartbeat("a", epoch)
    assert count(changed) == 2
    world.initialize()
    assert count(world.heartbeat("a", changed.epoch)) == 3
    assert {one.name for one in world.group.partitions.initialized.values()} == {"t"}


def test_a_group_that_is_loaded_is_the_same() -> None:
    world = World()
    world.heartbeat("a", 0, {"t"})
    world.initialize()
    epoch = world.heartbeat("b", 0, {"t"}).epoch
    world.group.leave("b", -1)
    log = dict(world.group.take_records())
    before = world.group
    world.group = world.fresh()
    records = [
        (key, decode_share_value(key.kind, encode_share_value(value)))
        for key, value in log.items()
        if value is not None
    ]
    world.group.restore((ShareGroupRecord(*record) for record in records), world.now)
    for name in ("epoch", "target_epoch", "partitions", "members", "state"):
        assert getattr(world.group, name) == getattr(before, name), name
    assert set(world.group.keys) == {key for key, value in log.items() if value is not None}
    assert world.heartbeat("a", 0, {"t"}).epoch > epoch


topics = st.integers(0, 4).map(lambda number: bytes([number]) * 16)


@given(
    st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.frozensets(topics), max_size=6),
    st.dictionaries(topics, st.frozensets(st.integers(0, 5), min_size=1), max_size=5),
)
def test_each_partition_has_a_member_and_each_member_its_own(
    subscriptions: dict[str, frozenset[bytes]], partitions: dict[bytes, frozenset[int]]
) -> None:
    given_to = assign(subscriptions, partitions)
    assert given_to.keys() == subscriptions.keys()
    taken = set()
    for member_id, found in given_to.items():
        assert found.keys() <= subscriptions[member_id]
        for topic_id, indexes in found.items():
            assert indexes <= partitions[topic_id]
            taken |= {(topic_id, index) for index in indexes}
        if subscriptions[member_id] & partitions.keys():
            assert found, "a member has nothing to do"
    subscribed = frozenset(itertools.chain.from_iterable(subscriptions.values()))
    assert taken == {
        (topic_id, index)
        for topic_id, indexes in partitions.items()
        if topic_id in subscribed
        for index in indexes
    }


class Failing:
    """A node's share groups, over a log that may be full."""

    def __init__(self, memory: GroupMemory | None = None) -> None:
        self.scope = TaskScope(crash)
        self.catalog = catalog({"t": 2})
        self.partition = ListPartition()
        self.made: list[SharePartitionKey] = []
        self.refused: set[SharePartitionKey] = set()
        """States that cannot be deleted now."""
        log = CoordinatorLog(self.partition, SystemClock(), self.scope, name="log")
        self.groups = ShareGroups(
            BatchingLog(log),
            SystemClock(),
            self.scope,
            memory or GroupMemory(),
            lambda _group: ShareGroupSettings(),
            lambda: self.catalog,
            self,
            lambda group_id: group_id == "classic",
        )

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        assert (start_offset, state_epoch > 0) == (-1, True)
        self.made.append(key)

    async def delete(self, key: SharePartitionKey) -> None:
        if self.catalog.name_of(key.topic_id) is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        if key in self.refused:
            raise KafkaError(ErrorCode.coordinator_not_available)
        if key in self.made:
            self.made.remove(key)

    def begin(self, member_id: str, epoch: int) -> asyncio.Future[ShareHeartbeatResult]:
        request = ShareHeartbeat(
            member_id=member_id, epoch=epoch, topics=None if epoch else frozenset({"t"})
        )
        return self.groups.heartbeat("g", request)

    async def heartbeat(self, member_id: str, epoch: int) -> ShareHeartbeatResult:
        response = self.begin(member_id, epoch)
        await self.pass_turns()
        return await response

    async def pass_turns(self, *, is_durable: bool = True) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
            if is_durable:
                self.partition.stream.confirm(10)

    def fence(self) -> None:
        """Let another node follow: what waits for the log fails."""
        waiting, self.partition.stream.waiting = self.partition.stream.waiting, []
        for _, on_done in waiting:
            if on_done is not None:
                on_done(KafkaError(ErrorCode.not_leader_or_follower))


async def test_a_change_that_cannot_be_stored_is_undone() -> None:
    world = Failing()
    epoch = (await world.heartbeat("a", 0)).epoch
    assert len(world.made) == 2
    world.partition.stream.is_full = True
    with pytest.raises(KafkaError):
        await world.heartbeat("b", 0)
    assert [list(group.members) for group in world.groups.groups] == [["a"]]
    world.partition.stream.is_full = False
    result = await world.heartbeat("a", epoch)
    assert count(result) == 2
    with pytest.raises(KafkaError):
        world.groups.heartbeat("classic", ShareHeartbeat(member_id="a", epoch=0))
    await world.scope.close()


async def test_a_group_that_could_not_be_deleted_is_there() -> None:
    world = Failing()
    epoch = (await world.heartbeat("a", 0)).epoch
    await world.heartbeat("a", -1)
    append = world.partition.append

    def append_no_tombstones(batch: memoryview, on_done: OnDone | None = None) -> None:
        if any(record.value is None for record in iter_kafka_records(batch)):
            raise WalFull("full")
        append(batch, on_done)

    world.partition.append = append_no_tombstones  # type: ignore[method-assign]
    deletion = asyncio.ensure_future(world.groups.delete("g"))
    await world.pass_turns()
    with pytest.raises(KafkaError):
        await deletion
    assert [group.group_id for group in world.groups.groups] == ["g"]
    world.partition.append = append  # type: ignore[method-assign]
    await world.heartbeat("b", 0)
    assert world.groups.known("g").epoch > epoch
    await world.scope.close()


class SlowDeletions(Failing):
    """Deletes states once the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def delete(self, key: SharePartitionKey) -> None:
        await self.gate.wait()
        await super().delete(key)


async def test_a_group_is_deleted_although_a_member_that_was_undone_came_meanwhile() -> None:
    world = SlowDeletions()
    await world.heartbeat("a", 0)
    await world.heartbeat("a", -1)
    deletion = asyncio.ensure_future(world.groups.delete("g"))
    await world.pass_turns()
    world.partition.stream.is_full = True
    with pytest.raises(KafkaError):
        await world.heartbeat("b", 0)
    world.partition.stream.is_full = False
    world.gate.set()
    await world.pass_turns()
    await deletion
    assert not world.groups.groups
    await world.scope.close()


async def test_a_group_is_deleted_by_a_log_that_is_durable_at_once() -> None:
    world = Failing()
    await world.heartbeat("a", 0)
    await world.heartbeat("a", -1)
    append = world.partition.append

    def append_durably(batch: memoryview, on_done: OnDone | None = None) -> None:
        append(batch, on_done)
        world.partition.stream.confirm(10)

    world.partition.append = append_durably  # type: ignore[method-assign]
    await world.groups.delete("g")
    assert not world.groups.groups
    await world.scope.close()


async def test_members_of_share_groups_are_within_the_memory_for_groups() -> None:
    memory = GroupMemory(200_000)
    world = Failing(memory)
    codes = set()
    topics = frozenset(f"{'x' * 100}{index}" for index in range(50))
    for number in range(100):
        request = ShareHeartbeat(member_id=f"m{number}", epoch=0, topics=topics)
        try:
            world.groups.heartbeat(f"g{number % 3}", request)
        except KafkaError as error:
            codes.add(error.code)
        await world.pass_turns()
    assert codes == {ErrorCode.group_max_size_reached}
    assert memory.used <= memory.capacity
    assert 10 < sum(len(group.members) for group in world.groups.groups) < 20
    alive = ShareHeartbeat(
        member_id="m0", epoch=world.groups.known("g0").members["m0"].current.epoch
    )
    world.groups.heartbeat("g0", alive)
    with pytest.raises(KafkaError):
        world.groups.heartbeat("new", ShareHeartbeat(member_id="m", epoch=0, topics=topics))
    assert "new" not in world.groups
    for group in world.groups.groups:
        for member_id in list(group.members):
            leaving = ShareHeartbeat(member_id=member_id, epoch=-1)
            world.groups.heartbeat(group.group_id, leaving)
    assert memory.used == sum(1024 + len(group.group_id) for group in world.groups.groups)
    world.groups.close()
    assert memory.used == 0
    await world.scope.close()


async def test_a_group_that_was_never_stored_is_not_there() -> None:
    world = Failing()
    world.partition.stream.is_full = True
    with pytest.raises(KafkaError):
        await world.heartbeat("a", 0)
    assert world.groups.groups == []
    await world.scope.close()


async def test_a_state_begins_once_the_log_has_its_group() -> None:
    world = Failing()
    response = world.begin("a", 0)
    await world.pass_turns(is_durable=False)
    assert world.made == []
    await world.pass_turns()
    assert (len(world.made), (await response).epoch) == (2, 2)
    await world.scope.close()


async def test_a_coordinator_that_another_has_followed_begins_no_state() -> None:
    world = Failing()
    response = world.begin("a", 0)
    await world.pass_turns(is_durable=False)
    world.fence()
    await world.pass_turns()
    with pytest.raises(KafkaError):
        await response
    key = SharePartitionKey("g", world.catalog.found(["t"])[0].topic_id, 0)
    moving = asyncio.ensure_future(world.groups.set_offsets("g", {key: 5}, makes_group=True))
    await world.pass_turns(is_durable=False)
    world.fence()
    with pytest.raises(KafkaError):
        await moving
    assert world.made == []
    await world.scope.close()


async def test_a_coordinator_that_another_has_followed_deletes_no_state() -> None:
    world = Failing()
    await world.heartbeat("a", 0)
    await world.heartbeat("a", -1)
    for deletion in (
        world.groups.delete_states("g", [world.made[0].topic_id]),
        world.groups.delete("g"),
    ):
        deleting = asyncio.ensure_future(deletion)
        await world.pass_turns(is_durable=False)
        world.fence()
        with pytest.raises(KafkaError):
            await deleting
        assert len(world.made) == 2
    await world.scope.close()


async def test_a_deletion_that_was_cut_off_is_completed_by_the_next_one() -> None:
    world = Failing()
    await world.heartbeat("a", 0)
    await world.heartbeat("a", -1)
    topic_id = world.made[0].topic_id
    world.refused = {world.made[1]}
    deleting = asyncio.ensure_future(world.groups.delete_states("g", [topic_id]))
    await world.pass_turns()
    with pytest.raises(KafkaError):
        await deleting
    [group] = world.groups.groups
    assert (group.partitions.initialized, set(group.partitions.deleting)) == ({}, {topic_id})
    world.refused.clear()
    gone = asyncio.ensure_future(world.groups.delete("g"))
    await world.pass_turns()
    await gone
    assert (world.made, world.groups.groups) == ([], [])
    await world.scope.close()


async def test_a_group_can_be_deleted_after_its_topic() -> None:
    world = Failing()
    await world.heartbeat("a", 0)
    await world.heartbeat("a", -1)
    world.catalog = catalog({})
    deleting = asyncio.ensure_future(world.groups.delete("g"))
    await world.pass_turns()
    await deleting
    assert world.groups.groups == []
    await world.scope.close()
