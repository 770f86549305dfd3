"""The state machine of KIP-848: epochs, reconciliation, static members, regular expressions."""

from collections.abc import Collection

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.consumer import classic_members
from lakehead.broker.coordinator.group.consumer.consumer_group import (
    ConsumerGroup,
    ConsumerGroupSettings,
    HeartbeatRequest,
    HeartbeatResult,
)
from lakehead.broker.coordinator.group.consumer.consumer_members import (
    MemberState,
    TopicPartitions,
)
from lakehead.broker.coordinator.group.consumer.consumer_record_formats import RecordKind
from lakehead.broker.coordinator.group.messages import GroupState
from lakehead.broker.coordinator.group.topic_catalog import TopicCatalog
from lakehead.broker.protocol.errors import KafkaError
from tests.support.topic_catalogs import catalog, topic_id

A = topic_id("a")


class Rig:
    """A group with a clock, limits and topics that the test sets."""

    def __init__(self, partitions: int = 4, **limits: object) -> None:
        self.now = 0.0
        given = {"assignment_interval_ms": 0, **limits}
        self.limits = ConsumerGroupSettings(**given)  # type: ignore[arg-type]
        self.topics: TopicCatalog = catalog({"a": partitions})
        self.group = ConsumerGroup("g", lambda: self.limits, lambda: self.topics)

    def join(
        self,
        member_id: str,
        topics: Collection[str] = ("a",),
        instance_id: str | None = None,
        **others: str,
    ) -> HeartbeatResult:
        request = HeartbeatRequest(
            member_id=member_id,
            epoch=0,
            instance_id=instance_id,
            rebalance_timeout_ms=6_000,
            topics=frozenset(topics),
            owned={},
            **others,
        )
        return self.group.heartbeat(request, self.now)

    def beat(
        self,
        member_id: str,
        epoch: int,
        owned: TopicPartitions | None = None,
        instance_id: str | None = None,
    ) -> HeartbeatResult:
        request = HeartbeatRequest(
            member_id=member_id, epoch=epoch, owned=owned, instance_id=instance_id
        )
        return self.group.heartbeat(request, self.now)

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.group.tick(self.now)

    def code_of(
        self, member_id: str, epoch: int, owned: TopicPartitions | None = None
    ) -> ErrorCode:
        with pytest.raises(KafkaError) as caught:
            self.beat(member_id, epoch, owned)
        return caught.value.code


def on_a(*indexes: int) -> TopicPartitions:
    return {A: frozenset(indexes)}


def test_the_first_member_has_everything_at_once() -> None:
    rig = Rig()
    result = rig.join("m1")
    assert (result.epoch, result.assignment) == (2, on_a(0, 1, 2, 3))
    assert rig.group.state is GroupState.STABLE
    quiet = rig.beat("m1", 2)
    assert (quiet.epoch, quiet.assignment) == (2, None)


def test_partitions_are_revoked_before_they_are_assigned() -> None:
    rig = Rig()
    rig.join("m1")
    second = rig.join("m2")
    assert (second.epoch, second.assignment) == (3, {})
    assert rig.group.members["m2"].current.state is MemberState.UNRELEASED_PARTITIONS
    first = rig.beat("m1", 2)
    assert first.epoch == 2
    assert first.assignment is not None
    kept = first.assignment
    assert rig.beat("m2", 3).assignment is None, "not yet given back"
    assert rig.beat("m1", 2, on_a(0, 1, 2, 3)).epoch == 2
    assert rig.beat("m1", 2, kept).epoch == 3
    given = rig.beat("m2", 3).assignment
    assert given is not None
    assert given[A] == frozenset({0, 1, 2, 3}) - kept[A]
    assert rig.group.state is GroupState.STABLE


def test_a_member_that_gives_nothing_back_is_fenced() -> None:
    rig = Rig(session_timeout_ms=60_000)
    rig.join("m1")
    rig.join("m2")
    rig.beat("m1", 2)
    rig.tick(5.9)
    rig.beat("m1", 2, on_a(0, 1, 2, 3))
    assert "m1" in rig.group.members
    rig.tick(0.2)
    assert "m1" not in rig.group.members
    assert rig.beat("m2", 3).assignment == on_a(0, 1, 2, 3)
    assert rig.code_of("m1", 2) is ErrorCode.unknown_member_id


def test_a_silent_member_is_fenced_after_its_session() -> None:
    rig = Rig(session_timeout_ms=10_000)
    rig.join("m1")
    rig.tick(9.0)
    rig.beat("m1", 2)
    rig.tick(9.0)
    assert "m1" in rig.group.members
    rig.tick(1.1)
    assert rig.group.state is GroupState.EMPTY
    assert rig.group.next_deadline() is None


def test_epochs_that_are_not_the_members_are_fenced() -> None:
    rig = Rig()
    rig.join("m1")
    rig.join("m2")
    rig.beat("m1", 2)
    kept = rig.group.members["m1"].current.assigned
    rig.beat("m1", 2, kept)
    assert rig.code_of("m1", 4) is ErrorCode.fenced_member_epoch
    # The response with epoch 2 may be lost: its predecessor counts if no more is owned.
    assert rig.code_of("m1", 2) is ErrorCode.fenced_member_epoch
    assert rig.code_of("m1", 2, on_a(0, 1, 2, 3)) is ErrorCode.fenced_member_epoch
    assert rig.beat("m1", 2, kept).epoch == 3
    assert rig.code_of("m3", 2) is ErrorCode.unknown_member_id
    # A member that was fenced comes back by epoch 0, and has its partitions again.
    assert rig.join("m1").assignment == kept


def test_a_static_member_comes_back_to_its_partitions() -> None:
    rig = Rig()
    rig.join("m1", instance_id="i1")
    rig.join("m2", instance_id="i2")
    rig.beat("m1", 2, instance_id="i1")
    kept = rig.group.members["m1"].current.assigned
    rig.beat("m1", 2, kept, instance_id="i1")
    rig.beat("m2", 3, instance_id="i2")
    epoch = rig.group.store.epoch
    with pytest.raises(KafkaError) as caught:
        rig.join("m3", instance_id="i1")
    assert caught.value.code is ErrorCode.unreleased_instance_id
    assert rig.group.leave("m1", "i1", -2).epoch == -2
    rig.group.take_records()
    back = rig.join("m3", instance_id="i1")
    assert (back.epoch, back.assignment) == (3, kept)
    assert rig.group.store.epoch == epoch, "no rebalance"
    assert "m1" not in rig.group.members
    gone = [record.key for record in rig.group.take_records() if record.value is None]
    assert {(key.kind, key.name) for key in gone} == {
        (kind, "m1") for kind in (RecordKind.MEMBER, RecordKind.TARGET, RecordKind.CURRENT)
    }
    with pytest.raises(KafkaError) as caught:
        rig.beat("m1", 3, kept, instance_id="i1")
    assert caught.value.code is ErrorCode.fenced_instance_id


def test_a_dynamic_member_may_become_a_static_one() -> None:
    rig = Rig()
    rig.join("m1")
    assert rig.join("m1", instance_id="i1").assignment == on_a(0, 1, 2, 3)
    assert rig.group.store.epoch == 2, "no rebalance"
    assert rig.beat("m1", 2, instance_id="i1").epoch == 2


def test_a_static_member_that_stays_away_loses_its_partitions() -> None:
    rig = Rig(session_timeout_ms=10_000)
    rig.join("m1", instance_id="i1")
    rig.group.leave("m1", "i1", -2)
    rig.tick(9.0)
    assert "m1" in rig.group.members
    rig.tick(1.1)
    assert "m1" not in rig.group.members


def test_a_full_group_takes_no_more() -> None:
    rig = Rig(max_size=1)
    rig.join("m1")
    with pytest.raises(KafkaError) as caught:
        rig.join("m2")
    assert caught.value.code is ErrorCode.group_max_size_reached
    assert rig.join("m1").epoch == 2
    rig = Rig()
    with pytest.raises(KafkaError) as caught:
        rig.group.heartbeat(HeartbeatRequest(member_id="m", epoch=0, topics=frozenset()), 0.0, 100)
    assert caught.value.code is ErrorCode.group_max_size_reached
    assert not rig.group.members


def test_more_partitions_and_new_topics_reach_the_members() -> None:
    rig = Rig(partitions=2)
    rig.join("m1", ["a", "later"])
    rig.topics = catalog({"a": 3, "later": 1, "other": 9})
    result = rig.beat("m1", 2)
    assert result.epoch == 3
    assert result.assignment == {A: frozenset({0, 1, 2}), topic_id("later"): frozenset({0})}
    rig.topics = catalog({"a": 3, "later": 1, "other": 10})
    assert rig.beat("m1", 3).epoch == 3, "a topic of others changed"


def test_the_assignor_is_the_one_that_most_chose() -> None:
    rig = Rig()
    assert rig.group.assignor == "uniform"
    rig.join("m1", assignor="range")
    assert rig.group.assignor == "range"
    rig.join("m2", assignor="uniform")
    assert rig.group.assignor == "uniform"
    rig.join("m3", assignor="range")
    assert rig.group.assignor == "range"


def test_a_regular_expression_counts_once_it_is_resolved() -> None:
    rig = Rig()
    result = rig.join("m1", [], regex="a.*")
    assert (result.epoch, result.assignment) == (1, {})
    assert rig.group.regexes_to_resolve(rig.now) == {"a.*"}
    assert rig.group.regexes_to_resolve(rig.now) == frozenset(), "under way"
    rig.group.resolved({"a.*": frozenset({"a"}), "gone": frozenset({"x"})}, rig.topics, 5)
    assert set(rig.group.store.regexes) == {"a.*"}
    assert rig.group.store.is_subscribed("a")
    assert rig.beat("m1", 1).assignment == on_a(0, 1, 2, 3)
    # The next member finds it resolved.
    assert rig.join("m2", [], regex="a.*").epoch == 3
    rig.topics = catalog({"a": 4, "ab": 1})
    assert rig.group.regexes_to_resolve(rig.now + 9.9) == frozenset(), "not too often"
    assert rig.group.regexes_to_resolve(rig.now + 10.1) == {"a.*"}
    rig.group.not_resolved()
    assert rig.group.regexes_to_resolve(rig.now + 20.3) == {"a.*"}
    rig.group.resolved({"a.*": frozenset({"a", "ab"})}, rig.topics, 5)
    assert rig.group.store.epoch == 4
    rig.group.leave("m1", None, -1)
    rig.group.leave("m2", None, -1)
    assert not rig.group.store.regexes
    assert rig.group.cost == 0


def test_leave_group_removes_members_of_both_protocols() -> None:
    rig = Rig()
    rig.join("m1", [])
    codes = classic_members.leave(rig.group, [("m1", None), ("m2", None)])
    assert codes == [ErrorCode.none, ErrorCode.unknown_member_id]
    assert not rig.group.members


def test_a_group_has_so_many_regular_expressions_at_most() -> None:
    rig = Rig()
    for number in range(100):
        rig.join(f"m{number}", [], regex=f"t{number}")
    with pytest.raises(KafkaError) as caught:
        rig.join("one too many", [], regex="t100")
    assert caught.value.code is ErrorCode.invalid_regular_expression
    assert rig.join("another", [], regex="t7").epoch == 1
    rig.group.leave("m3", None, -1)
    assert rig.join("one too many", [], regex="t100").member_id in rig.group.members


def test_members_that_join_within_the_assignment_interval_share_one_assignment() -> None:
    rig = Rig(assignment_interval_ms=1_000)
    first = rig.join("m0")
    assert first.assignment == on_a(0, 1, 2, 3)
    for number in range(1, 4):
        rig.tick(0.3)
        later = rig.join(f"m{number}")
        assert (later.epoch, later.assignment) == (2, {})
        assert rig.group.state is GroupState.ASSIGNING
    assert rig.beat("m1", 2).assignment is None
    rig.tick(0.2)
    assert rig.group.store.target_epoch == 2, "a heartbeat makes it, not time"
    kept = rig.beat("m0", 2).assignment
    assert kept is not None
    assert len(kept[A]) == 1
    assert (rig.group.store.epoch, rig.group.store.target_epoch) == (5, 5)
    assert rig.beat("m0", 2, kept).epoch == 5
    for number in range(1, 4):
        assert rig.beat(f"m{number}", 2).assignment is not None
    assert rig.group.state is GroupState.STABLE


def test_a_member_behind_its_epoch_may_commit_for_partitions_that_it_keeps() -> None:
    rig = Rig()
    rig.join("m1")
    rig.join("m2")
    kept = rig.beat("m1", 2).assignment
    assert kept is not None
    rig.beat("m1", 2, kept)
    taken = rig.beat("m2", 3).assignment
    assert taken is not None
    rig.join("m3", topics=("b",))
    for member_id in ("m1", "m2"):
        assert rig.beat(member_id, 3).epoch == 4

    def code(member_id: str, epoch: int, partitions: TopicPartitions) -> ErrorCode | None:
        places = [(topic, index) for topic, indexes in partitions.items() for index in indexes]
        return rig.group.refuse_commit(member_id, epoch, places)

    assert [code("m1", epoch, kept) for epoch in (2, 3, 4)] == [None] * 3
    assert [code("m2", epoch, taken) for epoch in (3, 4)] == [None] * 2
    stale = ErrorCode.stale_member_epoch
    assert code("m2", 2, taken) is stale, "another member had them then"
    assert code("m1", 3, taken) is stale
    assert code("m1", 5, kept) is stale


def test_a_partition_that_is_to_be_given_back_may_be_committed_still() -> None:
    rig = Rig()
    rig.join("m1")
    rig.join("m2")
    rig.beat("m1", 2)
    assert rig.group.members["m1"].current.state is MemberState.UNREVOKED_PARTITIONS
    every = [(A, index) for index in range(4)]
    assert rig.group.refuse_commit("m1", 2, every) is None
    rig.group.leave("m1", None, -1)
    assert rig.group.refuse_commit("m1", 2, every) is ErrorCode.unknown_member_id


def test_a_group_without_members_waits_for_its_next_assignment_too() -> None:
    rig = Rig(assignment_interval_ms=1_000)
    rig.join("m0")
    rig.group.leave("m0", None, -1)
    rig.tick(0.5)
    assert rig.join("m1").assignment == {}
    rig.tick(0.5)
    assert rig.beat("m1", 2).assignment == on_a(0, 1, 2, 3)


def test_another_coordinator_makes_the_next_assignment_at_once() -> None:
    rig = Rig(assignment_interval_ms=1_000)
    rig.join("m0")
    other = Rig(assignment_interval_ms=1_000)
    other.group.restore(rig.group.take_records(), 0.1)
    other.now = 0.1
    other.join("m1")
    assert other.group.store.target_epoch == 3


def test_a_log_that_was_cut_off_leaves_no_strays() -> None:
    rig = Rig()
    rig.join("m1")
    records = [
        record for record in rig.group.take_records() if record.key.kind is not RecordKind.MEMBER
    ]
    other = Rig()
    other.group.restore(records, 0.0)
    assert not other.group.members
    assert {record.value for record in other.group.take_records()} == {None}
    assert other.group.cost == 0
    assert other.join("m2").assignment == on_a(0, 1, 2, 3)
