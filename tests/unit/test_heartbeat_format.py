"""A heartbeat is Kafka's BrokerHeartbeat: kio, made from Kafka's schema, reads it and writes it."""

import io

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.broker_heartbeat.v0.request import BrokerHeartbeatRequest
from kio.schema.broker_heartbeat.v0.response import BrokerHeartbeatResponse
from kio.schema.types import BrokerId
from kio.serial import entity_writer
from kio.static.primitive import i64

from lakehead.broker import api
from lakehead.broker.cluster.heartbeat import (
    Heartbeat,
    HeartbeatResponse,
    NodeLoad,
    decode_heartbeat,
    decode_heartbeat_response,
    encode_heartbeat,
    encode_heartbeat_response,
)
from lakehead.broker.protocol.decode import decode
from lakehead.broker.protocol.errors import MalformedFrame
from lakehead.broker.protocol.frame import read_header

REGISTRY = api.registry()
LONGS = st.integers(-(2**62), 2**62)
RATES = st.floats(0, 1e12)
LOADS = st.builds(
    NodeLoad,
    bytes_in=RATES,
    bytes_out=RATES,
    cpu=RATES,
    hottest=st.lists(st.tuples(st.integers(0, 2**60), RATES), max_size=5).map(tuple),
    dollars_an_hour=RATES,
)
HEARD = st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 2**40)), max_size=5).map(tuple)
LEVELS = st.none() | st.tuples(st.integers(0, 99), st.integers(0, 99))
HEARTBEATS = st.builds(
    Heartbeat,
    node_id=st.integers(-1, 2**31 - 1),
    epoch=LONGS,
    next_entry=LONGS,
    is_starting=st.booleans(),
    is_leaving=st.booleans(),
    cluster_id=st.text(max_size=40),
    incarnation=st.text(max_size=40),
    load=LOADS,
    heard=HEARD,
    levels=LEVELS,
)
ANSWERS = st.builds(
    HeartbeatResponse,
    node_id=st.integers(0, 2**31 - 1),
    epoch=LONGS,
    next_entry=LONGS,
    error=st.integers(0, 120),
    is_known=st.booleans(),
    is_fenced=st.booleans(),
    is_starting=st.booleans(),
    is_leaving=st.booleans(),
    incarnation=st.text(max_size=40),
    fresh_ms=st.none() | st.integers(0, 2**40),
    load=LOADS,
    heard=HEARD,
    levels=LEVELS,
)


def body_of(frame: bytes) -> tuple[memoryview, int]:
    """A request frame without its length, and where the body begins by the broker's own rules."""
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    view = memoryview(frame)[4:]
    return view, read_header(view, REGISTRY).body


@given(HEARTBEATS)
def test_a_request_comes_back_whole_and_kafka_reads_it_too(heartbeat: Heartbeat) -> None:
    view, body = body_of(encode_heartbeat(heartbeat, 7))
    assert decode_heartbeat(view, body) == heartbeat
    kafkas = decode(BrokerHeartbeatRequest, view, body)
    assert kafkas.broker_id == heartbeat.node_id
    assert kafkas.broker_epoch == heartbeat.epoch
    assert kafkas.current_metadata_offset == heartbeat.next_entry - 1
    assert kafkas.want_fence is heartbeat.is_starting
    assert kafkas.want_shut_down is heartbeat.is_leaving


@given(ANSWERS, st.integers(0, 2**31 - 1))
def test_an_answer_comes_back_whole_and_kafka_reads_it_too(
    answer: HeartbeatResponse, number: int
) -> None:
    frame = encode_heartbeat_response(answer, number)
    assert decode_heartbeat_response(memoryview(frame)[4:]) == (number, answer)
    kafkas = decode(BrokerHeartbeatResponse, memoryview(frame), 9)  # length, correlation id, tags
    assert int(kafkas.error_code) == answer.error
    assert kafkas.is_caught_up is answer.is_known
    assert kafkas.is_fenced is answer.is_fenced


def test_a_request_as_kafka_writes_it_is_one_of_no_cluster() -> None:
    body = io.BytesIO()
    request = BrokerHeartbeatRequest(
        broker_id=BrokerId(3),
        broker_epoch=i64(4),
        current_metadata_offset=i64(9),
        want_fence=False,
        want_shut_down=True,
    )
    entity_writer(BrokerHeartbeatRequest)(body, request)
    heartbeat = decode_heartbeat(memoryview(body.getvalue()), 0)
    assert heartbeat == Heartbeat(node_id=3, epoch=4, next_entry=10, is_leaving=True)


def test_a_heartbeat_of_a_release_that_says_no_levels_is_read() -> None:
    """And one that says more than this release knows: arrays grow at their end."""
    for count in (4, 6):
        said = ["c", "i", NodeLoad(), (), (1, 2), "of tomorrow"][:count]
        frame = encode_heartbeat(Heartbeat(node_id=1, epoch=2, next_entry=3), 7)
        view, body = body_of(frame)
        fixed = bytes(view[body : body + 22])
        extra = msgspec.msgpack.encode(said)
        tagged = b"\x01\x90\x4e" + bytes([len(extra)]) + extra
        heartbeat = decode_heartbeat(memoryview(fixed + tagged), 0)
        assert (heartbeat.node_id, heartbeat.cluster_id) == (1, "c")
        assert heartbeat.levels == (None if count == 4 else (1, 2))


@given(HEARTBEATS, st.data())
def test_a_request_that_is_cut_off_is_malformed(heartbeat: Heartbeat, data: st.DataObject) -> None:
    view, body = body_of(encode_heartbeat(heartbeat, 7))
    end = data.draw(st.integers(body, len(view) - 1))
    with pytest.raises(MalformedFrame):
        decode_heartbeat(view[:end], body)


@given(st.binary(max_size=200))
def test_no_bytes_from_another_tenant_of_the_port_do_harm(frame: bytes) -> None:
    try:
        decode_heartbeat_response(memoryview(frame))
    except MalformedFrame:
        pass
    try:
        decode_heartbeat(memoryview(frame), 0)
    except MalformedFrame:
        pass


def test_the_most_that_a_heartbeat_says_stays_small() -> None:
    load = NodeLoad(hottest=tuple((number, 1.5e9) for number in range(64)))
    frame = encode_heartbeat(Heartbeat(node_id=1, epoch=1, next_entry=1, load=load), 1)
    assert len(frame) < 1500
