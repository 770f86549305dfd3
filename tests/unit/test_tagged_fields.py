"""Tagged fields of requests (KIP-482): those that are not known are skipped, and a client does not
decide how much work that is.
"""

import struct

import pytest

from lakehead.broker import api
from lakehead.broker.cluster.heartbeat import decode_heartbeat
from lakehead.broker.protocol import produce
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.decode import decode
from lakehead.broker.protocol.errors import MalformedFrame
from lakehead.broker.protocol.frame import HEADER_TAGS_MAX, read_header
from lakehead.storage.format.varint import encode_uvarint

REGISTRY = api.registry()
SOFTWARE = b"\x02a\x021"
"""The fields of ApiVersions 3: the client's name and version."""
PRODUCE, API_VERSIONS = 0, 18


def tags(count: int) -> bytes:
    """Return unknown tagged fields without content."""
    return encode_uvarint(count) + b"\x63\x00" * count


def header(key: int, version: int, count: int) -> bytes:
    return struct.pack(">hhih", key, version, 7, -1) + tags(count)


@pytest.mark.parametrize("count", [0, 1, 3, HEADER_TAGS_MAX])
def test_unknown_tagged_fields_are_skipped(count: int) -> None:
    frame = memoryview(header(API_VERSIONS, 3, count) + SOFTWARE + tags(count))
    found = read_header(frame, REGISTRY)
    request = decode(found.schema.request_class, frame, found.body)
    assert (request.client_software_name, request.client_software_version) == ("a", "1")


def test_a_header_with_very_many_tagged_fields_is_refused_before_they_are_read() -> None:
    for count in (HEADER_TAGS_MAX + 1, 8_000_000):
        with pytest.raises(MalformedFrame, match="tagged fields"):
            read_header(memoryview(header(API_VERSIONS, 3, count) + SOFTWARE), REGISTRY)


def test_tagged_fields_count_like_elements_of_arrays() -> None:
    request_class = schema(API_VERSIONS, 3).request_class
    body = memoryview(SOFTWARE + tags(50))
    decode(request_class, body, 0, 50)
    with pytest.raises(MalformedFrame, match="tagged fields"):
        decode(request_class, body, 0, 49)


def test_tagged_fields_of_all_partitions_of_a_produce_request_count_together() -> None:
    partitions = b"".join(struct.pack(">i", index) + b"\x00" + tags(10) for index in range(5))
    topic = b"\x02t" + encode_uvarint(6) + partitions + tags(0)
    body = memoryview(b"\x00" + struct.pack(">hi", 1, 1000) + b"\x02" + topic + tags(0))
    most = 1 + 5 + 5 * 10
    assert len(produce.parse(body, 0, 9, most).topics[0].partitions) == 5
    with pytest.raises(MalformedFrame, match="tagged fields"):
        produce.parse(body, 0, 9, most - 1)


def test_a_heartbeat_with_very_many_tagged_fields_is_refused() -> None:
    body = struct.pack(">iqqbb", 1, 1, 1, 0, 0) + tags(100_000)
    with pytest.raises(MalformedFrame, match="tagged fields"):
        decode_heartbeat(memoryview(body), 0)
