"""The Produce request looked at in place, and its response: versions 3 to 13.

Records stay views into the frame. Since version 9 lengths are compact (unsigned varint of length +
1) and structures end with tagged fields; since 13 a topic is named by its id.
"""

import struct
from collections.abc import Collection
from functools import lru_cache

import msgspec

from lakehead.broker.protocol.decode import ELEMENTS_MAX, Cursor
from lakehead.broker.protocol.encode import compact_text, plain_text
from lakehead.broker.protocol.errors import MalformedFrame
from lakehead.broker.protocol.node_endpoints import NodeEndpoint, tagged_endpoints
from lakehead.storage.format.varint import encode_uvarint

NO_TIMESTAMP = -1
FLEXIBLE = 9
NODE_ENDPOINTS = 10
TOPIC_IDS = 13

_INT32 = struct.Struct(">i")
_ACKS_TIMEOUT = struct.Struct(">hi")
_PARTITION_RECORDS = struct.Struct(">ii")
_SHORT = struct.Struct(">BhiBB")
"""Transactional id (0: none), acks, timeout, topics + 1, and the length of the name + 1."""
_SHORT_PARTITION = struct.Struct(">iBBB")
"""Index, and the first bytes of the length of records + 1, which has no more than these three."""
_TOPIC_ID_END = 17
_ONE_BYTE = 0x80
"""Variable-length numbers below have one byte; all bytes but the last one have this bit."""
_TWO_BYTES = _ONE_BYTE + (_ONE_BYTE << 7)
"""These bits of the first two bytes."""

TopicKey = str | bytes
"""A topic's name, or its id as 16 bytes (version 13)."""


class PartitionData(msgspec.Struct, frozen=True):
    """One partition of a produce request: `records` is None if the client sent null."""

    partition: int
    records: memoryview | None


class TopicData(msgspec.Struct, frozen=True):
    """The partitions of one topic."""

    key: TopicKey
    partitions: list[PartitionData]


class ProduceRequest(msgspec.Struct, frozen=True):
    """A request; `timeout_ms` is how long the client waits."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[TopicData]


class PartitionResult(msgspec.Struct, frozen=True):
    """One partition of a produce response. `leader` is (node id, epoch) if the client should go
    there.
    """

    partition: int
    error: int
    base_offset: int
    log_start_offset: int
    message: str | None = None
    leader: tuple[int, int] | None = None
    append_time: int = NO_TIMESTAMP
    """When the batch was appended, in milliseconds, if its records have that for timestamp."""
    record_errors: tuple[tuple[int, str], ...] = ()
    """Places of records for which the batch was refused, and why."""


class TopicResult(msgspec.Struct, frozen=True):
    """The results of one topic, in the order of the request."""

    key: TopicKey
    partitions: list[PartitionResult]


def parse_short(frame: memoryview, position: int, version: int) -> ProduceRequest | None:
    """Return the request whose body begins at `position`, read in one pass, if it is as nearly all
    are: without a transaction, and with a few partitions of one topic. None for any other, and for
    a malformed one: `parse` reads it.
    """
    if version < FLEXIBLE:
        return None
    try:
        is_transactional, acks, timeout_ms, topics, size = _SHORT.unpack_from(frame, position)
        position += _SHORT.size
        if version >= TOPIC_IDS:
            size, position = _TOPIC_ID_END, position - 1
        if is_transactional or topics != 2 or not 0 < size < _ONE_BYTE:
            return None
        begin, position = position, position + size - 1
        name = frame[begin:position]
        key = bytes(name) if version >= TOPIC_IDS else str(name, "utf-8")
        left, end = frame[position] - 1, len(frame)
        if not 0 <= left < _ONE_BYTE:
            return None
        position += 1
        partitions = []
        while left:
            left -= 1
            index, length, second, third = _SHORT_PARTITION.unpack_from(frame, position)
            begin = position + 5
            if length >= _ONE_BYTE:
                if second < _ONE_BYTE:
                    length += (second << 7) - _ONE_BYTE
                    begin += 1
                elif third < _ONE_BYTE:
                    length += (second << 7) + (third << 14) - _TWO_BYTES
                    begin += 2
                else:
                    return None
            position = begin + length - 1
            if not length or position >= end or frame[position]:
                return None
            partitions.append(PartitionData(index, frame[begin:position]))
            position += 1
        if frame[position] or frame[position + 1]:
            return None
    except (struct.error, IndexError, UnicodeDecodeError):
        return None
    return ProduceRequest(None, acks, timeout_ms, [TopicData(key, partitions)])


def parse(
    frame: memoryview, position: int, version: int, elements_max: int = ELEMENTS_MAX
) -> ProduceRequest:
    """Return the request whose body begins at `position`. Raises MalformedFrame."""
    cursor = Cursor(frame, position, elements_max)
    try:
        if version >= FLEXIBLE:
            return _parse_flexible(cursor, version)
        return _parse_plain(cursor)
    except (struct.error, IndexError) as error:
        raise MalformedFrame(str(error)) from error


def _parse_flexible(cursor: Cursor, version: int) -> ProduceRequest:
    transactional_id = cursor.text(compact=True)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack(cursor.take(6))
    topics = []
    for _ in range(_some(cursor.count(compact=True))):
        by_id = version >= TOPIC_IDS
        key = bytes(cursor.take(16)) if by_id else _named(cursor.text(compact=True))
        count = _some(cursor.count(compact=True))
        partitions = [_flexible_partition_data(cursor) for _ in range(count)]
        cursor.skip_tags()
        topics.append(TopicData(key, partitions))
    cursor.skip_tags()
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _flexible_partition_data(cursor: Cursor) -> PartitionData:
    partition = cursor.fixed(_INT32)
    length = cursor.uvarint()
    records = cursor.take(length - 1) if length else None
    cursor.skip_tags()
    return PartitionData(partition, records)


def _parse_plain(cursor: Cursor) -> ProduceRequest:
    transactional_id = cursor.text(compact=False)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack(cursor.take(6))
    topics = []
    for _ in range(_some(cursor.count(compact=False))):
        name = _named(cursor.text(compact=False))
        partitions = []
        for _ in range(_some(cursor.count(compact=False))):
            index, size = _PARTITION_RECORDS.unpack(cursor.take(8))
            partitions.append(PartitionData(index, None if size == -1 else cursor.take(size)))
        topics.append(TopicData(name, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _some(count: int) -> int:
    if count < 0:
        raise MalformedFrame("an array is null that must not be")
    return count


def _named(name: str | None) -> str:
    if name is None:
        raise MalformedFrame("a topic without name")
    return name


_PARTITION_V3 = struct.Struct(">ihqq")
_PARTITION_V5 = struct.Struct(">ihqqq")
_PARTITION_V9 = struct.Struct(">ihqqqBBB")
_LEADER_TAG = struct.Struct(">BBBiiB")


def encode(
    topics: list[TopicResult],
    version: int,
    correlation_id: int,
    endpoints: Collection[NodeEndpoint] = (),
    throttle_ms: int = 0,
) -> bytes:
    """Return the whole response frame, length included. `endpoints` are of the nodes that results
    name as leaders.
    """
    if version >= FLEXIBLE and len(topics) == 1 and not endpoints:
        frame = _encode_short(topics[0], correlation_id, throttle_ms)
        if frame:
            return frame
    throttle = _INT32.pack(throttle_ms)
    if version >= FLEXIBLE:
        parts = [b"", encode_uvarint(len(topics) + 1)]
        for topic in topics:
            parts.append(topic.key if isinstance(topic.key, bytes) else compact_text(topic.key))
            parts.append(encode_uvarint(len(topic.partitions) + 1))
            parts.extend([_flexible_partition(result, version) for result in topic.partitions])
            parts.append(b"\x00")
        parts.append(throttle)
        parts.append(tagged_endpoints(endpoints if version >= NODE_ENDPOINTS else ()))
        size = sum(map(len, parts)) + 5
        parts[0] = _PARTITION_RECORDS.pack(size, correlation_id) + b"\x00"
        return b"".join(parts)
    parts = [b"", _INT32.pack(len(topics))]
    for topic in topics:
        assert isinstance(topic.key, str)
        parts.append(plain_text(topic.key))
        parts.append(_INT32.pack(len(topic.partitions)))
        parts.extend([_plain_partition(result, version) for result in topic.partitions])
    parts.append(throttle)
    parts[0] = _PARTITION_RECORDS.pack(sum(map(len, parts)) + 4, correlation_id)
    return b"".join(parts)


def _encode_short(topic: TopicResult, correlation_id: int, throttle_ms: int) -> bytes:
    """Return the response to a request with a few partitions of one topic, of which none has a
    message or another leader; nothing for any other.
    """
    key, results = topic.key, topic.partitions
    count = len(results)
    if count >= 0x7F:
        return b""
    name = key if isinstance(key, bytes) else _compact_name(key)
    numbers: list[int] = []
    for one in results:
        if one.record_errors or one.message is not None or one.leader is not None:
            return b""
        numbers += (*_numbers(one), 1, 0, 0)
    layout = _short_response(len(name), count)
    size = layout.size - 4
    return layout.pack(size, correlation_id, 0, 2, name, count + 1, *numbers, 0, throttle_ms, 0)


@lru_cache(maxsize=1024)
def _compact_name(name: str) -> bytes:
    return compact_text(name)


@lru_cache(maxsize=1024)
def _short_response(name_size: int, partitions: int) -> struct.Struct:
    """Return the layout: size, header, topics + 1, name, partitions + 1; the partitions; the tags
    of the topic, throttle time, the tags of the response.
    """
    return struct.Struct(f">iiBB{name_size}sB{partitions * 'ihqqqBBB'}BiB")


def _flexible_partition(result: PartitionResult, version: int) -> bytes:
    message, leader, records = result.message, result.leader, result.record_errors
    if message is None and leader is None and not records:
        return _PARTITION_V9.pack(*_numbers(result), 1, 0, 0)
    head = _PARTITION_V5.pack(*_numbers(result))
    tags = b"\x00"
    if leader is not None and version >= NODE_ENDPOINTS:
        tags = _LEADER_TAG.pack(1, 0, 9, leader[0], leader[1], 0)
    errors = [_INT32.pack(place) + compact_text(why) + b"\x00" for place, why in records]
    return b"".join((head, encode_uvarint(len(errors) + 1), *errors, compact_text(message), tags))


def _plain_partition(result: PartitionResult, version: int) -> bytes:
    if version >= 8:
        head, records = _PARTITION_V5.pack(*_numbers(result)), result.record_errors
        errors = [_INT32.pack(place) + plain_text(why) for place, why in records]
        return b"".join((head, _INT32.pack(len(errors)), *errors, plain_text(result.message)))
    if version >= 5:
        return _PARTITION_V5.pack(*_numbers(result))
    return _PARTITION_V3.pack(*_numbers(result)[:-1])


def _numbers(result: PartitionResult) -> tuple[int, int, int, int, int]:
    """Return the numbers with which every result begins, but for the last one before version 5."""
    return (
        result.partition,
        result.error,
        result.base_offset,
        result.append_time,
        result.log_start_offset,
    )
