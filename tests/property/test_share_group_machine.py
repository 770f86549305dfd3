"""The machine of share groups with members that join, leave, miss responses and fall silent, while
topics change, states are made late and coordinators fail over: epochs only grow, a member has only
what has a state, and in the end each partition has a member.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lakehead.broker.coordinator.group.messages import GroupState
from lakehead.broker.coordinator.group.share.share_group import (
    ShareGroup,
    ShareGroupSettings,
    ShareHeartbeat,
)
from lakehead.broker.coordinator.group.share.share_record_formats import (
    ShareGroupKey,
    ShareGroupRecord,
    ShareGroupValue,
    decode_share_value,
    encode_share_value,
)
from lakehead.broker.protocol.errors import KafkaError
from tests.support.repetitions import examples
from tests.support.topic_catalogs import catalog

NAMES = ("a", "b", "c", "d")
TOPICS = ("t", "u", "v")
members = st.sampled_from(NAMES)
subscriptions = st.frozensets(st.sampled_from(TOPICS), min_size=1)
rarely = st.integers(0, 4).map(lambda number: number == 0)


class ShareGroups(RuleBasedStateMachine):
    """Four members and three topics."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = dict.fromkeys(TOPICS, 2)
        self.grown: dict[str, int] = {}
        """The largest number of partitions that topics had."""
        self.catalog = catalog(self.counts)
        self.now = 0.0
        self.group = self.fresh()
        self.log: dict[ShareGroupKey, ShareGroupValue] = {}
        self.epochs: dict[str, int] = {}
        """What members know of their epochs."""
        self.seen = (0, 0)

    def fresh(self) -> ShareGroup:
        return ShareGroup("g", lambda: ShareGroupSettings(max_size=3), lambda: self.catalog)

    def heartbeat(
        self, member_id: str, epoch: int, topics: frozenset[str] | None, *, is_heard: bool
    ) -> None:
        request = ShareHeartbeat(member_id=member_id, epoch=epoch, topics=topics)
        try:
            response = self.group.heartbeat(request, self.now)
        except KafkaError:
            self.epochs.pop(member_id, None)
            return
        assert response.epoch == self.group.target_epoch
        if is_heard:
            self.epochs[member_id] = response.epoch

    @rule(member_id=members, topics=subscriptions, is_heard=st.booleans())
    def join(self, member_id: str, topics: frozenset[str], is_heard: bool) -> None:
        self.heartbeat(member_id, 0, topics, is_heard=is_heard)

    @rule(member_id=members, topics=st.none() | subscriptions, is_heard=st.booleans())
    def stay(self, member_id: str, topics: frozenset[str] | None, is_heard: bool) -> None:
        if member_id in self.epochs:
            self.heartbeat(member_id, self.epochs[member_id], topics, is_heard=is_heard)

    @rule(member_id=members)
    def leave(self, member_id: str) -> None:
        is_member = member_id in self.group.members
        try:
            self.group.leave(member_id, -1)
        except KafkaError:
            assert not is_member
        assert member_id not in self.group.members
        self.epochs.pop(member_id, None)

    @rule(seconds=st.integers(1, 50))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        late = {one.member_id for one in self.group.members.values()} - {
            one.member_id for one in self.group.members.values() if one.session_deadline > self.now
        }
        self.group.tick(self.now)
        assert not late & self.group.members.keys()

    @rule(name=st.sampled_from(TOPICS), is_deleted=rarely)
    def topics_change(self, name: str, is_deleted: bool) -> None:
        if is_deleted:
            self.grown[name] = max(self.grown.get(name, 1), self.counts.pop(name, 1))
        else:
            # Its id is that of its name here, and partitions of one id are never fewer.
            self.grown[name] = self.grown.get(name, self.counts.get(name, 1)) + 1
            self.counts[name] = self.grown[name]
        self.catalog = catalog(self.counts)

    @rule(part=st.integers(0, 3))
    def states_are_made(self, part: int) -> None:
        """Some are, and some fail."""
        missing = self.group.to_initialize()
        self.group.initialized(
            {
                topic_id: frozenset(index for index in indexes if (index + part) % 3)
                for topic_id, indexes in missing.items()
            }
        )

    @rule()
    def coordinator_fails_over(self) -> None:
        self.store()
        before, self.group = self.group, self.fresh()
        records = [
            ShareGroupRecord(key, decode_share_value(key.kind, encode_share_value(value)))
            for key, value in self.log.items()
        ]
        self.group.restore(records, self.now)
        assert set(self.group.keys) == set(before.keys) == self.log.keys()
        for name in ("epoch", "target_epoch", "partitions", "state"):
            assert getattr(self.group, name) == getattr(before, name), name
        for member_id, member in before.members.items():
            found = self.group.members[member_id]
            assert (found.metadata, found.current, found.target) == (
                member.metadata,
                member.current,
                member.target,
            )

    def store(self) -> None:
        for key, value in self.group.take_records():
            if value is None:
                self.log.pop(key, None)
            else:
                self.log[key] = value

    @invariant()
    def epochs_only_grow(self) -> None:
        now = self.group.epoch, self.group.target_epoch
        assert now[0] >= self.seen[0]
        assert now[1] >= self.seen[1]
        assert now[1] <= now[0]
        for member in self.group.members.values():
            assert member.current.epoch <= now[1]
        self.seen = now

    @invariant()
    def members_have_only_partitions_with_a_state(self) -> None:
        made = self.group.partitions.initialized
        for member in self.group.members.values():
            for topic_id, indexes in member.target.items():
                assert topic_id in made or self.catalog.name_of(topic_id) is None
                if topic_id in made:
                    assert indexes <= made[topic_id].indexes

    def teardown(self) -> None:
        """Whatever happened, heartbeats lead to an assignment in which no partition is missing."""
        for _ in range(3):
            self.now += 2  # longer than the interval between assignments
            self.group.initialized(self.group.to_initialize())
            for member_id in list(self.group.members):
                self.heartbeat(member_id, 0, None, is_heard=True)
        if not self.group.members:
            assert self.group.state is GroupState.EMPTY
            return
        names = frozenset().union(*(one.metadata.topics for one in self.group.members.values()))
        wanted = {
            (topic.topic_id, index)
            for topic in self.catalog.found(names)
            for index in range(topic.partition_count)
        }
        taken = {
            (topic_id, index)
            for member in self.group.members.values()
            for topic_id, indexes in member.current.assigned.items()
            for index in indexes
        }
        assert taken == wanted


ShareGroups.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None
)
TestShareGroups = ShareGroups.TestCase
