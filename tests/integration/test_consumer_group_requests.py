"""What a broker says to each request of a consumer group (KIP-848), right and wrong ones, over the
wire. `BROKER=kafka` runs it on Kafka.
"""

import asyncio
import itertools
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kio.schema.errors import ErrorCode

from bench.process import ServerProcess
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity
from tests.support.broker_process import HASTY, server_under_test
from tests.support.node_client import Client, close_clients

NONE = ErrorCode.none
FENCED, STALE = ErrorCode.fenced_member_epoch, ErrorCode.stale_member_epoch
UNKNOWN, INVALID = ErrorCode.unknown_member_id, ErrorCode.invalid_request
PARTITIONS = 4
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    limits = {
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": "30000",
        "group.consumer.assignment.interval.ms": "0",
        "group.initial.rebalance.delay.ms": "0",
    }
    with server_under_test(
        tmp_path_factory.mktemp("groups"), *HASTY[:2], settings=limits
    ) as running:
        yield running


_names = (f"g{number}" for number in itertools.count())


class WireGroup:
    """Requests about one group, and about the topic of the same name."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self.topic_id: UUID | None = None

    async def ask(self, key: int, version: int, build: Callable[[Any], Any]) -> Any:
        return await self.client.ask(key, version, build(schema(key, version).request_module))

    async def heartbeat(
        self, member_id: str, epoch: int, *, version: int = 1, **fields: Any
    ) -> Any:
        owned = fields.pop("owned", None)

        def build(module: Any) -> Any:
            topics = None
            if owned is not None:
                topics = tuple(
                    entity(module, "TopicPartitions", topic_id=topic_id, partitions=tuple(indexes))
                    for topic_id, indexes in owned.items()
                )
            known = {"rebalance_timeout": -1, "topic_partitions": topics, **fields}
            return entity(
                module,
                "ConsumerGroupHeartbeatRequest",
                group_id=known.pop("group_id", self.name),
                member_id=member_id,
                member_epoch=epoch,
                **known,
            )

        return await self.ask(68, version, build)

    async def join(self, member_id: str, **fields: Any) -> Any:
        known = {
            "rebalance_timeout": 5000,
            "subscribed_topic_names": (self.name,),
            "owned": {},
            **fields,
        }
        return await self.heartbeat(member_id, known.pop("epoch", 0), **known)

    def indexes(self, response: Any) -> list[int] | None:
        """The partitions in a response, None where it has no assignment."""
        if response.assignment is None:
            return None
        return [i for t in response.assignment.topic_partitions for i in sorted(t.partitions)]

    async def commit(
        self, member_id: str, epoch: int, *, version: int = 9, topic: str = ""
    ) -> ErrorCode:
        def build(module: Any) -> Any:
            partition = entity(
                module,
                "OffsetCommitRequestPartition",
                partition_index=0,
                committed_offset=5,
                committed_metadata="",
            )
            committed = entity(
                module,
                "OffsetCommitRequestTopic",
                name=topic or self.name,
                topic_id=self.topic_id,
                partitions=(partition,),
            )
            return entity(
                module,
                "OffsetCommitRequest",
                group_id=self.name,
                generation_id_or_member_epoch=epoch,
                member_id=member_id,
                topics=(committed,),
            )

        response = await self.ask(8, version, build)
        code: ErrorCode = response.topics[0].partitions[0].error_code
        return code

    async def delete_offset(self) -> ErrorCode:
        def build(module: Any) -> Any:
            partition = entity(module, "OffsetDeleteRequestPartition", partition_index=0)
            topic = entity(
                module, "OffsetDeleteRequestTopic", name=self.name, partitions=(partition,)
            )
            return entity(module, "OffsetDeleteRequest", group_id=self.name, topics=(topic,))

        response = await self.ask(47, 0, build)
        assert response.error_code is NONE
        code: ErrorCode = response.topics[0].partitions[0].error_code
        return code

    async def fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        def build(module: Any) -> Any:
            group = entity(
                module,
                "OffsetFetchRequestGroup",
                group_id=self.name,
                member_id=member_id,
                member_epoch=epoch,
                topics=None,
            )
            return entity(module, "OffsetFetchRequest", groups=(group,), require_stable=False)

        response = await self.ask(9, 9, build)
        code: ErrorCode = response.groups[0].error_code
        return code

    async def classic_join(self, member_id: str = "", *, topic: str = "", **fields: Any) -> Any:
        def build(module: Any) -> Any:
            protocol = entity(
                module,
                "JoinGroupRequestProtocol",
                name="range",
                metadata=fields.pop("metadata", subscription(topic or self.name)),
            )
            known = {"group_instance_id": None, "reason": None, **fields}
            return entity(
                module,
                "JoinGroupRequest",
                group_id=self.name,
                session_timeout=30_000,
                rebalance_timeout=5_000,
                member_id=member_id,
                protocol_type=known.pop("protocol_type", "consumer"),
                protocols=(protocol,),
                **known,
            )

        return await self.ask(11, 9, build)

    async def sync(
        self, member_id: str, generation: int, assignments: dict[str, bytes] | None = None
    ) -> Any:
        def build(module: Any) -> Any:
            given = tuple(
                entity(module, "SyncGroupRequestAssignment", member_id=name, assignment=one)
                for name, one in (assignments or {}).items()
            )
            return entity(
                module,
                "SyncGroupRequest",
                group_id=self.name,
                generation_id=generation,
                member_id=member_id,
                group_instance_id=None,
                protocol_type="consumer",
                protocol_name="range",
                assignments=given,
            )

        return await self.ask(14, 5, build)

    async def classic_heartbeat(self, member_id: str, generation: int) -> ErrorCode:
        def build(module: Any) -> Any:
            return entity(
                module,
                "HeartbeatRequest",
                group_id=self.name,
                generation_id=generation,
                member_id=member_id,
                group_instance_id=None,
            )

        response = await self.ask(12, 4, build)
        code: ErrorCode = response.error_code
        return code

    async def classic_leave(self, member_id: str) -> ErrorCode:
        def build(module: Any) -> Any:
            member = entity(
                module, "MemberIdentity", member_id=member_id, group_instance_id=None, reason=None
            )
            return entity(module, "LeaveGroupRequest", group_id=self.name, members=(member,))

        response = await self.ask(13, 5, build)
        code: ErrorCode = response.members[0].error_code
        return code

    async def described(self) -> Any:
        def build(module: Any) -> Any:
            return entity(
                module,
                "ConsumerGroupDescribeRequest",
                group_ids=(self.name,),
                include_authorized_operations=False,
            )

        return (await self.ask(69, 1, build)).groups[0]

    async def described_as_classic(self, version: int) -> Any:
        def build(module: Any) -> Any:
            return entity(
                module,
                "DescribeGroupsRequest",
                groups=(self.name,),
                include_authorized_operations=False,
            )

        return (await self.ask(15, version, build)).groups[0]

    async def listed(self, **filters: tuple[str, ...]) -> tuple[str, str, str] | None:
        def build(module: Any) -> Any:
            known = {"states_filter": (), "types_filter": (), **filters}
            return entity(module, "ListGroupsRequest", **known)

        response = await self.ask(16, 5, build)
        found = [group for group in response.groups if group.group_id == self.name]
        if not found:
            return None
        return found[0].group_type, found[0].group_state, found[0].protocol_type

    async def delete(self) -> ErrorCode:
        def build(module: Any) -> Any:
            return entity(module, "DeleteGroupsRequest", groups_names=(self.name,))

        code: ErrorCode = (await self.ask(42, 2, build)).results[0].error_code
        return code


def subscription(topic: str, version: int = 0) -> bytes:
    name = topic.encode()
    return struct.pack(f">hih{len(name)}si", version, 1, len(name), name, -1)


def assignment(topic: str, *indexes: int) -> bytes:
    name = topic.encode()
    head = struct.pack(f">hih{len(name)}s", 0, 1, len(name), name)
    return head + struct.pack(f">i{len(indexes)}ii", len(indexes), *indexes, -1)


@pytest.fixture
async def group(server: ServerProcess) -> AsyncIterator[WireGroup]:
    """A new group, and a topic of its name that is known to its coordinator."""
    name = next(_names)
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS)])[name].result(20)
    made = WireGroup(await Client.connect_to(server.port), name)

    def find(module: Any) -> Any:
        return entity(module, "FindCoordinatorRequest", key_type=0, coordinator_keys=(name,))

    def metadata(module: Any) -> Any:
        topic = entity(module, "MetadataRequestTopic", topic_id=None, name=name)
        return entity(
            module,
            "MetadataRequest",
            topics=(topic,),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )

    probe = WireGroup(made.client, f"{name}-probe")
    async with asyncio.timeout(DEADLINE_S):
        while True:  # the coordinators are there, and know the topic
            await made.ask(10, 6, find)
            known = await probe.join("m", subscribed_topic_names=(name,))
            answer = await made.heartbeat("m", 1)
            if answer.error_code is ErrorCode.group_id_not_found and probe.indexes(known):
                break
            await asyncio.sleep(0.05)
    made.topic_id = (await made.ask(3, 13, metadata)).topics[0].topic_id
    yield made
    await close_clients()


async def test_fields_that_contradict_each_other(group: WireGroup) -> None:
    async def said(response: Any) -> tuple[ErrorCode, str | None]:
        return response.error_code, response.error_message

    assert await said(await group.join("")) == (INVALID, "MemberId can't be empty.")
    assert await said(await group.heartbeat("", 1, version=0)) == (
        INVALID,
        "MemberId can't be empty.",
    )
    assert await said(await group.join("m", group_id="")) == (INVALID, "GroupId can't be empty.")
    assert await said(await group.join("m", instance_id=" ")) == (
        INVALID,
        "InstanceId can't be empty.",
    )
    assert await said(await group.join("m", rack_id="")) == (INVALID, "RackId can't be empty.")
    assert await said(await group.join("m", rebalance_timeout=-1)) == (
        INVALID,
        "RebalanceTimeoutMs must be provided in first request.",
    )
    assert await said(await group.join("m", owned=None)) == (
        INVALID,
        "TopicPartitions must be empty when (re-)joining.",
    )
    assert await said(await group.join("m", subscribed_topic_names=None)) == (
        INVALID,
        "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
    )
    assert await said(await group.heartbeat("m", -2)) == (INVALID, "InstanceId can't be null.")
    assert await said(await group.heartbeat("m", -3)) == (INVALID, "MemberEpoch is invalid.")
    code, message = await said(await group.join("m", server_assignor="none"))
    assert code is ErrorCode.unsupported_assignor
    assert message == "ServerAssignor none is not supported. Supported assignors: uniform, range."
    code, message = await said(await group.heartbeat("m", 1))
    assert code is ErrorCode.group_id_not_found
    assert message == f"Consumer group {group.name} not found."
    assert (await group.heartbeat("m", -1)).error_code is ErrorCode.group_id_not_found
    assert await group.listed() is None


async def test_revocation_before_assignment(group: WireGroup) -> None:
    one = await group.join("m1")
    assert (one.error_code, one.member_id, one.member_epoch) == (NONE, "m1", 2)
    assert group.indexes(one) == [0, 1, 2, 3]
    assert one.heartbeat_interval.total_seconds() == 5.0
    assert group.indexes(await group.heartbeat("m1", 2)) is None
    two = await group.join("m2")
    assert (two.member_epoch, group.indexes(two)) == (3, [])
    one = await group.heartbeat("m1", 2)
    kept = group.indexes(one)
    assert one.member_epoch == 2
    assert kept is not None
    assert len(kept) == 2
    assert (await group.described()).group_state == "Reconciling"
    assert group.indexes(await group.heartbeat("m2", 3)) is None
    every = {group.topic_id: [0, 1, 2, 3]}
    assert (await group.heartbeat("m1", 2, owned=every)).member_epoch == 2
    mine = {group.topic_id: kept}
    one = await group.heartbeat("m1", 2, owned=mine)
    assert (one.member_epoch, group.indexes(one)) == (3, None)
    two = await group.heartbeat("m2", 3)
    assert group.indexes(two) == sorted({0, 1, 2, 3} - set(kept))
    # A response that was lost is asked for again; older epochs and later ones are fenced.
    assert (await group.heartbeat("m1", 2, owned=mine)).member_epoch == 3
    assert (await group.heartbeat("m1", 2, owned=every)).error_code is FENCED
    assert (await group.heartbeat("m1", 2)).error_code is FENCED
    assert (await group.heartbeat("m1", 4)).error_code is FENCED
    assert (await group.heartbeat("m3", 2)).error_code is UNKNOWN
    full = await group.join("m1", epoch=3, owned=mine)
    assert group.indexes(full) == kept
    assert (await group.join("m1")).member_epoch == 3
    described = await group.described()
    assert (described.group_state, described.group_epoch, described.assignment_epoch) == (
        "Stable",
        3,
        3,
    )
    assert described.assignor_name == "uniform"
    assert sorted(member.member_id for member in described.members) == ["m1", "m2"]
    member = next(one for one in described.members if one.member_id == "m1")
    assert member.subscribed_topic_names == (group.name,)
    assert member.subscribed_topic_regex in {"", None}
    assert (member.member_epoch, member.member_type) == (3, 1)
    assert member.client_host.startswith("/")
    topic = member.assignment.topic_partitions[0]
    assert (topic.topic_id, topic.topic_name) == (group.topic_id, group.name)
    assert sorted(topic.partitions) == kept
    gone = await group.heartbeat("m2", -1)
    assert (gone.error_code, gone.member_id, gone.member_epoch) == (NONE, "m2", -1)
    assert group.indexes(await group.heartbeat("m1", 3)) == [0, 1, 2, 3]


async def test_a_static_member_leaves_for_a_while(group: WireGroup) -> None:
    assert (await group.join("m1", instance_id="i")).member_epoch == 2
    assert (await group.join("m2", instance_id="i")).error_code is (
        ErrorCode.unreleased_instance_id
    )
    assert (await group.heartbeat("m2", 2, instance_id="i")).error_code is (
        ErrorCode.fenced_instance_id
    )
    assert (await group.heartbeat("m2", 2, instance_id="j")).error_code is UNKNOWN
    assert (await group.heartbeat("m2", -2, instance_id="i")).error_code is (
        ErrorCode.fenced_instance_id
    )
    gone = await group.heartbeat("m1", -2, instance_id="i")
    assert (gone.error_code, gone.member_epoch) == (NONE, -2)
    assert (await group.heartbeat("m1", 2, instance_id="i")).error_code is FENCED
    back = await group.join("m2", instance_id="i")
    assert (back.error_code, back.member_epoch) == (NONE, 2)
    assert group.indexes(back) == [0, 1, 2, 3]
    assert (await group.described()).group_epoch == 2
    assert (await group.heartbeat("m1", -1, instance_id="i")).error_code is (
        ErrorCode.fenced_instance_id
    )
    assert (await group.heartbeat("m2", -1, instance_id="i")).error_code is NONE
    assert (await group.described()).group_state == "Empty"


async def test_offsets_by_member_epochs(group: WireGroup) -> None:
    await group.join("m1")
    assert await group.commit("m1", 2) is NONE
    assert await group.commit("m1", 2, version=10) is NONE
    assert await group.commit("m1", 2, version=8) is ErrorCode.unsupported_version
    assert await group.commit("m1", 1) is STALE
    assert await group.commit("m1", 3) is STALE
    assert await group.commit("m2", 2) is UNKNOWN
    assert await group.commit("", -1) is UNKNOWN
    assert await group.fetch("m1", 2) is NONE
    assert await group.fetch(None, -1) is NONE
    assert await group.fetch("m1", 3) is STALE
    assert await group.fetch("m2", 2) is UNKNOWN
    assert await group.delete_offset() is ErrorCode.group_subscribed_to_topic
    await group.heartbeat("m1", -1)
    assert await group.commit("", -1) is NONE
    assert await group.commit("m1", 2) is UNKNOWN
    assert await group.delete_offset() is NONE


async def test_consumer_groups_for_administrators(group: WireGroup) -> None:
    absent = await group.described()
    assert absent.error_code is ErrorCode.group_id_not_found
    assert absent.error_message == f"Group {group.name} not found."
    await group.join("m1")
    assert await group.listed() == ("consumer", "Stable", "consumer")
    assert await group.listed(types_filter=("Consumer",)) is not None
    assert await group.listed(types_filter=("classic",)) is None
    assert await group.listed(states_filter=("stable",)) is not None
    assert await group.listed(states_filter=("empty",)) is None
    assert (await group.described_as_classic(5)).group_state == "Dead"
    newest = await group.described_as_classic(6)
    assert newest.error_code is ErrorCode.group_id_not_found
    assert newest.error_message == f"Group {group.name} is not a classic group."
    assert await group.delete() is ErrorCode.non_empty_group
    await group.heartbeat("m1", -1)
    assert await group.listed() == ("consumer", "Empty", "consumer")
    assert await group.delete() is NONE
    assert await group.listed() is None


async def test_an_empty_group_changes_its_protocol(group: WireGroup) -> None:
    await group.join("m1")
    await group.heartbeat("m1", -1)
    first = await group.classic_join()
    assert first.error_code is ErrorCode.member_id_required
    joined = await group.classic_join(first.member_id)
    assert (joined.error_code, joined.leader) == (NONE, joined.member_id)
    assert (await group.described()).error_message == (
        f"Group {group.name} is not a consumer group."
    )
    assert (await group.heartbeat("m1", 2)).error_code is ErrorCode.group_id_not_found
    assert await group.classic_leave(joined.member_id) is NONE
    assert (await group.join("m1")).member_epoch == 2
    assert await group.listed() == ("consumer", "Stable", "consumer")


async def test_a_classic_group_is_upgraded_and_downgraded(group: WireGroup) -> None:
    first = await group.classic_join()
    old = await group.classic_join(first.member_id)
    whole = assignment(group.name, 0, 1, 2, 3)
    synced = await group.sync(old.member_id, old.generation_id, {old.member_id: whole})
    assert synced.assignment == whole
    new = await group.join("m1")
    assert (new.error_code, new.member_epoch) == (NONE, old.generation_id + 1)
    assert group.indexes(new) == []
    assert await group.listed() == ("consumer", "Reconciling", "consumer")
    described = {member.member_id: member for member in (await group.described()).members}
    assert described[old.member_id].member_type == 0
    assert described[old.member_id].member_epoch == old.generation_id
    # The classic member has to join again, which gives its partitions back (it is eager).
    assert await group.commit(old.member_id, old.generation_id, version=8) is NONE
    assert await group.classic_heartbeat(old.member_id, old.generation_id) is (
        ErrorCode.rebalance_in_progress
    )
    again = await group.classic_join(old.member_id)
    assert (again.error_code, again.leader, again.members) == (NONE, "", ())
    assert again.generation_id == old.generation_id + 1
    assert (again.protocol_type, again.protocol_name) == ("consumer", "range")
    synced = await group.sync(old.member_id, again.generation_id)
    assert synced.error_code is NONE
    new = await group.heartbeat("m1", new.member_epoch)
    kept = group.indexes(new)
    assert kept is not None
    rest = sorted({0, 1, 2, 3} - set(kept))
    assert synced.assignment == assignment(group.name, *rest)
    assert await group.classic_heartbeat(old.member_id, again.generation_id) is NONE
    assert await group.classic_heartbeat(old.member_id, old.generation_id) is (
        ErrorCode.illegal_generation
    )
    assert await group.commit(old.member_id, again.generation_id + 1, version=8) is (
        ErrorCode.illegal_generation
    )
    assert await group.classic_heartbeat("m1", new.member_epoch) is UNKNOWN
    assert (await group.classic_join("", protocol_type="connect")).error_code is (
        ErrorCode.inconsistent_group_protocol
    )
    assert await group.listed() == ("consumer", "Stable", "consumer")
    # The last member of the new protocol leaves: the group is classic again, and rebalances.
    assert (await group.heartbeat("m1", -1)).error_code is NONE
    listed = await group.listed()
    assert listed is not None
    assert listed[0] == "classic"
    assert await group.classic_heartbeat(old.member_id, again.generation_id) is (
        ErrorCode.rebalance_in_progress
    )
    last = await group.classic_join(old.member_id)
    assert (last.error_code, last.leader) == (NONE, old.member_id)


async def test_groups_that_cannot_be_upgraded(group: WireGroup) -> None:
    first = await group.classic_join(protocol_type="connect")
    await group.classic_join(first.member_id, protocol_type="connect")
    refused = await group.join("m1")
    assert refused.error_code is ErrorCode.group_id_not_found
    assert refused.error_message == (
        f"Cannot upgrade classic group {group.name} to consumer group because the group does not "
        "use the consumer embedded protocol."
    )


async def test_a_member_without_an_id_is_given_one(group: WireGroup) -> None:
    joined = await group.join("", version=0)
    assert joined.error_code is NONE
    assert len(joined.member_id) > 10
    assert (await group.heartbeat(joined.member_id, 2, version=0)).member_epoch == 2


async def test_regular_expressions_are_resolved_by_the_broker(group: WireGroup) -> None:
    broken = await group.join("m1", subscribed_topic_names=None, subscribed_topic_regex="[")
    assert broken.error_code is ErrorCode.invalid_regular_expression
    assert broken.error_message is not None
    assert broken.error_message.startswith(
        "SubscribedTopicRegex `[` is not a valid regular expression: "
    )
    for unknown in ("(?=a)b", r"(a)\1", "a{1001}"):
        refused = await group.join(
            "m1", subscribed_topic_names=None, subscribed_topic_regex=unknown
        )
        assert refused.error_code is ErrorCode.invalid_regular_expression
    first = await group.join("m1", subscribed_topic_names=None, subscribed_topic_regex=group.name)
    assert (first.error_code, first.member_epoch) == (NONE, 1)
    epoch, indexes = 1, group.indexes(first)
    async with asyncio.timeout(DEADLINE_S):
        while not indexes:
            answer = await group.heartbeat("m1", epoch)
            assert answer.error_code is NONE
            epoch, indexes = answer.member_epoch, group.indexes(answer)
            await asyncio.sleep(0.05)
    assert (epoch, indexes) == (2, [0, 1, 2, 3])
    described = await group.described()
    assert described.members[0].subscribed_topic_regex == group.name
    assert described.members[0].subscribed_topic_names == ()
    joined = await group.join("m2", subscribed_topic_names=None, subscribed_topic_regex=group.name)
    assert joined.member_epoch == 3, "it is resolved already"
