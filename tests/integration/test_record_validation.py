"""Topics that set `lakehead.record.validation` take no batch that nothing can read."""

import struct
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import cramjam
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource

from lakehead.broker.partition.record_checks import INFLATION_MAX, RECORDS_INLINE_MAX
from tests.support import wire
from tests.support.record_batches import TestRecord, encode_record, varint
from tests.support.watched_node import WatchedNode
from tests.support.wire import Batch, Wire, produce_request

STALL_S_MAX = 0.1
GZIP, ZSTD = 1, 4
INVALID_RECORD, INVALID_TIMESTAMP = 87, 32
NOW = 1_700_000_000_000


@pytest.fixture(scope="module", autouse=True)
def _switch_interval() -> Iterator[None]:
    """Threads take turns as they do in a node's own process."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedNode]:
    with WatchedNode(tmp_path_factory.mktemp("validation")) as running:
        validation = {"lakehead.record.validation": "true"}
        make_topic(running, "checked", validation)
        make_topic(running, "stamped", {**validation, "message.timestamp.type": "LogAppendTime"})
        make_topic(running, "compacted", {**validation, "cleanup.policy": "compact"})
        make_topic(running, "keyed", {"cleanup.policy": "compact"})
        make_topic(running, "plain", {})
        yield running


def make_topic(node: WatchedNode, name: str, configs: dict[str, str]) -> None:
    entries = [wire.string(key) + wire.string(value) for key, value in configs.items()]
    topic = wire.string(name) + struct.pack(">ih", 1, 1) + wire.array() + wire.array(*entries)
    with Wire(node.port) as client:
        body = wire.header(19, 4) + wire.array(topic) + struct.pack(">i?", 30_000, False)
        assert client.ask(body) is not None


def record(place: int, time: int = NOW, **fields: Any) -> bytes:
    return encode_record(TestRecord(offset=place, timestamp=time, **fields), 0, NOW)


def batch(body: bytes, count: int = 1, attributes: int = 0) -> bytes:
    return Batch(
        body=body, attributes=attributes, record_count=count, last_offset_delta=count - 1
    ).encode()


def produced(client: Wire, topic: str, records: bytes) -> tuple[int, list[int], str]:
    """Return error code, places of record errors and the message of a Produce v8."""
    answer = client.ask(produce_request(topic, 0, records))
    assert answer is not None
    position = 4 + 2 + len(topic) + 4 + 4
    (code,) = struct.unpack_from(">h", answer, position)
    (count,) = struct.unpack_from(">i", answer, position := position + 2 + 24)
    position += 4
    places = []
    for _ in range(count):
        place, length = struct.unpack_from(">ih", answer, position)
        places.append(place)
        position += 6 + length
    (length,) = struct.unpack_from(">h", answer, position)
    return code, places, answer[position + 2 : position + 2 + max(0, length)].decode()


FINE = record(0, key=b"k", value=b"v")
UNREADABLE = [
    (b"\xff" * 40, 1, 0, [0]),
    (FINE + b"\xff" * 40, 2, 0, [1]),
    (FINE + FINE, 2, 0, [1]),  # the offset again
    (FINE + b"rest", 1, 0, [0]),
    (FINE, 3, 0, [1]),
    (FINE[:-1], 1, 0, [0]),
    (b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", 1, 0, [0]),  # a header without a key
    (bytes(cramjam.zstd.compress(FINE + b"\xff" * 40)), 2, ZSTD, [1]),
    (bytes(cramjam.gzip.compress(FINE))[:-9], 1, GZIP, []),
    (b"not zstd", 1, ZSTD, []),
]


@pytest.mark.parametrize(("body", "count", "attributes", "places"), UNREADABLE)
@pytest.mark.parametrize("topic", ["checked", "stamped", "compacted"])
def test_a_batch_that_nothing_can_read_is_refused_with_the_place_of_its_record(
    node: WatchedNode, topic: str, body: bytes, count: int, attributes: int, places: list[int]
) -> None:
    with Wire(node.port) as client:
        before = client.end_offset(topic, 0)
        records = batch(body, count, attributes)
        code, found, message = produced(client, topic, records)
        assert (code, found) == (INVALID_RECORD, places)
        assert message
        assert client.end_offset(topic, 0) == before
        assert client.produce_error(topic, 0, batch(FINE)) == 0
        assert client.produce_error("plain", 0, records) == 0


def test_times_of_records_between_the_first_and_the_newest_are_checked(node: WatchedNode) -> None:
    times = [NOW, 2 * 10**17, NOW, -(10**16), -1, NOW]
    body = b"".join(record(place, time, key=b"k") for place, time in enumerate(times))
    with Wire(node.port) as client:
        for attributes, sent in ((0, body), (ZSTD, bytes(cramjam.zstd.compress(body)))):
            records = batch(sent, len(times), attributes)
            code, places, message = produced(client, "checked", records)
            assert (code, places) == (INVALID_TIMESTAMP, [1, 3])
            assert "out of range" in message
            assert client.produce_error("stamped", 0, records) == 0
            assert client.produce_error("plain", 0, records) == 0


def test_what_clients_send_is_taken_as_before(node: WatchedNode) -> None:
    many = b"".join(
        encode_record(
            TestRecord(offset=place, value=b"v" * (place % 50), headers=(("h", None), ("", b"x"))),
            0,
            NOW,
        )
        for place in range(3 * RECORDS_INLINE_MAX)
    )
    with Wire(node.port) as client:
        count = 3 * RECORDS_INLINE_MAX
        assert produced(client, "checked", batch(many, count)) == (0, [], "")
        packed = bytes(cramjam.gzip.compress(many))
        assert produced(client, "checked", batch(packed, count, GZIP)) == (0, [], "")
        assert produced(client, "compacted", batch(many, count))[:2] == (
            INVALID_RECORD,
            list(range(1000)),
        )


def test_batches_keep_their_order_when_some_are_checked_aside(node: WatchedNode) -> None:
    """Pipelined: a large batch is checked aside, and small ones behind it wait for it."""
    sizes = [100_000, 1, 20_000, 2, 1]
    with Wire(node.port) as client:
        expected = client.end_offset("checked", 0)
        for count in sizes:
            body = b"".join(record(place) for place in range(count))
            sent = bytes(cramjam.zstd.compress(body)) if count > 2 else body
            records = batch(sent, count, ZSTD if count > 2 else 0)
            client.send(wire.frame(produce_request("checked", 0, records)))
        for count in sizes:
            answer = client.receive()
            assert answer is not None
            position = 4 + 4 + 2 + len("checked") + 4 + 4
            assert struct.unpack_from(">hq", answer, position) == (0, expected)
            expected += count


def headers(count: int) -> bytes:
    rest = b"\0\0\0\x01\x01" + varint(count) + b"\0\x01" * count
    return varint(len(rest)) + rest


def packed(body: bytes, count: int = 1) -> bytes:
    return batch(bytes(cramjam.zstd.compress(body)), count, ZSTD)


@cache
def many_records(count: int) -> bytes:
    return packed(b"".join(record(place) for place in range(count)), count)


LONG_VARINT = varint(1_000_006) + b"\0" + b"\x80" * 1_000_000 + b"\0" * 5
LIMIT = INFLATION_MAX << 20
WORST = {
    "headers": lambda: batch(headers(500_000)),
    "packed headers": lambda: packed(headers(LIMIT // 8)),
    "records": lambda: many_records(300_000),
    "bomb": lambda: packed(b"\0" * (LIMIT + 1), 9),
    "varint": lambda: batch(LONG_VARINT),
}


@pytest.mark.parametrize("topic", ["checked", "keyed"])
@pytest.mark.parametrize("name", ["headers", "packed headers", "records", "bomb", "varint"])
def test_the_worst_batches_are_checked_without_holding_the_loop(
    node: WatchedNode, topic: str, name: str
) -> None:
    worst = WORST[name]()
    with Wire(node.port) as client:
        node.longest_stall()
        for _ in range(10 if name == "varint" else 1):
            assert client.produce_error(topic, 0, worst) is not None
        stall = node.longest_stall()
        assert node.is_well
        assert stall.loop_s < STALL_S_MAX, stall


def test_the_config_holds_from_the_moment_it_is_set(node: WatchedNode) -> None:
    make_topic(node, "later", {})
    records = batch(b"\xff" * 40)
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{node.port}"})

    def set_to(value: str) -> None:
        entry = ConfigEntry(
            "lakehead.record.validation", value, incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ConfigResource.Type.TOPIC, "later", incremental_configs=[entry])
        for done in admin.incremental_alter_configs([resource]).values():
            done.result(10)

    with Wire(node.port) as client:
        assert client.produce_error("later", 0, records) == 0
        set_to("TRUE")
        assert client.produce_error("later", 0, records) == INVALID_RECORD
        (shown,) = admin.describe_configs(
            [ConfigResource(ConfigResource.Type.TOPIC, "later")]
        ).values()
        assert shown.result(10)["lakehead.record.validation"].value == "true"
        set_to("false")
        assert client.produce_error("later", 0, records) == 0
