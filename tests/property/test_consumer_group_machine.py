"""Random consumers against the state machine of KIP-848: no partition has two consumers.

Clients behave as real ones: they stop to consume before they say that they gave a partition back,
and what they hear may be lost. The coordinator fails over at any time, with all that is durable.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
)
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.consumer.consumer_group import (
    ConsumerGroup,
    ConsumerGroupSettings,
    HeartbeatRequest,
    HeartbeatResult,
)
from lakehead.broker.coordinator.group.consumer.consumer_members import TopicPartitions
from lakehead.broker.coordinator.group.consumer.consumer_record_formats import (
    ConsumerGroupKey,
    ConsumerGroupRecord,
    ConsumerGroupValue,
    decode_consumer_value,
    encode_consumer_value,
)
from lakehead.broker.coordinator.group.messages import GroupState
from lakehead.broker.coordinator.group.topic_catalog import TopicCatalog
from lakehead.broker.protocol.errors import KafkaError
from tests.support.repetitions import examples
from tests.support.topic_catalogs import catalog

SUBSCRIPTIONS: tuple[set[str], ...] = ({"a"}, {"a"}, {"a", "b"}, {"b"}, {"b", "absent"}, set())
LIMITS = ConsumerGroupSettings(session_timeout_ms=10_000, max_size=5)
REBALANCE_TIMEOUT_MS = 6_000


@dataclass(eq=False)
class Client:
    """What one consumer knows of itself. `has` is what it consumes, `told` what it is to."""

    instance_id: str | None
    topics: frozenset[str]
    assignor: str | None
    member_id: str = ""
    epoch: int = 0
    has: set[tuple[bytes, int]] = field(default_factory=set)
    told: set[tuple[bytes, int]] = field(default_factory=set)
    is_in: bool = False
    has_left_for_a_while: bool = False
    must_say_all: bool = True

    def hear(self, result: HeartbeatResult) -> None:
        self.epoch = result.epoch
        self.is_in = True
        if result.assignment is not None:
            self.told = places(result.assignment)

    def adopt(self) -> None:
        """Stop to consume what is taken away, then consume what is given."""
        self.has &= self.told
        self.has |= self.told

    def is_fenced(self) -> None:
        """Give everything up, to join again."""
        self.has, self.told = set(), set()
        self.epoch, self.is_in, self.must_say_all = 0, False, True


def places(partitions: TopicPartitions) -> set[tuple[bytes, int]]:
    return {(topic_id, index) for topic_id, indexes in partitions.items() for index in indexes}


def by_topic(pairs: set[tuple[bytes, int]]) -> TopicPartitions:
    topics = {topic_id for topic_id, _ in pairs}
    return {topic: frozenset(i for t, i in pairs if t == topic) for topic in topics}


class ConsumerGroupMachine(RuleBasedStateMachine):
    """Consumers come, go, fall silent and change their subscriptions; topics grow and vanish."""

    clients: Bundle[Client] = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.ids = 0
        self.topics: TopicCatalog = catalog({"a": 3, "b": 2})
        self.log: dict[ConsumerGroupKey, ConsumerGroupValue] = {}
        self.everyone: list[Client] = []
        self.epoch = 0
        self.group = self.made()

    def made(self) -> ConsumerGroup:
        return ConsumerGroup("g", lambda: LIMITS, lambda: self.topics)

    def stored(self) -> None:
        """Have the records of an event durable, as bytes."""
        for key, value in self.group.take_records():
            if value is None:
                self.log.pop(key, None)
                continue
            known = decode_consumer_value(key.kind, encode_consumer_value(value))
            assert known == value
            self.log[key] = known

    @rule(
        target=clients,
        instance_id=st.sampled_from([None, None, None, "i1", "i2"]),
        topics=st.sampled_from(SUBSCRIPTIONS),
        assignor=st.sampled_from([None, None, "uniform", "range"]),
    )
    def arrive(
        self, instance_id: str | None, topics: set[str], assignor: str | None
    ) -> Client | MultipleResults[Client]:
        if len(self.everyone) > 8:
            return multiple()
        client = Client(instance_id, frozenset(topics), assignor)
        self.everyone.append(client)
        self.new_id(client)
        return client

    def new_id(self, client: Client) -> None:
        self.ids += 1
        client.member_id = f"m{self.ids}"

    @rule(
        client=clients,
        is_lost=st.sampled_from([False] * 5 + [True]),
        adopts=st.sampled_from([True, True, True, False]),
    )
    def heartbeat(self, client: Client, is_lost: bool = False, adopts: bool = True) -> None:
        if client.has_left_for_a_while:
            self.new_id(client)
            client.is_fenced()
        request = HeartbeatRequest(
            member_id=client.member_id,
            epoch=client.epoch,
            instance_id=client.instance_id,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if client.must_say_all else -1,
            topics=client.topics if client.must_say_all else None,
            assignor=client.assignor if client.must_say_all else None,
            owned=by_topic(client.has),
        )
        try:
            result = self.group.heartbeat(request, self.now)
        except KafkaError as error:
            self.stored()
            self.refused(client, error.code)
            return
        self.stored()
        client.has_left_for_a_while = False
        if is_lost:
            client.must_say_all = True
            return
        client.must_say_all = False
        client.hear(result)
        if adopts:
            client.adopt()

    def refused(self, client: Client, code: ErrorCode) -> None:
        # A member that was fenced finds a full group first, as with Kafka.
        if code in {
            ErrorCode.unknown_member_id,
            ErrorCode.fenced_member_epoch,
            ErrorCode.group_max_size_reached,
        }:
            client.is_fenced()
        elif code is ErrorCode.fenced_instance_id:
            client.is_fenced()
            self.new_id(client)
        else:
            assert code is ErrorCode.unreleased_instance_id
            assert not client.is_in

    @rule(client=clients)
    def adopt(self, client: Client) -> None:
        client.adopt()

    @rule(client=clients, topics=st.sampled_from(SUBSCRIPTIONS))
    def subscribe(self, client: Client, topics: set[str]) -> None:
        client.topics = frozenset(topics)
        client.must_say_all = True

    @rule(client=clients, is_for_a_while=st.booleans())
    def leave(self, client: Client, is_for_a_while: bool) -> None:
        epoch = -2 if is_for_a_while and client.instance_id else -1
        client.has, client.told = set(), set()  # a consumer stops before it leaves
        try:
            self.group.leave(client.member_id, client.instance_id, epoch)
        except KafkaError:
            return
        finally:
            self.stored()
        client.is_fenced()
        client.has_left_for_a_while = epoch == -2
        if epoch == -1:
            assert client.member_id not in self.group.members

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.0, 5.0, 6.1, 10.1]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.group.tick(self.now)
        self.stored()

    @rule(partitions=st.sampled_from([{"a": 3, "b": 2}, {"a": 5, "b": 2}, {"b": 4}, {"a": 1}]))
    def change_topics(self, partitions: dict[str, int]) -> None:
        self.topics = catalog(partitions, version=self.topics.version + 1)

    @rule()
    def fail_over(self) -> None:
        """Another node reads the log, and has the state that this one had."""
        before = self.group
        self.group = self.made()
        records = [ConsumerGroupRecord(key, value) for key, value in self.log.items()]
        self.group.restore(reversed(records), self.now)
        assert not self.group.take_records()
        assert self.group.cost == before.cost
        assert self.group.store.epoch == before.store.epoch
        assert self.group.store.target_epoch == before.store.target_epoch
        assert set(self.group.members) == set(before.members)
        for member_id, member in self.group.members.items():
            old = before.members[member_id]
            assert (member.metadata, member.current, member.target) == (
                old.metadata,
                old.current,
                old.target,
            )

    @invariant()
    def a_partition_has_one_owner(self) -> None:
        owners: dict[tuple[bytes, int], str] = {}
        for member in self.group.members.values():
            current = member.current
            for place in places(current.assigned) | places(current.revoking):
                assert place not in owners
                owners[place] = member.member_id
                assert self.group.store.owner(*place) == member.member_id

    @invariant()
    def a_partition_has_one_consumer(self) -> None:
        """Of those that the group knows under an epoch that they may still have."""
        consumers: dict[tuple[bytes, int], str] = {}
        for client in self.everyone:
            member = self.group.members.get(client.member_id)
            if member is None or not client.is_in:
                continue
            if client.epoch not in {member.current.epoch, member.current.previous_epoch}:
                continue
            for place in client.has:
                assert place not in consumers, f"{place}: {consumers[place]}, {client.member_id}"
                consumers[place] = client.member_id

    @invariant()
    def targets_are_apart_and_epochs_grow(self) -> None:
        store = self.group.store
        assert store.epoch >= max(self.epoch, store.target_epoch)
        self.epoch = store.epoch
        seen: set[tuple[bytes, int]] = set()
        for member in self.group.members.values():
            assert member.current.epoch <= store.target_epoch
            assert not seen & places(member.target)
            seen |= places(member.target)

    @invariant()
    def a_member_has_a_deadline(self) -> None:
        if self.group.members:
            assert self.group.next_deadline() is not None

    def teardown(self) -> None:
        """Whoever is left gets its target in a few heartbeats, and nothing is left over."""
        for _ in range(8):
            for client in self.everyone:
                self.heartbeat(client)
            self.now += 2.0
            self.group.tick(self.now)
            self.stored()
        live = [client for client in self.everyone if client.is_in]
        assert {client.member_id for client in live} == set(self.group.members)
        if not live:
            return
        assert self.group.state.value == GroupState.STABLE.value
        consumed = [place for client in live for place in client.has]
        assert len(consumed) == len(set(consumed))
        wanted = set().union(*(client.topics for client in live))
        expected = sum(topic.partition_count for topic in self.topics.found(wanted))
        assert len(consumed) == expected
        for client in self.everyone:
            if client.is_in:
                self.leave(client, False)
        assert not self.group.members
        assert self.group.cost == 0


TestConsumerGroupMachine = ConsumerGroupMachine.TestCase
TestConsumerGroupMachine.settings = settings(
    max_examples=examples(150), stateful_step_count=40, deadline=None, derandomize=True
)
