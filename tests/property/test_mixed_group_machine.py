"""Members of the classic protocol beside those of KIP-848 in one group: still no partition has two
consumers, and everyone gets what it is to have.
"""

import struct
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, invariant, multiple, rule
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.consumer import classic_members
from lakehead.broker.coordinator.group.consumer_protocol import (
    by_topic_id,
    read_assignment,
    read_subscription,
)
from lakehead.broker.coordinator.group.messages import GroupState, JoinRequest, SyncRequest
from lakehead.broker.protocol.errors import KafkaError
from tests.property.test_consumer_group_machine import (
    REBALANCE_TIMEOUT_MS,
    Client,
    ConsumerGroupMachine,
    places,
)
from tests.support.repetitions import examples


@dataclass(eq=False)
class ClassicClient:
    """What one consumer of the classic protocol knows of itself. An eager one gives up all that it
    has before it joins again, a cooperative one what it is not given again.
    """

    is_eager: bool
    topics: frozenset[str]
    member_id: str = ""
    generation: int = -1
    held_in: int = -1
    """The generation in which it was given what it has."""
    has: set[tuple[bytes, int]] = field(default_factory=set)
    must_join: bool = True
    must_sync: bool = False

    def is_out(self) -> None:
        self.member_id, self.generation = "", -1
        self.has, self.must_join, self.must_sync = set(), True, False


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


class MixedGroupMachine(ConsumerGroupMachine):
    """Consumers of both protocols."""

    classics: Bundle[ClassicClient] = Bundle("classics")

    def __init__(self) -> None:
        super().__init__()
        self.old: list[ClassicClient] = []

    @rule(target=classics, is_eager=st.booleans(), topics=st.sampled_from([{"a"}, {"a", "b"}]))
    def arrive_classic(
        self, is_eager: bool, topics: set[str]
    ) -> ClassicClient | MultipleResults[ClassicClient]:
        if len(self.old) > 3:
            return multiple()
        client = ClassicClient(is_eager, frozenset(topics))
        self.old.append(client)
        return client

    @rule(client=classics, is_lost=st.sampled_from([False] * 5 + [True]))
    def join_classic(self, client: ClassicClient, is_lost: bool = False) -> None:
        if client.is_eager:
            client.has = set()
        if not self.group.members:
            return  # it would be a classic group
        self.ids += 1
        request = JoinRequest(
            member_id=client.member_id,
            instance_id=None,
            client_id="c",
            client_host="h",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            protocol_type="consumer",
            protocols=(("range", self.subscription(client)),),
            needs_known_member_id=False,
            can_skip_assignment=True,
        )
        try:
            result = classic_members.join(self.group, request, f"c{self.ids}", self.now)
        except KafkaError:  # the group is full
            client.is_out()
            return
        finally:
            self.stored()
        if not is_lost:
            client.member_id, client.generation = result.member_id, result.generation
            client.must_join, client.must_sync = False, True

    def subscription(self, client: ClassicClient) -> bytes:
        data = struct.pack(">hi", 1, len(client.topics)) + b"".join(map(text, client.topics))
        owned: dict[str, list[int]] = {}
        for topic_id, index in client.has:
            name = self.topics.name_of(topic_id)
            if name is not None:
                owned.setdefault(name, []).append(index)
        data += struct.pack(">ii", -1, len(owned))
        for name, indexes in owned.items():
            data += text(name) + struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)
        assert {name for name, _ in read_subscription(data).owned} == set(owned)
        return data

    @rule(client=classics)
    def sync_classic(self, client: ClassicClient) -> None:
        if not client.must_sync:
            return
        request = SyncRequest(
            member_id=client.member_id,
            instance_id=None,
            generation=client.generation,
            protocol_type="consumer",
            protocol_name="range",
            assignments=(),
        )
        try:
            result = classic_members.sync(self.group, request, self.now)
        except KafkaError as error:
            self.failed(client, error.code)
            return
        client.must_sync = False
        assigned = by_topic_id(read_assignment(result.assignment).partitions, self.topics)
        lost = client.has - places(assigned)
        client.has, client.held_in = places(assigned), client.generation
        client.must_join = bool(lost)

    def failed(self, client: ClassicClient, code: ErrorCode) -> None:
        if code is ErrorCode.rebalance_in_progress:
            client.must_join, client.must_sync = True, False
        elif code is ErrorCode.illegal_generation:
            client.has, client.must_join, client.must_sync = set(), True, False
        else:
            assert code is ErrorCode.unknown_member_id
            client.is_out()

    @rule(client=classics)
    def heartbeat_classic(self, client: ClassicClient) -> None:
        if not client.member_id or client.must_sync:
            return
        try:
            code = classic_members.heartbeat(
                self.group, client.member_id, None, client.generation, self.now
            )
        except KafkaError as error:
            code = error.code
        if code is not ErrorCode.none:
            self.failed(client, code)

    @rule(client=classics)
    def leave_classic(self, client: ClassicClient) -> None:
        client.has = set()
        codes = classic_members.leave(self.group, [(client.member_id, None)])
        self.stored()
        if codes == [ErrorCode.none]:
            assert client.member_id not in self.group.members
        client.is_out()

    @rule(chosen=st.lists(classics, max_size=3))
    def follow(self, chosen: list[ClassicClient]) -> None:
        """Some do what a client does: join when it is told, then sync."""
        for client in chosen:
            self.heartbeat_classic(client)
            if client.must_join:
                self.join_classic(client)
            self.sync_classic(client)

    @invariant()
    def a_partition_has_one_consumer_of_both_protocols(self) -> None:
        consumers: dict[tuple[bytes, int], str] = {}
        everyone: list[Client | ClassicClient] = [*self.everyone, *self.old]
        for client in everyone:
            member = self.group.members.get(client.member_id)
            epoch = client.held_in if isinstance(client, ClassicClient) else client.epoch
            if member is None or epoch not in {
                member.current.epoch,
                member.current.previous_epoch,
            }:
                continue
            for place in client.has:
                assert place not in consumers, f"{place}: {consumers[place]}, {client.member_id}"
                consumers[place] = client.member_id

    def teardown(self) -> None:
        """Whoever is left gets its target, and nothing is left over."""
        for _ in range(14):
            for client in self.everyone:
                self.heartbeat(client)
            self.follow(self.old)
            self.now += 1.0
            self.group.tick(self.now)
            self.stored()
        live: list[Client | ClassicClient] = [one for one in self.everyone if one.is_in]
        live += (one for one in self.old if one.member_id in self.group.members)
        known = {client.member_id for client in live}
        assert known == set(self.group.members)
        if not known:
            return
        assert self.group.state.value == GroupState.STABLE.value
        consumed = [place for client in live for place in client.has]
        assert len(consumed) == len(set(consumed))
        wanted = frozenset[str]().union(*(client.topics for client in live))
        assert len(consumed) == sum(t.partition_count for t in self.topics.found(wanted))


TestMixedGroupMachine = MixedGroupMachine.TestCase
TestMixedGroupMachine.settings = settings(
    max_examples=examples(150), stateful_step_count=40, deadline=None, derandomize=True
)
