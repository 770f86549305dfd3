"""ShareFetch and ShareAcknowledge of a node: sessions, locks, what is delivered, and to which
member.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.node import Node
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.messages import entity
from lakehead.broker.share.record_state import ShareState
from lakehead.broker.share.share_counts import Outcome
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.clock import SystemClock
from lakehead.storage.metadata.records import DeleteTopic, GroupConfig
from lakehead.storage.object_store import MemoryStore
from tests.integration.test_node_protocol import running, with_topic
from tests.integration.test_read_committed import end, write
from tests.support.node_client import Client
from tests.support.share_member import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    ShareMember,
    parts,
    share,
)
from tests.support.wire import Batch

NONE = ErrorCode.none
LIMIT_S = 60


@asynccontextmanager
async def shared(*batches: int, **settings: Any) -> AsyncIterator[tuple[Node, Client]]:
    """A node with a topic of two partitions; partition 0 has batches of so many records."""
    given = {"group_share_min_record_lock_duration_ms": 1000, **settings}
    async with running(**given) as node, asyncio.timeout(LIMIT_S):
        client = await with_topic(node)
        await share(node)
        await produce(client, *batches)
        yield node, client


async def produce(client: Client, *batches: int, partition: int = 0) -> None:
    for size in batches:
        client.produce(Batch(values=(b"v",) * size).encode(), partition=partition)
        assert (await client.produced())[0] == 0


async def configure(node: Node, **configs: str) -> None:
    given: dict[str, str | None] = {
        name.replace("_", "."): value for name, value in configs.items()
    }
    await node.engine.metadata.commit([GroupConfig(group="team", configs=given)])


async def test_members_share_a_partition_and_no_record_is_delivered_to_two() -> None:
    async with shared(3, 4) as (node, client):
        a, b = [await ShareMember.connect(node, name) for name in "ab"]
        assert await a.fetch([0], max_records=3) == {0: [(0, 2, 1)]}
        assert a.lock_ms == 30_000
        assert await b.fetch([0]) == {0: [(3, 6, 1)]}
        assert await a.fetch() == {}
        assert await a.code({0: [(0, 2, [ACCEPT, RELEASE, REJECT])]}) is NONE
        assert await b.fetch() == {0: [(1, 1, 2)]}
        assert await b.code({0: [(1, 1, [ACCEPT])]}) is NONE
        await produce(client, 1)
        assert await a.fetch() == {0: [(7, 7, 1)]}
        counts = node.share_partitions.counts
        assert counts.acquired_total == 9
        assert counts.outcomes_total == {
            Outcome.ACCEPTED: 2,
            Outcome.RELEASED: 1,
            Outcome.ARCHIVED: 1,
        }


async def test_the_first_partition_that_is_loaded_does_not_wait_for_the_others() -> None:
    """librdkafka's test 0179 counts on it."""
    async with shared(2) as (node, client):
        await produce(client, 3, partition=1)
        a = await ShareMember.connect(node, "a")
        first = await a.fetch([0, 1])
        second = await a.fetch(wait_ms=60_000)
        assert [*first, *second] in ([0, 1], [1, 0])
        assert first | second == {0: [(0, 1, 1)], 1: [(0, 2, 1)]}


async def test_acknowledgements_come_with_the_next_fetch() -> None:
    async with shared(2, 2) as (node, _):
        a = await ShareMember.connect(node, "a")
        assert await a.fetch([0], max_records=2) == {0: [(0, 1, 1)]}
        acks = {0: [(0, 1, [RELEASE])]}
        assert await a.fetch(acks=acks) == {0: [(0, 1, 2), (2, 3, 1)]}
        a.send_fetch(acks={0: [(9, 9, [ACCEPT])]})
        (partition,) = parts(await a.receive_fetch())
        assert partition.acknowledge_error_code == ErrorCode.invalid_request
        assert partition.error_code is NONE


async def test_missing_partitions_are_reported_beside_records_and_without_any() -> None:
    async with shared(3) as (node, _):
        a, b = [await ShareMember.connect(node, name) for name in "ab"]
        a.send_fetch([0, 9], max_records=1, wait_ms=LIMIT_S * 1000)
        found = {one.partition_index: one for one in parts(await a.receive_fetch())}
        assert [len(found[0].acquired_records), found[9].error_code] == [
            1,
            ErrorCode.unknown_topic_or_partition,
        ]
        b.send_fetch([9], max_records=0)
        (missing,) = parts(await b.receive_fetch())
        assert missing.error_code is ErrorCode.unknown_topic_or_partition


async def test_requests_of_no_group_are_refused() -> None:
    async with shared(1) as (node, _):
        a = await ShareMember.connect(node, "a")
        a.group = None  # type: ignore[assignment]
        a.send_fetch([0], epoch=3)
        assert (await a.receive_fetch()).error_code is ErrorCode.invalid_request
        assert await a.code({0: [(0, 0, [ACCEPT])]}, epoch=3) is ErrorCode.invalid_request


async def test_a_verdict_on_a_state_that_was_made_anew_is_for_another_leader() -> None:
    async with shared(2) as (node, _):
        a = await ShareMember.connect(node, "a")
        assert await a.fetch([0]) == {0: [(0, 1, 1)]}
        key = SharePartitionKey("team", node.topics.by_name["t"].id_bytes, 0)
        await node.share_coordinator.initialize(key, 2, 0)
        code = await a.code({0: [(0, 1, [ACCEPT])]})
        assert code is ErrorCode.not_leader_or_follower


async def test_a_verdict_that_is_being_stored_when_its_topic_is_deleted_gets_an_error() -> None:
    async with shared(2) as (node, _):
        a = await ShareMember.connect(node, "a")
        assert await a.fetch([0]) == {0: [(0, 1, 1)]}
        topic = node.topics.by_name["t"]
        led = node.share_partitions.get(SharePartitionKey("team", topic.id_bytes, 0))
        store = HeldStore()
        led._store = store
        verdict = asyncio.create_task(a.code({0: [(0, 1, [ACCEPT])]}))
        await store.is_reached.wait()
        await node.engine.metadata.commit([DeleteTopic(topic_id=topic.topic_id)])
        assert "t" not in node.topics.by_name
        store.may_go_on.set()
        assert await verdict is ErrorCode.unknown_topic_or_partition


class HeldStore:
    """A share coordinator that responds when it may, and has lost the topic by then."""

    def __init__(self) -> None:
        self.is_reached, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        raise NotImplementedError

    async def write(self, key: SharePartitionKey, state: ShareState) -> None:
        self.is_reached.set()
        await self.may_go_on.wait()
        raise KafkaError(ErrorCode.unknown_topic_or_partition)


async def test_a_fetch_waits_for_new_and_for_released_records() -> None:
    async with shared(1) as (node, client):
        a, b = [await ShareMember.connect(node, name) for name in "ab"]
        assert await a.fetch([0]) == {0: [(0, 0, 1)]}
        b.send_fetch([0], wait_ms=LIMIT_S * 1000)
        await asyncio.sleep(0)
        assert await a.code({0: [(0, 0, [RELEASE])]}) is NONE
        assert [one.first_offset for one in parts(await b.receive_fetch())[0].acquired_records] == [
            0
        ]
        a.send_fetch(wait_ms=LIMIT_S * 1000)
        await produce(client, 1)
        assert [one.first_offset for one in parts(await a.receive_fetch())[0].acquired_records] == [
            1
        ]


class StoppedClock(SystemClock):
    """Locks do not run out by themselves, however long the machine takes for a test."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


async def test_a_lock_that_runs_out_frees_records_and_a_renewed_one_does_not() -> None:
    async with shared(1, 1) as (node, _):
        clock = node.share_partitions._clock = StoppedClock()
        await configure(node, share_record_lock_duration_ms="1000")
        a, b = [await ShareMember.connect(node, name) for name in "ab"]
        assert await a.fetch([0]) == {0: [(0, 1, 1)]}
        assert a.lock_ms == 1000
        b.send_fetch([0], wait_ms=LIMIT_S * 1000)
        clock.seconds = 0.9
        assert await a.code({0: [(1, 1, [RENEW])]}, is_renew_ack=True) is NONE
        clock.seconds = 1.1
        found = parts(await b.receive_fetch())[0].acquired_records
        assert [(one.first_offset, one.last_offset, one.delivery_count) for one in found] == [
            (0, 0, 2)
        ]
        assert await a.code({0: [(0, 0, [ACCEPT])]}) is ErrorCode.invalid_record_state
        assert await a.code({0: [(1, 1, [ACCEPT])]}) is NONE


async def test_a_lock_that_is_shorter_than_older_ones_ends_before_them() -> None:
    async with shared(1, 1) as (node, _):
        clock = node.share_partitions._clock = StoppedClock()
        await configure(node, share_record_lock_duration_ms="60000")
        a, b = [await ShareMember.connect(node, name) for name in "ab"]
        assert await a.fetch([0], max_records=1) == {0: [(0, 0, 1)]}
        await configure(node, share_record_lock_duration_ms="1000")
        assert await a.fetch(max_records=1) == {0: [(1, 1, 1)]}
        b.send_fetch([0], wait_ms=LIMIT_S * 1000)
        clock.seconds = 1.1
        async with asyncio.timeout(LIMIT_S / 2):
            (found,) = parts(await b.receive_fetch())[0].acquired_records
        assert (found.first_offset, found.last_offset, found.delivery_count) == (1, 1, 2)


async def test_a_group_without_renewals_has_kafkas_error_for_one() -> None:
    async with shared(2) as (node, _):
        await configure(node, share_renew_acknowledge_enable="false")
        a = await ShareMember.connect(node, "a")
        assert await a.fetch([0]) == {0: [(0, 1, 1)]}
        renewal = {0: [(0, 0, [ACCEPT]), (1, 1, [RENEW])]}
        assert await a.code(renewal, is_renew_ack=True) is ErrorCode.invalid_record_state
        assert await a.code({0: [(0, 1, [ACCEPT])]}) is NONE


async def test_a_session_takes_partitions_in_turn_from_the_one_that_it_named_first() -> None:
    async with shared(*[1] * 6) as (node, client):
        await produce(client, *[1] * 6, partition=1)
        a, b = [await ShareMember.connect(node, name) for name in "ab"]
        loaded = await b.fetch([0, 1], batch_size=1)
        while len(loaded) < 2:
            loaded |= await b.fetch(batch_size=1, wait_ms=LIMIT_S * 1000)
        await b.acknowledge({index: [(0, 5, [RELEASE])] for index in (0, 1)})
        order = []
        a.send_fetch([1, 9, 0], max_records=1)
        for _ in range(6):
            response = await a.receive_fetch()
            order += [one.partition_index for one in parts(response) if one.records]
            a.send_fetch(max_records=1)
        assert order == [1, 0] * 3


async def test_a_released_record_does_not_hide_those_behind_what_others_have() -> None:
    async with shared(5, 5) as (node, _):
        a, b = [await ShareMember.connect(node, name) for name in "ab"]
        assert await a.fetch([0], max_records=5) == {0: [(0, 4, 1)]}
        assert await a.code({0: [(0, 0, [RELEASE])]}) is NONE
        found = await b.fetch([0], max_records=2, share_acquire_mode=1)
        assert found == {0: [(0, 0, 2), (5, 5, 1)]}


async def test_a_new_session_forgets_nothing_that_it_names() -> None:
    async with shared(1) as (node, _):
        a = await ShareMember.connect(node, "a")
        module = schema(78, a.version).request_module
        forgotten = entity(module, "ForgottenTopic", topic_id=a.topic_id, partitions=(0,))
        assert await a.fetch([0], forgotten_topics_data=[forgotten]) == {0: [(0, 0, 1)]}


async def test_an_acknowledgement_of_nothing_says_which_partitions_there_are_not() -> None:
    async with shared(1) as (node, _):
        a = await ShareMember.connect(node, "a")
        assert await a.fetch([0]) == {0: [(0, 0, 1)]}
        found = parts(await a.acknowledge({0: [], 9: []}))
        unknown = ErrorCode.unknown_topic_or_partition
        assert [(one.partition_index, one.error_code) for one in found] == [(9, unknown)]


async def test_a_request_that_renews_says_nothing_of_partitions() -> None:
    async with shared(1) as (node, _):
        a = await ShareMember.connect(node, "a")
        nothing: dict[str, Any] = {
            "max_records": 0,
            "max_bytes": 0,
            "min_bytes": 0,
            "is_renew_ack": True,
        }
        a.send_fetch([0, 9], wait_ms=0, **nothing)
        assert parts(await a.receive_fetch()) == []
        a.send_fetch(wait_ms=0)
        assert [one.partition_index for one in parts(await a.receive_fetch())] == [9]


@pytest.mark.parametrize("how", ["final", "acknowledge", "lost"])
async def test_the_end_of_a_session_frees_records(how: str) -> None:
    async with shared(4) as (node, _):
        a, b = [await ShareMember.connect(node, name) for name in "ab"]
        assert await a.fetch([0]) == {0: [(0, 3, 1)]}
        b.send_fetch([0], wait_ms=LIMIT_S * 1000)
        accepted = {0: [(0, 0, [ACCEPT])]}
        first = 1
        if how == "final":
            a.send_fetch(acks=accepted, epoch=-1)
            assert (await a.receive_fetch()).error_code is NONE
        elif how == "acknowledge":
            assert await a.code(accepted, epoch=-1) is NONE
        else:
            a.client.writer.close()
            first = 0
        found = parts(await b.receive_fetch())[0].acquired_records
        assert [(one.first_offset, one.last_offset, one.delivery_count) for one in found] == [
            (first, 3, 2)
        ]
        if how != "lost":
            assert await a.code({}) is ErrorCode.share_session_not_found
        assert len(node.share_partitions.sessions) == 1


async def test_sessions_have_kafkas_errors() -> None:
    async with shared(1, group_share_max_share_sessions=1) as (node, _):
        a, b = [await ShareMember.connect(node, name) for name in "ab"]

        async def code(member: ShareMember, **how: Any) -> ErrorCode:
            member.send_fetch(**how)
            return ErrorCode((await member.receive_fetch()).error_code)

        assert await code(a, epoch=1) is ErrorCode.share_session_not_found
        assert await code(a, epoch=-1) is ErrorCode.share_session_not_found
        acks = {0: [(0, 0, [ACCEPT])]}
        assert await code(a, acks=acks, epoch=0) is ErrorCode.invalid_request
        assert await code(a, epoch=0) is NONE
        assert await code(a, epoch=3) is ErrorCode.invalid_share_session_epoch
        assert await a.code({}, epoch=0) is ErrorCode.invalid_share_session_epoch
        assert await a.code(acks, epoch=3) is ErrorCode.invalid_share_session_epoch
        assert await code(b, epoch=0) is ErrorCode.share_session_limit_reached
        a.member_id = ""
        assert await code(a, epoch=0) is ErrorCode.invalid_request
        a.member_id = "a" * 37
        assert await a.code(acks) is ErrorCode.invalid_request


async def test_the_partitions_of_all_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of fetch sessions: each may name very many, which need not exist."""
    monkeypatch.setattr("lakehead.broker.share.share_session.PARTITIONS_MAX", 3)
    async with shared(4) as (node, _):
        a, b = [await ShareMember.connect(node, name) for name in "ab"]

        async def code(member: ShareMember, *partitions: int) -> ErrorCode:
            member.send_fetch(partitions, max_records=1)
            return ErrorCode((await member.receive_fetch()).error_code)

        assert await code(a, 0, 1) is NONE
        assert await code(b, 0, 1) is ErrorCode.share_session_limit_reached
        assert await code(b, 0) is NONE
        assert await code(b, 1) is ErrorCode.share_session_limit_reached
        assert len(node.share_partitions.sessions) == 1, "it has to begin again"
        a.client.writer.close()
        b.epoch = 0
        while await code(b, 0, 1) is not NONE:
            b.epoch = 0
        assert len(node.share_partitions.sessions) == 1


async def test_bad_acknowledgements_have_kafkas_errors_and_change_nothing() -> None:
    async with shared(4) as (node, _):
        a, b = [await ShareMember.connect(node, name) for name in "ab"]
        assert await a.fetch([0]) == {0: [(0, 3, 1)]}
        assert await b.fetch([0], wait_ms=0) == {}
        invalid, state = ErrorCode.invalid_request, ErrorCode.invalid_record_state
        for acks, code in (
            ([(0, 0, [RENEW])], invalid),  # the request does not say so
            ([(0, 0, [9])], invalid),
            ([(0, 0, [-1])], invalid),
            ([(0, 3, [ACCEPT, ACCEPT])], invalid),
            ([(0, 3, [])], invalid),
            ([(2, 1, [ACCEPT])], invalid),
            ([(2, 3, [ACCEPT]), (0, 1, [ACCEPT])], invalid),
            ([(0, 2, [ACCEPT]), (1, 2, [ACCEPT])], invalid),
            ([(0, 1, [ACCEPT]), (1, 2, [ACCEPT])], state),  # so far Kafka takes it as in order
            ([(-2, 0, [ACCEPT])], invalid),
            ([(0, 4, [ACCEPT])], invalid),
        ):
            assert await a.code({0: acks}) is code, acks
        assert await b.code({0: [(0, 0, [ACCEPT])]}) is state
        assert await b.code({1: [(0, 0, [ACCEPT])]}) in {
            state,
            ErrorCode.unknown_topic_or_partition,
        }
        assert await a.code({7: [(0, 0, [ACCEPT])]}) is ErrorCode.unknown_topic_or_partition
        assert await a.code({0: [(0, 3, [ACCEPT, GAP, REJECT, ACCEPT])]}) is NONE
        assert await a.code({0: [(0, 3, [ACCEPT])]}) is NONE, "they are done"


async def test_thousands_of_records_have_each_their_verdict() -> None:
    async with shared(1_000, 1_000, 1_000) as (node, client):
        a = await ShareMember.connect(node, "a")
        assert await a.fetch([0], max_records=2_000, batch_size=5_000) == {0: [(0, 1_999, 1)]}
        types = [ACCEPT if number % 3 else RELEASE for number in range(2_000)]
        assert len(await a.fetch(acks={0: [(0, 1_999, types)]}, max_records=9)) == 1
        assert await a.code({0: [(0, 0, [ACCEPT]), (3, 3, [ACCEPT])]}) is NONE
        await produce(client, 1)


async def test_partitions_have_their_turns_and_errors() -> None:
    async with shared(2) as (node, client):
        await produce(client, 3, partition=1)
        a = await ShareMember.connect(node, "a")
        assert len(await a.fetch([0, 1], max_records=1)) == 1
        a.send_fetch([9])
        found = {one.partition_index: one for one in parts(await a.receive_fetch())}
        assert found[9].error_code is ErrorCode.unknown_topic_or_partition
        assert sum(len(one.acquired_records) for one in found.values()) == 1
        unknown = await ShareMember.connect(node, "b", group="others")
        unknown.send_fetch([0], wait_ms=1000)
        (partition,) = parts(await unknown.receive_fetch())
        assert partition.error_code is ErrorCode.unknown_server_error  # it was never initialized


async def test_a_session_does_not_grow_without_bound() -> None:
    async with shared(1) as (node, _):
        a = await ShareMember.connect(node, "a")
        a.send_fetch(range(5_000))
        assert (await a.receive_fetch()).error_code is ErrorCode.invalid_request
        assert len(node.share_partitions.sessions) == 0
        assert await a.fetch([0]) == {0: [(0, 0, 1)]}


async def test_a_session_names_changes_only() -> None:
    async with shared(1) as (node, client):
        await produce(client, 1, partition=1)
        a = await ShareMember.connect(node, "a")
        assert await a.fetch([0], max_records=1) == {0: [(0, 0, 1)]}
        assert await a.fetch([1], wait_ms=LIMIT_S * 1000) == {1: [(0, 0, 1)]}
        await produce(client, 1)
        await produce(client, 1, partition=1)
        module = __import__("kio.schema.share_fetch.v2.request", fromlist=["x"])
        forgotten = entity(module, "ForgottenTopic", topic_id=a.topic_id, partitions=[1])
        assert await a.fetch(forgotten_topics_data=[forgotten]) == {0: [(1, 1, 1)]}


@pytest.mark.parametrize("reset", ["earliest", "latest", "by_duration:P20000D"])
async def test_a_group_begins_where_its_config_says(reset: str) -> None:
    async with shared(2) as (node, client):
        await configure(node, share_auto_offset_reset=reset)
        await share(node, start=-1, state_epoch=2)
        a = await ShareMember.connect(node, "a")
        found = await a.fetch([0], wait_ms=1000 if reset == "latest" else LIMIT_S * 1000)
        assert found == ({} if reset == "latest" else {0: [(0, 1, 1)]})
        await produce(client, 1)
        assert await a.fetch(wait_ms=LIMIT_S * 1000) == {0: [(2, 2, 1)]}


async def test_committed_groups_get_no_aborted_records_and_no_group_gets_markers() -> None:
    async with shared() as (node, client):
        await configure(node, share_isolation_level="read_committed")
        await write(node, 7, 0, b"a", b"b")
        a = await ShareMember.connect(node, "a")
        assert await a.fetch([0], wait_ms=500) == {}
        await end(node, 7, is_commit=False)
        await write(node, 7, 2, b"c")
        await end(node, 7, is_commit=True)
        await produce(client, 1)
        assert await a.fetch() == {0: [(3, 3, 1), (5, 5, 1)]}
        await share(node, group="others")
        b = await ShareMember.connect(node, "b", group="others")
        assert await b.fetch([0], wait_ms=LIMIT_S * 1000) == {0: [(0, 1, 1), (3, 3, 1), (5, 5, 1)]}


async def test_deleted_records_are_not_delivered() -> None:
    async with shared(2, 2) as (node, _):
        a = await ShareMember.connect(node, "a")
        assert await a.fetch([0], max_records=2) == {0: [(0, 1, 1)]}
        partition = node.topics.partition("t", 0)
        assert partition is not None
        await partition.stream.trim(3)
        assert await a.fetch() == {0: [(3, 3, 1)]}
        assert await a.code({0: [(0, 1, [ACCEPT])]}) is NONE


async def test_the_state_outlives_the_node() -> None:
    store = MemoryStore()
    async with running(store) as node, asyncio.timeout(LIMIT_S):
        client = await with_topic(node)
        await share(node)
        await produce(client, 3, 3)
        a = await ShareMember.connect(node, "a")
        assert await a.fetch([0], max_records=3) == {0: [(0, 2, 1)]}
        assert await a.code({0: [(0, 2, [ACCEPT, RELEASE, ACCEPT])]}) is NONE
        assert await a.fetch() == {0: [(1, 1, 2), (3, 5, 1)]}
    async with running(store) as node, asyncio.timeout(LIMIT_S):
        b = await ShareMember.connect(node, "b")
        # The end of the session, by the end of the node, may have been stored or not.
        found = await b.fetch([0], wait_ms=LIMIT_S * 1000)
        assert found in ({0: [(1, 1, 2), (3, 5, 1)]}, {0: [(1, 1, 3), (3, 5, 2)]})


async def test_cold_records_are_delivered_from_objects() -> None:
    store = MemoryStore()
    async with running(store) as node, asyncio.timeout(LIMIT_S):
        client = await with_topic(node)
        await share(node)
        await produce(client, 3, 3)
        await produce(client, 2, partition=1)
    async with running(store) as node, asyncio.timeout(LIMIT_S):
        a = await ShareMember.connect(node, "a")
        client = await Client.connect(node)
        await produce(client, 1)
        found = await a.fetch([0, 1], wait_ms=LIMIT_S * 1000)
        while sum(last - first + 1 for one in found.values() for first, last, _ in one) < 9:
            for index, acquired in (await a.fetch(wait_ms=LIMIT_S * 1000)).items():
                found.setdefault(index, []).extend(acquired)
        assert {index: (one[0][0], one[-1][1]) for index, one in found.items()} == {
            0: (0, 6),
            1: (0, 1),
        }
