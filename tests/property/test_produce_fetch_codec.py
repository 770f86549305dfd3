"""The hand-written Produce and Fetch codecs against kio's, all versions, and against garbage."""

import io
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from lakehead.broker.protocol import fetch, produce
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.decode import decode
from lakehead.broker.protocol.errors import MalformedFrame
from lakehead.broker.protocol.messages import entity
from lakehead.broker.protocol.node_endpoints import NodeEndpoint
from lakehead.storage.format.varint import encode_uvarint
from tests.support.repetitions import examples

PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 19)
endpoints = st.lists(
    st.builds(
        NodeEndpoint,
        st.integers(0, 2**31 - 1),
        st.text(max_size=300),
        st.integers(0, 65_535),
        st.none() | st.text(max_size=9),
    ),
    max_size=3,
)
names = st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=9)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
ids = st.uuids()


def written(message: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def assert_same_nodes(read: Any, written_nodes: list[NodeEndpoint]) -> None:
    assert [NodeEndpoint(n.node_id, n.host, n.port, n.rack) for n in read] == written_nodes


@given(
    version=st.sampled_from(PRODUCE_VERSIONS),
    transactional_id=st.none() | names,
    acks=st.integers(-2, 2),
    topics=st.lists(
        st.tuples(names, ids, st.lists(st.tuples(int32, st.none() | st.binary(max_size=300)))),
        max_size=3,
    ),
)
def test_produce_request_is_read_as_kio_writes_it(
    version: int, transactional_id: str | None, acks: int, topics: list[Any]
) -> None:
    module = schema(0, version).request_module
    message = entity(
        module,
        "ProduceRequest",
        transactional_id=transactional_id,
        acks=acks,
        timeout=1500,
        topic_data=[
            entity(
                module,
                "TopicProduceData",
                name=name,
                topic_id=topic_id,
                partition_data=[
                    entity(module, "PartitionProduceData", index=index, records=records)
                    for index, records in partitions
                ],
            )
            for name, topic_id, partitions in topics
        ],
    )
    body = written(message)
    request = produce.parse(memoryview(b"head" + body), 4, version)
    assert (request.transactional_id, request.acks, request.timeout_ms) == (
        transactional_id,
        acks,
        1500,
    )
    assert [
        (
            t.key,
            [(p.partition, None if p.records is None else bytes(p.records)) for p in t.partitions],
        )
        for t in request.topics
    ] == [
        (topic_id.bytes if version >= 13 else name, partitions)
        for name, topic_id, partitions in topics
    ]
    short = produce.parse_short(memoryview(b"head" + body), 4, version)
    assert short is None or short == request
    if version >= produce.FLEXIBLE and transactional_id is None and len(topics) == 1:
        is_short = all(records is not None for _, records in topics[0][2])
        assert (short is not None) == is_short
    for cut in range(len(body)):
        with pytest.raises(MalformedFrame):
            produce.parse(memoryview(body)[:cut], 0, version)
        assert produce.parse_short(memoryview(body)[:cut], 0, version) is None


def numbers(most: int) -> st.SearchStrategy[bytes]:
    """Variable-length numbers, also those with more bytes than they need."""
    return st.integers(0, most).map(uvarint) | st.sampled_from(
        [b"\x80\x00", b"\x81\x80\x00", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\xff\x01"]
    )


def uvarint(number: int) -> bytes:
    return bytes(encode_uvarint(number))


@st.composite
def nearly_requests(draw: st.DrawFn, version: int) -> bytes:
    """Bodies in the shape of a request, in which any field may be wrong."""
    parts = [
        draw(st.sampled_from([b"\0"] * 5 + [b"\1", b"\3ab"])),
        draw(st.binary(min_size=6, max_size=6)),
    ]
    parts.append(draw(st.just(b"\2") | numbers(3)))
    name = draw(st.binary(max_size=4) | st.sampled_from([b"topic", b"n" * 130, b"\xff"]))
    by_id = version >= produce.TOPIC_IDS
    parts.append(
        bytes(16)
        if by_id
        else draw(numbers(9)) + name
        if draw(st.booleans())
        else uvarint(len(name) + 1) + name
    )
    records = draw(st.lists(st.binary(max_size=140), max_size=4))
    parts.append(draw(numbers(5)) if draw(st.booleans()) else uvarint(len(records) + 1))
    for one in records:
        size = draw(st.just(uvarint(len(one) + 1)) | numbers(200))
        parts += [
            draw(st.binary(min_size=4, max_size=4)),
            size,
            one,
            draw(st.sampled_from([b"\0", b"\0", b"\1\0\0", b""])),
        ]
    parts.append(draw(st.sampled_from([b"\0\0", b"\0\0", b"\0\1\5\1x", b"\0", b"\0\0more"])))
    return b"".join(parts)


@settings(max_examples=examples(400))
@given(version=st.sampled_from(PRODUCE_VERSIONS), data=st.data())
def test_a_request_that_is_read_in_one_pass_is_as_it_is_read_step_by_step(
    version: int, data: st.DataObject
) -> None:
    body = data.draw(nearly_requests(version) | st.binary(max_size=60))
    short = produce.parse_short(memoryview(body), 0, version)
    if short is not None:
        assert short == produce.parse(memoryview(body), 0, version)


@given(
    version=st.sampled_from(PRODUCE_VERSIONS),
    topics=st.lists(
        st.tuples(
            names,
            ids,
            st.lists(
                st.builds(
                    produce.PartitionResult,
                    int32,
                    st.sampled_from([0, 3, 6, 45]),
                    int64,
                    int64,
                    st.none() | names,
                    st.none() | st.tuples(int32, int32),
                    append_time=st.sampled_from([-1, 0, 1_700_000_000_000]),
                    record_errors=st.sampled_from([(), ((3, "no key"),), ((0, "a"), (7, "é"))]),
                )
            ),
        ),
        max_size=3,
    ),
    nodes=endpoints,
)
def test_produce_response_is_read_by_kio(
    version: int, topics: list[Any], nodes: list[NodeEndpoint]
) -> None:
    frame = produce.encode(
        [
            produce.TopicResult(topic_id.bytes if version >= 13 else name, partitions)
            for name, topic_id, partitions in topics
        ],
        version,
        77,
        nodes,
    )
    message = schema(0, version)
    head = 9 if message.flexible_response else 8
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert int.from_bytes(frame[4:8], "big") == 77
    response, size = entity_reader(message.response_class)(frame, head)
    assert size == len(frame) - head
    if version >= 10:
        assert_same_nodes(response.node_endpoints, nodes)
    for answer, (name, topic_id, partitions) in zip(response.responses, topics, strict=True):
        assert (answer.topic_id if version >= 13 else answer.name) == (
            topic_id if version >= 13 else name
        )
        for got, result in zip(answer.partition_responses, partitions, strict=True):
            sent = (result.partition, result.error, result.base_offset)
            assert (got.index, got.error_code, got.base_offset) == sent
            time = got.log_append_time
            at_ms = -1 if time is None else int(time.timestamp() * 1000)
            assert at_ms == result.append_time
            if version >= 5:
                assert got.log_start_offset == result.log_start_offset
            if version >= 8:
                assert got.error_message == result.message
                errors = [(e.batch_index, e.batch_index_error_message) for e in got.record_errors]
                assert errors == list(result.record_errors)
            if version >= 10 and result.leader is not None:
                leader = got.current_leader
                assert (leader.leader_id, leader.leader_epoch) == result.leader


@given(
    version=st.sampled_from(FETCH_VERSIONS),
    session=st.tuples(int32, int32),
    topics=st.lists(
        st.tuples(
            names, ids, st.lists(st.builds(fetch.FetchPartition, int32, int32, int64, int32, int32))
        ),
        max_size=3,
    ),
    forgotten=st.lists(st.tuples(names, ids, st.lists(int32)), max_size=2),
    rack=names,
)
def test_fetch_request_is_read_as_kio_writes_it(
    version: int, session: tuple[int, int], topics: list[Any], forgotten: list[Any], rack: str
) -> None:
    module = schema(1, version).request_module
    values = {
        "max_wait": 500,
        "min_bytes": 1,
        "max_bytes": 2**20,
        "isolation_level": 1,
        "session_id": session[0],
        "session_epoch": session[1],
        "rack_id": rack,
        "replica_id": -1,
        "cluster_id": "c",
        "topics": [
            entity(
                module,
                "FetchTopic",
                topic=name,
                topic_id=topic_id,
                partitions=[
                    entity(
                        module,
                        "FetchPartition",
                        partition=p.partition,
                        current_leader_epoch=p.current_leader_epoch,
                        fetch_offset=p.fetch_offset,
                        last_fetched_epoch=p.last_fetched_epoch,
                        log_start_offset=5,
                        partition_max_bytes=p.max_bytes,
                    )
                    for p in partitions
                ],
            )
            for name, topic_id, partitions in topics
        ],
    }
    if version >= 7:
        values["forgotten_topics_data"] = [
            entity(module, "ForgottenTopic", topic=name, topic_id=topic_id, partitions=partitions)
            for name, topic_id, partitions in forgotten
        ]
    body = written(entity(module, "FetchRequest", **values))
    request = fetch.parse(memoryview(body), 0, version)
    assert request[:4] == (500, 1, 2**20, 1)
    if version >= 7:
        assert (request.session_id, request.session_epoch) == session
        assert request.forgotten == [
            (topic_id.bytes if version >= 13 else name, partitions)
            for name, topic_id, partitions in forgotten
        ]
    if version >= 11:
        assert request.rack_id == rack
    for got, (name, topic_id, partitions) in zip(request.topics, topics, strict=True):
        assert got.key == (topic_id.bytes if version >= 13 else name)
        for read, sent in zip(got.partitions, partitions, strict=True):
            assert (read.partition, read.fetch_offset, read.max_bytes) == (
                sent.partition,
                sent.fetch_offset,
                sent.max_bytes,
            )
            if version >= 9:
                assert read.current_leader_epoch == sent.current_leader_epoch
            if version >= 12:
                assert read.last_fetched_epoch == sent.last_fetched_epoch


results = st.builds(
    fetch.PartitionResult,
    int32,
    st.sampled_from([0, 1, 6]),
    int64,
    int64,
    int64,
    st.lists(st.binary(min_size=1, max_size=40).map(memoryview), max_size=3),
    st.none() | st.lists(st.tuples(int64, int64), max_size=2),
    st.none() | st.tuples(int32, int32),
    st.none() | st.tuples(int32, int64),
    int32,
)


@given(
    version=st.sampled_from(FETCH_VERSIONS),
    topics=st.lists(st.tuples(names, ids, st.lists(results, max_size=3)), max_size=3),
    nodes=endpoints,
)
def test_fetch_response_is_read_by_kio(
    version: int, topics: list[Any], nodes: list[NodeEndpoint]
) -> None:
    writer = fetch.ResponseWriter(version)
    writer.begin(0, 9, len(topics))
    for name, topic_id, partitions in topics:
        writer.begin_topic(topic_id.bytes if version >= 13 else name, len(partitions))
        for result in partitions:
            writer.partition(result)
        writer.end_topic()
    frame = b"".join(writer.finish(5, nodes))
    message = schema(1, version)
    head = 9 if message.flexible_response else 8
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    response, size = entity_reader(message.response_class)(frame, head)
    assert size == len(frame) - head
    if version >= 16:
        assert_same_nodes(response.node_endpoints, nodes)
    for answer, (name, topic_id, partitions) in zip(response.responses, topics, strict=True):
        assert (answer.topic_id if version >= 13 else answer.topic) == (
            topic_id if version >= 13 else name
        )
        for got, result in zip(answer.partitions, partitions, strict=True):
            assert (got.partition_index, got.error_code) == result[:2]
            assert (got.high_watermark, got.last_stable_offset) == result[2:4]
            assert (got.records or b"") == b"".join(result.records)
            assert (got.aborted_transactions is None) == (result.aborted is None)
            if version >= 11:
                assert got.preferred_read_replica == result.read_replica
            if version >= 12 and result.leader is not None:
                assert got.current_leader.leader_id == result.leader[0]
            if version >= 12 and result.diverging is not None:
                assert got.diverging_epoch.end_offset == result.diverging[1]


@settings(max_examples=examples(300))
@given(data=st.binary(max_size=200), key=st.sampled_from([0, 1, 3, 11, 18]), index=st.integers(0))
def test_random_bytes_give_a_clean_error_or_a_message(data: bytes, key: int, index: int) -> None:
    versions = {0: PRODUCE_VERSIONS, 1: FETCH_VERSIONS, 3: range(14), 11: range(10), 18: range(5)}
    version = versions[key][index % len(versions[key])]
    try:
        if key == 0:
            produce.parse(memoryview(data), 0, version)
        elif key == 1:
            fetch.parse(memoryview(data), 0, version)
        else:
            decode(schema(key, version).request_class, memoryview(data))
    except MalformedFrame:
        pass


def test_an_array_longer_than_its_frame_is_refused_before_anything_is_reserved() -> None:
    cls = schema(3, 9).request_class
    for length in (b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x80\x80"):
        with pytest.raises(MalformedFrame):
            decode(cls, memoryview(length + bytes(20)))


@given(data=st.data(), key=st.sampled_from([3, 11, 12, 14, 19, 18, 22, 23]))
def test_decode_reads_what_kio_reads(data: st.DataObject, key: int) -> None:
    version = data.draw(st.integers(0, 13))
    try:
        message = schema(key, version)
    except KeyError:
        return
    body = data.draw(st.binary(max_size=60))
    try:
        ours = decode(message.request_class, memoryview(body))
    except MalformedFrame:
        return
    theirs, _ = entity_reader(message.request_class)(body, 0)
    assert ours == theirs


def test_entities_convert_durations_and_drop_what_a_version_lacks() -> None:
    module = schema(3, 1).response_module
    answer = entity(module, "MetadataResponse", brokers=[], topics=[], cluster_id="x")
    assert answer.brokers == ()
    module = schema(3, 12).response_module
    answer = entity(module, "MetadataResponse", brokers=[], topics=[], throttle_time=5)
    assert answer.throttle_time == timedelta(milliseconds=5)
    assert UUID(int=0).int == 0
