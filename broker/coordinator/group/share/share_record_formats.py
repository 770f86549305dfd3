"""Keys and values of the records of share groups in `__consumer_offsets`, as Kafka writes them.

They are laid out as those of consumer groups (`consumer_record_formats`)::

    key 10   group, member   a member: rack string|null, client id string, client host string,
                             topics strings
    key 11   group           the group: epoch i32, hash of its topics i64
    key 12   group           the target assignment: epoch i32
    key 13   group, member   the target of a member: partitions
    key 14   group, member   the assignment of a member: epoch i32, previous epoch i32, state i8
                             (0), partitions
    key 15   group           partitions with a state of the group in `__share_group_state`:
                             being made, and made, each: topic id 16 bytes, name string, indexes
                             i32; being deleted: topic id and name

Source: Kafka's message definitions ShareGroupMemberMetadataKey to
ShareGroupStatePartitionMetadataValue, of 4.2.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from lakehead.broker.coordinator.group.consumer.consumer_members import TopicPartitions
from lakehead.broker.coordinator.group.consumer.consumer_record_formats import (
    NO_TAGS,
    FlexibleReader,
    GroupEpoch,
    Target,
    TargetEpoch,
    encode_partitions,
    encode_short_text,
    encode_text,
    encode_texts,
)
from lakehead.broker.coordinator.record_reader import RecordReader, UnknownRecord
from lakehead.storage.format.varint import encode_uvarint

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_VERSION = _SHORT.pack(0)
_STABLE = b"\x00"
_TOPIC_ID_SIZE = 16


class ShareRecordKind(IntEnum):
    """Subjects of the records of a share group."""

    MEMBER = 10
    GROUP = 11
    TARGET_EPOCH = 12
    TARGET = 13
    CURRENT = 14
    PARTITIONS = 15


SHARE_KINDS = frozenset(ShareRecordKind)
_NAMED = frozenset((ShareRecordKind.MEMBER, ShareRecordKind.TARGET, ShareRecordKind.CURRENT))


class ShareGroupKey(NamedTuple):
    """The key of a record of a share group; `member_id` of those about a member."""

    kind: ShareRecordKind
    group_id: str
    member_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareMemberMetadata:
    """The subscription and identity of a member."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareAssignment:
    """The partitions that a member has, and its epoch."""

    epoch: int = 0
    previous_epoch: int = 0
    assigned: TopicPartitions = field(default_factory=dict)


class KnownPartitions(NamedTuple):
    """Partitions of a topic, by the name that it had."""

    name: str
    indexes: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePartitions:
    """The partitions that a group has a state of, by topic id."""

    initializing: Mapping[bytes, KnownPartitions] = field(default_factory=dict)
    initialized: Mapping[bytes, KnownPartitions] = field(default_factory=dict)
    deleting: Mapping[bytes, str] = field(default_factory=dict)


ShareGroupValue: TypeAlias = (
    GroupEpoch | ShareMemberMetadata | TargetEpoch | Target | ShareAssignment | StatePartitions
)


class ShareGroupRecord(NamedTuple):
    """A record of a share group; without a value it deletes its key."""

    key: ShareGroupKey
    value: ShareGroupValue | None


def encode_share_key(key: ShareGroupKey) -> bytes:
    """Return the bytes of a key."""
    encoded = _SHORT.pack(key.kind) + encode_short_text(key.group_id)
    return encoded + encode_short_text(key.member_id) if key.kind in _NAMED else encoded


def decode_share_key(kind: int, reader: RecordReader) -> ShareGroupKey:
    """Return a key of which the kind was read, which is one of `SHARE_KINDS`. Raises
    UnknownRecord.
    """
    known = ShareRecordKind(kind)
    group_id = reader.string() or ""
    return ShareGroupKey(known, group_id, (reader.string() or "") if known in _NAMED else "")


def encode_share_value(value: ShareGroupValue) -> bytes:
    """Return the bytes of a value."""
    return _VERSION + _fields(value) + NO_TAGS


def _fields(value: ShareGroupValue) -> bytes:
    match value:
        case ShareMemberMetadata():
            texts = (value.rack_id, value.client_id, value.client_host)
            return b"".join(map(encode_text, texts)) + encode_texts(value.topics)
        case GroupEpoch():
            return _INT.pack(value.epoch) + _LONG.pack(value.topics_hash)
        case TargetEpoch():
            return _INT.pack(value.epoch)
        case Target():
            return encode_partitions(value.partitions)
        case ShareAssignment():
            epochs = _INT.pack(value.epoch) + _INT.pack(value.previous_epoch)
            return epochs + _STABLE + encode_partitions(value.assigned)
        case StatePartitions():
            deleting = [
                topic_id + encode_text(name) + NO_TAGS for topic_id, name in value.deleting.items()
            ]
            return (
                _named(value.initializing)
                + _named(value.initialized)
                + encode_uvarint(len(deleting) + 1)
                + b"".join(deleting)
            )


def _named(topics: Mapping[bytes, KnownPartitions]) -> bytes:
    parts = [encode_uvarint(len(topics) + 1)]
    for topic_id, (name, indexes) in topics.items():
        numbers = struct.pack(f">{len(indexes)}i", *sorted(indexes))
        count = encode_uvarint(len(indexes) + 1)
        parts += (topic_id, encode_text(name), count, numbers, NO_TAGS)
    return b"".join(parts)


def decode_share_value(kind: ShareRecordKind, data: bytes) -> ShareGroupValue:
    """Return a value. Raises UnknownRecord."""
    reader = FlexibleReader(data)
    version = reader.i16()
    if version != 0:
        raise UnknownRecord(f"value of version {version}")
    match kind:
        case ShareRecordKind.MEMBER:
            return ShareMemberMetadata(
                rack_id=reader.compact_text(),
                client_id=reader.compact_text() or "",
                client_host=reader.compact_text() or "",
                topics=frozenset(reader.texts()),
            )
        case ShareRecordKind.GROUP:
            return GroupEpoch(epoch=reader.i32(), topics_hash=reader.i64())
        case ShareRecordKind.TARGET_EPOCH:
            return TargetEpoch(epoch=reader.i32())
        case ShareRecordKind.TARGET:
            return Target(partitions=reader.partitions())
        case ShareRecordKind.CURRENT:
            epoch, previous_epoch = reader.i32(), reader.i32()
            reader.i8()
            return ShareAssignment(
                epoch=epoch, previous_epoch=previous_epoch, assigned=reader.partitions()
            )
        case ShareRecordKind.PARTITIONS:
            return StatePartitions(
                initializing=_read_named(reader),
                initialized=_read_named(reader),
                deleting=_read_topics(reader),
            )


def _read_named(reader: FlexibleReader) -> dict[bytes, KnownPartitions]:
    found = {}
    for _ in range(reader.uvarint() - 1):
        topic_id = reader.take(_TOPIC_ID_SIZE)
        name = reader.compact_text() or ""
        count = max(reader.uvarint() - 1, 0)
        indexes = struct.unpack(f">{count}i", reader.take(4 * count))
        found[topic_id] = KnownPartitions(name, frozenset(indexes))
        reader.tagged()
    return found


def _read_topics(reader: FlexibleReader) -> dict[bytes, str]:
    found = {}
    for _ in range(reader.uvarint() - 1):
        topic_id = reader.take(_TOPIC_ID_SIZE)
        found[topic_id] = reader.compact_text() or ""
        reader.tagged()
    return found
