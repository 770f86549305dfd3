"""No request holds a node's event loop: beside the worst of them other clients are served.

`make stalls` drives every API (`test_stall_watchdog.py`); here are those that held it once.
"""

import asyncio
import struct
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import cramjam
import pytest

from lakehead.broker import api
from lakehead.broker.api.turns import elements_max
from lakehead.broker.partition.record_checks import INFLATION_MAX, RECORDS_INLINE_MAX
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.frame import encode_request
from lakehead.storage.format.varint import encode_uvarint
from lakehead.storage.metadata.records import ClientQuota, Record, ScramDelete, ScramUpsert
from tests.support import wire
from tests.support.deep_requests import (
    GROUP_TYPE,
    Asker,
    commit_offsets,
    create_topics,
    join_group,
    joining,
    sync_group,
)
from tests.support.watched_node import WatchedNode
from tests.support.wire import Batch, Wire, produce_request
from tests.support.worst_requests import Limits, Names, worst_requests

STALL_S_MAX = 0.1
PROCESS_STALL_S_MAX = 0.3
ZSTD = 4
INVALID_RECORD, GROUP_MAX_SIZE_REACHED, UNKNOWN_SERVER_ERROR = 87, 81, -1
RECORD_WITH_KEY = b"\x0c\x00\x00\x00\x00\x01\x00"


@pytest.fixture(scope="module", autouse=True)
def _switch_interval() -> Iterator[None]:
    """Threads take turns as they do in a node's own process."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedNode]:
    with WatchedNode(tmp_path_factory.mktemp("stalls")) as running:
        make_topic(running, "compacted", compacted=True)
        make_topic(running, "plain")
        yield running


def make_topic(node: WatchedNode, name: str, *, compacted: bool = False) -> None:
    config = wire.string("cleanup.policy") + wire.string("compact")
    configs = wire.array(config) if compacted else wire.array()
    topic = wire.string(name) + struct.pack(">ih", 1, 1) + wire.array() + configs
    with Wire(node.port) as client:
        body = wire.header(19, 4) + wire.array(topic) + struct.pack(">i?", 30_000, False)
        assert client.ask(body) is not None


def check(node: WatchedNode) -> None:
    stall = node.longest_stall()
    assert node.is_well
    assert stall.loop_s < STALL_S_MAX, stall
    assert stall.process_s < PROCESS_STALL_S_MAX, stall


def bomb(count: int) -> bytes:
    body = bytes(cramjam.zstd.compress(RECORD_WITH_KEY * count))
    return Batch(
        body=body, attributes=ZSTD, record_count=count, last_offset_delta=count - 1
    ).encode()


def test_keys_of_a_batch_of_nine_million_records_do_not_hold_the_loop(node: WatchedNode) -> None:
    records = bomb(9_000_000)
    assert len(records) < 8_192
    with Wire(node.port) as client:
        node.longest_stall()
        assert client.produce_error("compacted", 0, records) == INVALID_RECORD
        check(node)


@pytest.mark.parametrize("count", [RECORDS_INLINE_MAX, 100_000, 1_000_000])
def test_a_batch_that_inflates_within_bounds_is_taken_whole(node: WatchedNode, count: int) -> None:
    assert count * len(RECORD_WITH_KEY) < INFLATION_MAX << 20
    with Wire(node.port) as client:
        before = client.end_offset("compacted", 0)
        node.longest_stall()
        assert client.produce_error("compacted", 0, bomb(count)) == 0
        check(node)
        assert client.end_offset("compacted", 0) == before + count


def test_batches_keep_their_order_when_keys_of_some_are_looked_at_aside(node: WatchedNode) -> None:
    """Pipelined: a large batch is looked at aside, and small ones behind it wait for it."""
    with Wire(node.port) as client:
        before = client.end_offset("compacted", 0)
        sizes = [200_000, 1, 50_000, 2, 1]
        for count in sizes:
            records = bomb(count)
            client.send(wire.frame(produce_request("compacted", 0, records)))
        expected = before
        for count in sizes:
            answer = client.receive()
            assert answer is not None
            error, offset = struct.unpack_from(">hq", answer, 4 + 4 + 2 + len("compacted") + 4 + 4)
            assert (error, offset) == (0, expected)
            expected += count


def test_a_large_batch_waits_for_one_of_each_other_connection_and_no_more(
    node: WatchedNode,
) -> None:
    """However many batches the others have sent ahead. The offsets show the order of the node, and
    not that in which the threads of this process had a turn.
    """
    others, each, count = 4, 6, 60_000
    frame = wire.frame(produce_request("compacted", 0, bomb(count)))
    with ExitStack() as stack:
        clients = [stack.enter_context(Wire(node.port)) for _ in range(others)]
        last, looking = (stack.enter_context(Wire(node.port)) for _ in range(2))
        for client in clients:
            client.send(frame * each)
        last.send(frame)
        when_sent = looking.end_offset("compacted", 0)
        answer = last.receive()
        assert answer is not None
        error, offset = struct.unpack_from(">hq", answer, 4 + 4 + 2 + len("compacted") + 4 + 4)
        for client in clients:
            assert all(client.receive() is not None for _ in range(each))
    assert error == 0
    assert (offset - when_sent) // count <= 3 * others < others * each


def test_a_record_without_key_far_behind_is_still_found(node: WatchedNode) -> None:
    count = 100_000
    keyless = b"\x0c\x00\x00\x00\x01\x00\x00"
    body = bytes(cramjam.zstd.compress(RECORD_WITH_KEY * (count - 1) + keyless))
    records = Batch(body=body, attributes=ZSTD, record_count=count, last_offset_delta=count - 1)
    with Wire(node.port) as client:
        assert client.produce_error("compacted", 0, records.encode()) == INVALID_RECORD


def test_a_million_records_without_keys_are_refused_in_a_short_response(node: WatchedNode) -> None:
    count = 1_000_000
    body = bytes(cramjam.zstd.compress(b"\x0c\x00\x00\x00\x01\x00\x00" * count))
    records = Batch(body=body, attributes=ZSTD, record_count=count, last_offset_delta=count - 1)
    with Wire(node.port) as client:
        node.longest_stall()
        answer = client.ask(produce_request("compacted", 0, records.encode()))
        assert answer is not None
        assert len(answer) < 1 << 20
        check(node)


def elements_taken(key: int, node: WatchedNode) -> int:
    """Return how many elements a request of this API may have."""
    route = api.registry().route(key)
    assert route is not None
    return elements_max(node.node.services, route.api)


def of_many(key: int, version: int, array: str, count: int, node: WatchedNode) -> bytes:
    """The request whose array of this name has `count` elements, about the topic `plain`."""
    topic_id = node.node.topics.by_name["plain"].uuid
    names = Names(name="plain", topic_id=topic_id, fixed={"acks": -1, "transactional_id": None})
    found = dict(worst_requests(key, version, names, Limits(count=count, size=1 << 26)))
    return found[array]


def fetch_of_the_same_partition(count: int) -> bytes:
    entry = struct.pack(">iqi", 0, 0, 1 << 20)
    partitions = struct.pack(">i", count) + entry * count
    wanted = struct.pack(">iiiib", -1, 100, 1, 1 << 20, 0)
    return wire.header(1, 4) + wanted + wire.array(wire.string("plain") + partitions)


MANY = [
    (0, 13, "topic_data"),
    (0, 13, "topic_data.partition_data"),
    (9, 8, "groups.topics"),
    (9, 8, "groups.topics.partition_indexes"),
    (23, 4, "topics"),  # OffsetForLeaderEpoch
    (27, 1, "markers"),
    (61, 0, "topics"),  # DescribeProducers
    (65, 0, "transactional_ids"),
    (75, 0, "topics"),  # DescribeTopicPartitions
    (3, 4, "topics"),
    (2, 1, "topics.partitions"),
    (1, 4, "topics.partitions"),
    (1, 4, "topics"),
    (8, 7, "topics.partitions"),  # OffsetCommit
    (10, 4, "coordinator_keys"),  # FindCoordinator
    (13, 5, "members"),  # LeaveGroup
    (27, 1, "markers.topics"),  # WriteTxnMarkers
    (42, 2, "groups_names"),  # DeleteGroups
    (43, 2, "topic_partitions.partitions"),  # ElectLeaders
]


@pytest.mark.parametrize(("key", "version", "array"), MANY)
def test_a_request_of_as_many_elements_as_are_taken_does_not_hold_the_loop(
    node: WatchedNode, key: int, version: int, array: str
) -> None:
    request = of_many(key, version, array, elements_taken(key, node) - 2, node)
    with Wire(node.port) as client:
        node.longest_stall()
        assert client.ask(request) is not None
        check(node)


def test_a_group_or_transaction_that_is_named_many_times_is_described_once(
    node: WatchedNode,
) -> None:
    """Else a short request would be answered with gigabytes."""
    count = 5_000
    name = wire.string("a group")
    with Wire(node.port) as client:
        asker = Asker(client, "plain", 1)
        commit_offsets(asker, "a group")
        topics = [asker.part(9, 8, "OffsetFetchRequestGroup", group_id="a group", topics=None)]
        alone = asker.ask(9, 8, "OffsetFetchRequest", groups=topics, require_stable=False)
        assert [len(group.topics) for group in alone.groups] == [1]
        named = asker.ask(9, 8, "OffsetFetchRequest", groups=topics * count, require_stable=False)
        assert {(one.error_code.value, len(one.topics)) for one in named.groups} == {(42, 0)}
        states = (
            wire.header(65, 0)
            + b"\0"
            + encode_uvarint(count + 1)
            + (encode_uvarint(2) + b"x") * count
        )
        answer = client.ask(states + b"\0")
        assert answer is not None
        assert len(answer) < 100
        answer = client.ask(wire.header(15, 0) + wire.array(*[name] * count))
        assert answer is not None
        assert len(answer) < 100


def test_the_largest_topic_is_made_and_deleted_without_a_stall(tmp_path: Path) -> None:
    with WatchedNode(tmp_path) as large, Wire(large.port) as client:
        client.socket.settimeout(60)
        made = next(create_topics(Asker(client, "", 1)))[1]
        large.longest_stall()
        answer = client.ask(made)
        assert answer is not None
        assert struct.unpack_from(">h", answer, 1 + 4 + 1 + 1 + len("made-1-0"))[0] == 0
        check(large)
        assert client.ask(wire.header(20, 1) + wire.array(wire.string("made-1-0")) + bytes(4))
        check(large)
        assert not large.node.topics.by_name


@pytest.mark.parametrize("key", [0, 1, 8, 13, 14, 28, 43])
def test_what_is_handled_in_one_turn_takes_every_partition_once_and_no_million(
    node: WatchedNode, key: int
) -> None:
    partitions = len(node.node.state.streams)
    assert 2 * partitions <= elements_taken(key, node) < elements_taken(3, node)


def test_a_partition_that_one_fetch_names_many_times_is_read_once(node: WatchedNode) -> None:
    with Wire(node.port) as client:
        node.longest_stall()
        answer = client.ask(fetch_of_the_same_partition(elements_taken(1, node) - 2))
        assert answer is not None
        assert len(answer) < 200
        check(node)


@pytest.mark.parametrize(("key", "version"), [(1, 4), (2, 1), (3, 4)])
def test_a_request_of_a_million_elements_closes_its_connection_alone(
    node: WatchedNode, key: int, version: int
) -> None:
    array = struct.pack(">i", 990_000) + b"\0\0" * 4_000_000
    lead = {1: struct.pack(">iiiib", -1, 100, 1, 1 << 20, 0), 2: struct.pack(">i", -1), 3: b""}
    with Wire(node.port) as client, Wire(node.port) as other:
        node.longest_stall()
        assert client.ask(wire.header(key, version) + lead[key] + array) is None
        assert other.end_offset("plain", 0) == 0
        check(node)


def test_a_string_has_the_limit_of_kafkas_in_the_compact_encoding_too(node: WatchedNode) -> None:
    for size, is_taken in ((32_767, True), (32_768, False)):
        key = encode_uvarint(size + 1) + b"g" * size
        request = wire.header(10, 4) + b"\0" + b"\0" + encode_uvarint(2) + key + b"\0"
        with Wire(node.port) as client:
            assert (client.ask(request) is not None) is is_taken


@pytest.mark.parametrize(("each", "error"), [(5_000, 0), (5_001, 44)])
def test_topics_of_one_request_share_the_limit_of_partitions(
    node: WatchedNode, each: int, error: int
) -> None:
    topics = [wire.string(name) + struct.pack(">ihii", each, 1, 0, 0) for name in ("one", "two")]
    with Wire(node.port) as client:
        body = wire.header(19, 4) + wire.array(*topics) + struct.pack(">i?", 30_000, True)
        answer = client.ask(body)
    assert answer is not None
    assert struct.unpack_from(">h", answer, 4 + 4 + 2 + 3)[0] == error


@pytest.mark.parametrize(("each", "error"), [(5_000, 0), (5_001, 44)])
def test_partitions_that_one_request_adds_to_topics_share_the_limit(
    node: WatchedNode, each: int, error: int
) -> None:
    topics = [
        wire.string(name) + struct.pack(">ii", 1 + each, -1) for name in ("plain", "compacted")
    ]
    with Wire(node.port) as client:
        body = wire.header(37, 0) + wire.array(*topics) + struct.pack(">i?", 30_000, True)
        answer = client.ask(body)
    assert answer is not None
    assert struct.unpack_from(">h", answer, 4 + 4 + 2 + len("plain"))[0] == error


def test_metadata_and_assignments_of_members_are_within_the_record_of_a_group(
    node: WatchedNode,
) -> None:
    """Longer ones are refused, as Kafka does where they do not fit; other groups go on."""
    with Wire(node.port) as client:
        asker = Asker(client, "plain", 1)
        asker.find_coordinator("synced", GROUP_TYPE)
        node.longest_stall()
        for label, request in join_group(asker):
            answer = client.ask(request)
            assert answer is not None, label
            assert struct.unpack_from(">h", answer, 4)[0] == GROUP_MAX_SIZE_REACHED
        for label, request in sync_group(asker):
            answer = client.ask(request)
            assert answer is not None, label
            assert struct.unpack_from(">h", answer, 4)[0] == UNKNOWN_SERVER_ERROR
        check(node)
    assert not node.node.memory.frames.used
    with Wire(node.port) as client:
        answer = client.ask(joining(Asker(client, "plain", 1), "small", b"small"))
        assert answer is not None
        assert struct.unpack_from(">h", answer, 4)[0] == 0


def test_lists_of_all_users_and_quotas_do_not_hold_the_loop(node: WatchedNode) -> None:
    count = 10_000
    users = [
        ScramUpsert(
            user=f"user-{number}",
            mechanism="SCRAM-SHA-256",
            salt=b"s",
            stored_key=b"k",
            server_key=b"k",
            iterations=4096,
        )
        for number in range(count)
    ]
    quotas = [
        ClientQuota(entity={"user": f"user-{number}"}, values={"producer_byte_rate": 1e9})
        for number in range(count)
    ]
    for records in (users, quotas):
        commit = node.node.engine.metadata.commit(records)
        asyncio.run_coroutine_threadsafe(commit, node.loop).result(60)
    users_wanted = encode_request(50, 0, 7, schema(50, 0).request_class(users=None))
    quotas_wanted = encode_request(
        48, 1, 7, schema(48, 1).request_class(components=(), strict=False)
    )
    with Wire(node.port) as client:
        for request in (users_wanted, quotas_wanted):
            node.longest_stall()
            response = client.ask(request[4:])
            assert response is not None
            assert response.count(b"user-") == count
            check(node)
    gone: list[Record] = [ScramDelete(user=one.user, mechanism=one.mechanism) for one in users]
    gone += [ClientQuota(entity=one.entity, values={"producer_byte_rate": None}) for one in quotas]
    commit = node.node.engine.metadata.commit(gone)
    asyncio.run_coroutine_threadsafe(commit, node.loop).result(60)


@pytest.mark.parametrize(("key", "version"), [(18, 3), (0, 9)])
def test_a_frame_of_tagged_fields_alone_does_not_hold_the_loop(
    node: WatchedNode, key: int, version: int
) -> None:
    """ApiVersions comes before authentication, and a Produce request may be the longest of all."""
    count = 7_000_000
    head = struct.pack(">hhih", key, version, 7, -1) + encode_uvarint(count)
    with Wire(node.port) as client:
        node.longest_stall()
        assert client.ask(head + b"\x63\x00" * count) is None
        check(node)
