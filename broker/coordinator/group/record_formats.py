"""Keys and values of the records in `__consumer_offsets`, byte by byte as Kafka writes them.

Big-endian. string: i16 length and UTF-8, -1 is null; bytes: i32 length and bytes. Both key and
value open with an i16: of a key it says what the record is about, of a value its version::

    key 0, 1   a committed offset: group string, topic string, partition i32
       value   offset i64, leader epoch i32 (3+), metadata string, commit timestamp i64 (ms),
               expire timestamp i64 (version 1 only); version 4 is flexible: metadata is a compact
               string, and tag 0 is the topic's id (16 bytes)
    key 2      a group: group string
       value   protocol type string, generation i32, protocol string|null, leader string|null,
               state timestamp i64 (2+, ms), members i32 count and each: member id string,
               instance id string|null (3+), client id string, client host string,
               rebalance timeout i32 (1+, ms), session timeout i32 (ms), subscription bytes,
               assignment bytes
    key 3...   a consumer group: see `consumer_record_formats`

Written are, as by Kafka: key 1 with a value of version 4, which tools of Kafka 3.5 and later read
(KIP-915), and of version 1 for an offset that names its own end, which has no place for a topic id;
key 2 with a value of version 3. Read are all versions listed. A record without value deletes its
key. Source: Kafka's message definitions OffsetCommitKey, OffsetCommitValue, GroupMetadataKey,
GroupMetadataValue.
"""

import struct
from dataclasses import dataclass

from lakehead.broker.coordinator.group.consumer.consumer_record_formats import (
    ConsumerGroupKey,
    decode_consumer_key,
)
from lakehead.broker.coordinator.group.messages import GroupSnapshot, MemberSnapshot
from lakehead.broker.coordinator.group.share.share_record_formats import (
    SHARE_KINDS,
    ShareGroupKey,
    decode_share_key,
)
from lakehead.broker.coordinator.record_reader import RecordReader, UnknownRecord
from lakehead.storage.format.varint import encode_uvarint

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_FLEXIBLE_HEAD = struct.Struct(">hqi")

_OFFSET_KEYS = (0, 1)
_OFFSET_KEY = _SHORT.pack(_OFFSET_KEYS[1])
_GROUP_KEY = 2
_GROUP_VERSION = 3
_EXPIRING_VERSION = 1
_FLEXIBLE_VERSION = 4
_TOPIC_ID_TAG, _TOPIC_ID_SIZE = 0, 16
_TOPIC_ID_HEAD = bytes((_TOPIC_ID_TAG, _TOPIC_ID_SIZE))
_NO_TIMESTAMP = -1
_NO_LEADER_EPOCH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetKey:
    """The key of a committed offset."""

    group_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKey:
    """The group that a snapshot is of."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """A committed offset. `leader_epoch` is -1 when the client gave none."""

    offset: int
    leader_epoch: int = _NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = _NO_TIMESTAMP
    expire_timestamp_ms: int = _NO_TIMESTAMP
    """When it ends, for a commit that said so; without one the broker's retention time holds."""
    topic_id: bytes | None = None
    """The id of the topic that it was committed of (16 bytes), where it is known: a topic of the
    same name that is made later has another.
    """


def encode_key(key: OffsetKey | GroupKey) -> bytes:
    """Return the key's bytes."""
    if isinstance(key, GroupKey):
        return _SHORT.pack(_GROUP_KEY) + _string(key.group_id)
    return _OFFSET_KEY + _string(key.group_id) + _string(key.topic) + _INT.pack(key.partition)


def encode_offset(value: CommittedOffset) -> bytes:
    """Return the value of a committed offset."""
    if value.expire_timestamp_ms >= 0:
        return b"".join(
            (
                _SHORT.pack(_EXPIRING_VERSION),
                _LONG.pack(value.offset),
                _string(value.metadata),
                _LONG.pack(value.commit_timestamp_ms),
                _LONG.pack(value.expire_timestamp_ms),
            )
        )
    metadata = value.metadata.encode()
    tag = b"" if value.topic_id is None else _TOPIC_ID_HEAD + value.topic_id
    return b"".join(
        (
            _FLEXIBLE_HEAD.pack(_FLEXIBLE_VERSION, value.offset, value.leader_epoch),
            encode_uvarint(len(metadata) + 1),
            metadata,
            _LONG.pack(value.commit_timestamp_ms),
            b"\x01" if tag else b"\x00",
            tag,
        )
    )


def encode_group(value: GroupSnapshot) -> bytes:
    """Return the value of a group."""
    parts = [
        _SHORT.pack(_GROUP_VERSION),
        _string(value.protocol_type),
        _INT.pack(value.generation),
        _string(value.protocol_name),
        _string(value.leader),
        _LONG.pack(value.state_timestamp_ms),
        _INT.pack(len(value.members)),
    ]
    for member in value.members:
        parts += (
            _string(member.member_id),
            _string(member.instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _INT.pack(member.rebalance_timeout_ms),
            _INT.pack(member.session_timeout_ms),
            _bytes(member.subscription),
            _bytes(member.assignment),
        )
    return b"".join(parts)


def decode_key(data: bytes) -> OffsetKey | GroupKey | ConsumerGroupKey | ShareGroupKey:
    """Return what a record is about. Raises UnknownRecord."""
    reader = RecordReader(data)
    kind = reader.i16()
    if kind in _OFFSET_KEYS:
        group_id, topic = _text(reader), _text(reader)
        return OffsetKey(group_id=group_id, topic=topic, partition=reader.i32())
    if kind == _GROUP_KEY:
        return GroupKey(group_id=_text(reader))
    if kind in SHARE_KINDS:
        return decode_share_key(kind, reader)
    return decode_consumer_key(kind, reader)


def decode_offset(data: bytes) -> CommittedOffset:
    """Return a committed offset. Raises UnknownRecord."""
    reader = RecordReader(data)
    version = _version(reader)
    offset = reader.i64()
    leader_epoch = reader.i32() if version >= 3 else _NO_LEADER_EPOCH
    is_flexible = version == _FLEXIBLE_VERSION
    metadata = reader.text(reader.uvarint() - 1) if is_flexible else _text(reader)
    return CommittedOffset(
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        commit_timestamp_ms=reader.i64(),
        expire_timestamp_ms=reader.i64() if version == _EXPIRING_VERSION else _NO_TIMESTAMP,
        topic_id=_topic_id(reader) if is_flexible else None,
    )


def _topic_id(reader: RecordReader) -> bytes | None:
    """Take the tagged fields at the end of a flexible value; return that of the topic's id."""
    tags = {reader.uvarint(): reader.take(reader.uvarint()) for _ in range(reader.uvarint())}
    topic_id = tags.get(_TOPIC_ID_TAG)
    if topic_id is not None and len(topic_id) != _TOPIC_ID_SIZE:
        raise UnknownRecord(f"a topic id of {len(topic_id)} bytes")
    return topic_id


def decode_group(data: bytes) -> GroupSnapshot:
    """Return a group. Raises UnknownRecord, also for version 4, which nothing writes yet."""
    reader = RecordReader(data)
    version = _version(reader)
    if version == _FLEXIBLE_VERSION:
        raise UnknownRecord("group value of version 4")
    protocol_type = _text(reader)
    generation = reader.i32()
    protocol_name, leader = reader.string(), reader.string()
    timestamp = reader.i64() if version >= 2 else _NO_TIMESTAMP
    members = tuple(_member(reader, version) for _ in range(reader.i32()))
    return GroupSnapshot(
        protocol_type=protocol_type,
        generation=generation,
        protocol_name=protocol_name,
        leader=leader,
        members=members,
        state_timestamp_ms=timestamp,
    )


def _member(reader: RecordReader, version: int) -> MemberSnapshot:
    member_id = _text(reader)
    instance_id = reader.string() if version >= 3 else None
    client_id, client_host = _text(reader), _text(reader)
    rebalance_timeout_ms = reader.i32() if version >= 1 else None
    session_timeout_ms = reader.i32()
    return MemberSnapshot(
        member_id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=rebalance_timeout_ms or session_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        subscription=_data(reader),
        assignment=_data(reader),
    )


def _string(text: str | None) -> bytes:
    if text is None:
        return _SHORT.pack(-1)
    data = text.encode()
    return _SHORT.pack(len(data)) + data


def _bytes(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _version(reader: RecordReader) -> int:
    version = reader.i16()
    if not 0 <= version <= _FLEXIBLE_VERSION:
        raise UnknownRecord(f"value of version {version}")
    return version


def _text(reader: RecordReader) -> str:
    return reader.string() or ""


def _data(reader: RecordReader) -> bytes:
    return reader.take(reader.i32())
