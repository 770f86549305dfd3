"""The state machine of KIP-848: epochs, reconciliation, static members, regular expressions."""

from collections.abc import Collection

import pytest
from kio.schema.errors import ErrorCode

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
        self.limits = ConsumerGroupSettings(**limits)  # type: ignore[arg-type]
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
    assert (result.epoch, result.assignment) == (1, on_a(0, 1, 2, 3))
    assert rig.group.state is GroupState.STABLE
    quiet = rig.beat("m1", 1)
    assert (quiet.epoch, quiet.assignment) == (1, None)


def test_partitions_are_revoked_before_they_are_assigned() -> None:
    rig = Rig()
    rig.join("m1")
    second = rig.join("m2")
    assert (second.epoch, second.assignment) == (2, {})
    assert rig.group.members["m2"].current.state is MemberState.UNRELEASED_PARTITIONS
    first = rig.beat("m1", 1)
    assert first.epoch == 1
    assert first.assignment is not None
    kept = first.assignment
    assert rig.beat("m2", 2).assignment is None, "not yet given back"
    assert rig.beat("m1", 1, on_a(0, 1, 2, 3)).epoch == 1
    assert rig.beat("m1", 1, kept).epoch == 2
    given = rig.beat("m2", 2).assignment
    assert given is not None
    assert given[A] == frozenset({0, 1, 2, 3}) - kept[A]
    assert rig.group.state is GroupState.STABLE


def test_a_member_that_gives_nothing_back_is_fenced() -> None:
    rig = Rig(session_timeout_ms=60_000)
    rig.join("m1")
    rig.join("m2")
    rig.beat("m1", 1)
    rig.tick(5.9)
    rig.beat("m1", 1, on_a(0, 1, 2, 3))
    assert "m1" in rig.group.members
    rig.tick(0.2)
    assert "m1" not in rig.group.members
    assert rig.beat("m2", 2).assignment == on_a(0, 1, 2, 3)
    assert rig.code_of("m1", 1) is ErrorCode.unknown_member_id


def test_a_silent_member_is_fenced_after_its_session() -> None:
    rig = Rig(session_timeout_ms=10_000)
    rig.join("m1")
    rig.tick(9.0)
    rig.beat("m1", 1)
    rig.tick(9.0)
    assert "m1" in rig.group.members
    rig.tick(1.1)
    assert rig.group.state is GroupState.EMPTY
    assert rig.group.next_deadline() is None


def test_epochs_that_are_not_the_members_are_fenced() -> None:
    rig = Rig()
    rig.join("m1")
    rig.join("m2")
    rig.beat("m1", 1)
    kept = rig.group.members["m1"].current.assigned
    rig.beat("m1", 1, kept)
    assert rig.code_of("m1", 3) is ErrorCode.fenced_member_epoch
    # The response with epoch 2 may be lost: its predecessor counts if no more is owned.
    assert rig.code_of("m1", 1) is ErrorCode.fenced_member_epoch
    assert rig.code_of("m1", 1, on_a(0, 1, 2, 3)) is ErrorCode.fenced_member_epoch
    assert rig.beat("m1", 1, kept).epoch == 2
    assert rig.code_of("m3", 1) is ErrorCode.unknown_member_id
    # A member that was fenced comes back by epoch 0, and has its partitions again.
    assert rig.join("m1").assignment == kept


def test_a_static_member_comes_back_to_its_partitions() -> None:
    rig = Rig()
    rig.join("m1", instance_id="i1")
    rig.join("m2", instance_id="i2")
    rig.beat("m1", 1, instance_id="i1")
    kept = rig.group.members["m1"].current.assigned
    rig.beat("m1", 1, kept, instance_id="i1")
    rig.beat("m2", 2, instance_id="i2")
    epoch = rig.group.store.epoch
    with pytest.raises(KafkaError) as caught:
        rig.join("m3", instance_id="i1")
    assert caught.value.code is ErrorCode.unreleased_instance_id
    assert rig.group.leave("m1", "i1", -2).epoch == -2
    rig.group.take_records()
    back = rig.join("m3", instance_id="i1")
    assert (back.epoch, back.assignment) == (2, kept)
    assert rig.group.store.epoch == epoch, "no rebalance"
    assert "m1" not in rig.group.members
    gone = [record.key for record in rig.group.take_records() if record.value is None]
    assert {(key.kind, key.name) for key in gone} == {
        (kind, "m1") for kind in (RecordKind.MEMBER, RecordKind.TARGET, RecordKind.CURRENT)
    }
    with pytest.raises(KafkaError) as caught:
        rig.beat("m1", 2, kept, instance_id="i1")
    assert caught.value.code is ErrorCode.fenced_instance_id


def test_a_dynamic_member_may_become_a_static_one() -> None:
    rig = Rig()
    rig.join("m1")
    assert rig.join("m1", instance_id="i1").assignment == on_a(0, 1, 2, 3)
    assert rig.group.store.epoch == 1, "no rebalance"
    assert rig.beat("m1", 1, instance_id="i1").epoch == 1


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
    assert rig.join("m1").epoch == 1
    rig = Rig()
    with pytest.raises(KafkaError) as caught:
        rig.group.heartbeat(HeartbeatRequest(member_id="m", epoch=0, topics=frozenset()), 0.0, 100)
    assert caught.value.code is ErrorCode.group_max_size_reached
    assert not rig.group.members


def test_more_partitions_and_new_topics_reach_the_members() -> None:
    rig = Rig(partitions=2)
    rig.join("m1", ["a", "later"])
    rig.topics = catalog({"a": 3, "later": 1, "other": 9})
    result = rig.beat("m1", 1)
    assert result.epoch == 2
    assert result.assignment == {A: frozenset({0, 1, 2}), topic_id("later"): frozenset({0})}
    rig.topics = catalog({"a": 3, "later": 1, "other": 10})
    assert rig.beat("m1", 2).epoch == 2, "a topic of others changed"


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
    rig.group.resolved({"a.*": frozenset({"a"}), "gone": frozenset({"x"})}, rig.topics, 5, rig.now)
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
    rig.group.resolved({"a.*": frozenset({"a", "ab"})}, rig.topics, 5, rig.now)
    assert rig.group.store.epoch == 4
    rig.group.leave("m1", None, -1)
    rig.group.leave("m2", None, -1)
    assert not rig.group.store.regexes
    assert rig.group.cost == 0


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


def test_a_thousand_members_do_not_have_an_assignment_each() -> None:
    rig = Rig(partitions=2_000)
    for number in range(300):
        rig.join(f"m{number}")
        rig.tick(0.001)
    assert 1 < rig.group.store.target_epoch < 300
    targets = [r for r in rig.group.take_records() if r.key.kind is RecordKind.TARGET_EPOCH]
    assert len(targets) < 30
    deadline = rig.group.next_deadline()
    assert deadline is not None
    rig.tick(deadline - rig.now)
    assert rig.group.store.target_epoch == rig.group.store.epoch == 300


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
