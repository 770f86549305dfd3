"""Keys and values of the records of consumer groups in `__consumer_offsets`, as Kafka writes them.

A key opens with an i16 that says what the record is about, then has strings with an i16 length. A
value opens with an i16 version, 0, and is flexible: strings, bytes and arrays are compact (their
length plus one as a varint, 0 for null), and tagged fields end each structure::

    key 3    group               the group: epoch i32, tag 0: hash of its topics i64
    key 4    group               topics of the group; written by Kafka before 4.1, not read here
    key 5    group, member       a member: instance id string|null, rack string|null, client id
                                 string, client host string, topics strings, regular expression
                                 string|null, rebalance timeout i32 (ms), assignor string|null,
                                 tag 0 of a member that speaks the classic protocol: i8 1, session
                                 timeout i32 (ms), protocols and each: name string, metadata bytes
    key 6    group               the target assignment: epoch i32 (its time, tag 0, is left out)
    key 7    group, member       the target of a member: partitions
    key 8    group, member       the assignment of a member: epoch i32, previous epoch i32, state
                                 i8, partitions, partitions that it has to give back; tag 0 of each
                                 topic: the epochs in which they were assigned, i32 (KIP-1251)
    key 16   group, expression   a resolved regular expression: topics strings, version of the
                                 metadata i64, time i64 (ms)

Partitions are an array and each: topic id 16 bytes, indexes i32. A record without value deletes its
key. Source: Kafka's message definitions ConsumerGroupMetadataKey to
ConsumerGroupRegularExpressionValue, of 4.3.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from lakehead.broker.coordinator.group.consumer.consumer_members import (
    AssignmentEpochs,
    ClassicMetadata,
    CurrentAssignment,
    MemberMetadata,
    MemberState,
    TopicPartitions,
)
from lakehead.broker.coordinator.record_reader import RecordReader, UnknownRecord
from lakehead.storage.format.varint import encode_uvarint

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_VERSION = _SHORT.pack(0)
_TAG = 0
NO_TAGS = b"\x00"
_PRESENT = b"\x01"
_TOPIC_ID_SIZE = 16


class RecordKind(IntEnum):
    """Subjects of the records of a consumer group."""

    GROUP = 3
    TOPICS = 4
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8
    REGEX = 16


_NAMED = frozenset((RecordKind.MEMBER, RecordKind.TARGET, RecordKind.CURRENT, RecordKind.REGEX))


class ConsumerGroupKey(NamedTuple):
    """The key of a record of a consumer group. `name` is a member id, or a regular expression."""

    kind: RecordKind
    group_id: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEpoch:
    """The epoch of a group, and the hash of the topics that its members subscribe to."""

    epoch: int
    topics_hash: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetEpoch:
    """The group epoch that the target assignment is of."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The partitions that a member is to have."""

    partitions: TopicPartitions


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRegex:
    """The topics that a regular expression matched, in which version of the metadata and when."""

    topics: frozenset[str]
    version: int = 0
    timestamp_ms: int = 0


ConsumerGroupValue: TypeAlias = (
    GroupEpoch | MemberMetadata | TargetEpoch | Target | CurrentAssignment | ResolvedRegex
)


class ConsumerGroupRecord(NamedTuple):
    """A record of a consumer group; without a value it deletes its key."""

    key: ConsumerGroupKey
    value: ConsumerGroupValue | None


def encode_consumer_key(key: ConsumerGroupKey) -> bytes:
    """Return the bytes of a key."""
    encoded = _SHORT.pack(key.kind) + encode_short_text(key.group_id)
    return encoded + encode_short_text(key.name) if key.kind in _NAMED else encoded


def decode_consumer_key(kind: int, reader: RecordReader) -> ConsumerGroupKey:
    """Return a key of which the kind was read. Raises UnknownRecord."""
    try:
        known = RecordKind(kind)
    except ValueError:
        raise UnknownRecord(f"key of kind {kind}") from None
    group_id = reader.string() or ""
    name = (reader.string() or "") if known in _NAMED else ""
    return ConsumerGroupKey(known, group_id, name)


def encode_consumer_value(value: ConsumerGroupValue) -> bytes:
    """Return the bytes of a value."""
    return _VERSION + _fields(value)


def _fields(value: ConsumerGroupValue) -> bytes:
    match value:
        case GroupEpoch():
            # A default value of a tagged field is not written.
            tag = encode_tagged(_LONG.pack(value.topics_hash)) if value.topics_hash else NO_TAGS
            return _INT.pack(value.epoch) + tag
        case TargetEpoch():
            return _INT.pack(value.epoch) + NO_TAGS
        case Target():
            return encode_partitions(value.partitions) + NO_TAGS
        case CurrentAssignment():
            epochs = _INT.pack(value.epoch) + _INT.pack(value.previous_epoch)
            partitions = encode_partitions(value.assigned, value.assigned_epochs)
            partitions += encode_partitions(value.revoking, value.revoking_epochs)
            return epochs + bytes((value.state,)) + partitions + NO_TAGS
        case ResolvedRegex():
            times = _LONG.pack(value.version) + _LONG.pack(value.timestamp_ms)
            return encode_texts(value.topics) + times + NO_TAGS
        case MemberMetadata():
            tag = NO_TAGS if value.classic is None else encode_tagged(_classic(value.classic))
            return _member(value) + tag


def decode_consumer_value(kind: RecordKind, data: bytes) -> ConsumerGroupValue | None:
    """Return a value; None for one that is not needed. Raises UnknownRecord."""
    reader = FlexibleReader(data)
    version = reader.i16()
    if version != 0:
        raise UnknownRecord(f"value of version {version}")
    match kind:
        case RecordKind.GROUP:
            epoch = reader.i32()
            tagged = reader.tagged()
            return GroupEpoch(epoch=epoch, topics_hash=0 if tagged is None else tagged.i64())
        case RecordKind.TARGET_EPOCH:
            return TargetEpoch(epoch=reader.i32())
        case RecordKind.TARGET:
            return Target(partitions=reader.partitions())
        case RecordKind.CURRENT:
            epoch, previous_epoch = reader.i32(), reader.i32()
            state = _state(reader.i8())
            assigned, assigned_epochs = reader.dated_partitions()
            revoking, revoking_epochs = reader.dated_partitions()
            return CurrentAssignment(
                epoch=epoch,
                previous_epoch=previous_epoch,
                state=state,
                assigned=assigned,
                revoking=revoking,
                assigned_epochs=assigned_epochs,
                revoking_epochs=revoking_epochs,
            )
        case RecordKind.REGEX:
            topics = frozenset(reader.texts())
            return ResolvedRegex(topics=topics, version=reader.i64(), timestamp_ms=reader.i64())
        case RecordKind.MEMBER:
            return reader.member()
        case RecordKind.TOPICS:
            return None


def _state(number: int) -> MemberState:
    try:
        return MemberState(number)
    except ValueError:
        return MemberState.UNKNOWN


def _member(member: MemberMetadata) -> bytes:
    return b"".join(
        (
            encode_text(member.instance_id),
            encode_text(member.rack_id),
            encode_text(member.client_id),
            encode_text(member.client_host),
            encode_texts(member.topics),
            encode_text(member.regex),
            _INT.pack(member.rebalance_timeout_ms),
            encode_text(member.assignor),
        )
    )


def _classic(classic: ClassicMetadata) -> bytes:
    parts = [
        _PRESENT,
        _INT.pack(classic.session_timeout_ms),
        encode_uvarint(len(classic.protocols) + 1),
    ]
    for name, metadata in classic.protocols:
        parts += (encode_text(name), encode_uvarint(len(metadata) + 1), metadata, NO_TAGS)
    parts.append(NO_TAGS)
    return b"".join(parts)


def encode_tagged(data: bytes) -> bytes:
    return bytes((1, _TAG)) + encode_uvarint(len(data)) + data


def encode_partitions(partitions: TopicPartitions, epochs: AssignmentEpochs | None = None) -> bytes:
    parts = [encode_uvarint(len(partitions) + 1)]
    for topic_id, indexes in partitions.items():
        known = None if epochs is None else epochs.get(topic_id)
        tags = NO_TAGS if known is None else encode_tagged(_encode_numbers(known))
        parts += (topic_id, _encode_numbers(sorted(indexes)), tags)
    return b"".join(parts)


def _encode_numbers(numbers: Sequence[int]) -> bytes:
    return encode_uvarint(len(numbers) + 1) + struct.pack(f">{len(numbers)}i", *numbers)


def encode_short_text(text: str) -> bytes:
    data = text.encode()
    return _SHORT.pack(len(data)) + data


def encode_text(text: str | None) -> bytes:
    if text is None:
        return b"\x00"
    data = text.encode()
    return encode_uvarint(len(data) + 1) + data


def encode_texts(texts: Iterable[str]) -> bytes:
    encoded = [encode_text(text) for text in sorted(texts)]
    return encode_uvarint(len(encoded) + 1) + b"".join(encoded)


class FlexibleReader(RecordReader):
    """Takes the fields of flexible values."""

    def compact_text(self) -> str | None:
        size = self.uvarint() - 1
        return None if size < 0 else self.text(size)

    def texts(self) -> list[str]:
        return [self.compact_text() or "" for _ in range(self.uvarint() - 1)]

    def tagged(self) -> "FlexibleReader | None":
        """Take the tagged fields; return tag 0."""
        found = {self.uvarint(): self.take(self.uvarint()) for _ in range(self.uvarint())}
        return FlexibleReader(found[_TAG]) if _TAG in found else None

    def partitions(self) -> TopicPartitions:
        return self.dated_partitions()[0]

    def dated_partitions(self) -> tuple[TopicPartitions, AssignmentEpochs]:
        """Take partitions; return them, and the epochs in which they were assigned, as far as they
        are known.
        """
        found: dict[bytes, frozenset[int]] = {}
        epochs: dict[bytes, dict[int, int]] = {}
        for _ in range(self.uvarint() - 1):
            topic_id = self.take(_TOPIC_ID_SIZE)
            indexes = self.numbers()
            found[topic_id] = found.get(topic_id, frozenset()).union(indexes)
            tagged = self.tagged()
            known = () if tagged is None else tagged.numbers()
            if len(known) == len(indexes):
                epochs.setdefault(topic_id, {}).update(zip(indexes, known, strict=True))
        return found, {
            topic_id: tuple(of_topic[index] for index in sorted(of_topic))
            for topic_id, of_topic in epochs.items()
            if of_topic.keys() == found[topic_id]
        }

    def numbers(self) -> tuple[int, ...]:
        count = max(self.uvarint() - 1, 0)
        return struct.unpack(f">{count}i", self.take(4 * count))

    def member(self) -> MemberMetadata:
        instance_id, rack_id = self.compact_text(), self.compact_text()
        client_id, client_host = self.compact_text() or "", self.compact_text() or ""
        topics = frozenset(self.texts())
        regex = self.compact_text() or ""
        rebalance_timeout_ms = self.i32()
        assignor = self.compact_text()
        tagged = self.tagged()
        return MemberMetadata(
            instance_id=instance_id,
            rack_id=rack_id,
            client_id=client_id,
            client_host=client_host,
            topics=topics,
            regex=regex,
            rebalance_timeout_ms=rebalance_timeout_ms,
            assignor=assignor,
            classic=None if tagged is None else tagged.classic(),
        )

    def classic(self) -> ClassicMetadata | None:
        if self.i8() != 1:
            return None
        session_timeout_ms = self.i32()
        protocols = []
        for _ in range(self.uvarint() - 1):
            name = self.compact_text() or ""
            protocols.append((name, self.take(max(self.uvarint() - 1, 0))))
            self.tagged()
        return ClassicMetadata(session_timeout_ms=session_timeout_ms, protocols=tuple(protocols))
