"""The consumer protocol that consumers carry inside of the classic group protocol: subscriptions in
JoinGroup, assignments in SyncGroup.

Big-endian. string: i16 length and UTF-8; bytes: i32 length and bytes, -1 is null; an array has an
i32 count::

    subscription  version i16, topics strings, user data bytes, owned partitions (1+),
                  generation i32 (2+), rack string|null (3+)
    assignment    version i16, partitions, user data bytes

Partitions are an array and each: topic string, indexes i32. A newer version has its fields behind
those that are known. Source: Kafka's message definitions ConsumerProtocolSubscription and
ConsumerProtocolAssignment.
"""

import struct
from dataclasses import dataclass

from lakehead.broker.coordinator.group.consumer.consumer_members import (
    TopicPartitions,
    topic_partitions,
)
from lakehead.broker.coordinator.group.topic_catalog import TopicCatalog
from lakehead.broker.coordinator.record_reader import RecordReader, UnknownRecord

CONSUMER = "consumer"
"""The protocol type of consumers."""
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_NEWEST_VERSION = 3
_TOPICS_MAX = 20_000
"""As many as a request may have elements."""
_OWNED_VERSION, _GENERATION_VERSION, _RACK_VERSION = 1, 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The topics of a consumer, and its partitions. `owned` are (topic, indexes)."""

    version: int
    topics: frozenset[str]
    owned: tuple[tuple[str, tuple[int, ...]], ...] = ()
    rack_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """The partitions of a consumer, (topic, indexes), and the data that its assignor adds."""

    partitions: tuple[tuple[str, tuple[int, ...]], ...]
    user_data: bytes = b""


def read_subscription(data: bytes) -> Subscription:
    """Return a subscription. Raises UnknownRecord."""
    reader = RecordReader(data)
    version = _version(reader)
    topics = frozenset(reader.string() or "" for _ in range(_count(reader)))
    _bytes(reader)
    owned = _partitions(reader) if version >= _OWNED_VERSION else ()
    if version >= _GENERATION_VERSION:
        reader.i32()
    rack_id = reader.string() if version >= _RACK_VERSION else None
    return Subscription(version=version, topics=topics, owned=owned, rack_id=rack_id)


def subscription_version(data: bytes) -> int:
    """Return the version of a subscription; 0 of bytes without one, which a protocol that the group
    does not use may have.
    """
    return max(_SHORT.unpack_from(data)[0], 0) if len(data) >= _SHORT.size else 0


def read_assignment(data: bytes) -> Assigned:
    """Return an assignment; nothing of empty bytes. Raises UnknownRecord."""
    if not data:
        return Assigned(partitions=())
    reader = RecordReader(data)
    _version(reader)
    return Assigned(partitions=_partitions(reader), user_data=_bytes(reader))


def write_assignment(partitions: TopicPartitions, catalog: TopicCatalog, version: int) -> bytes:
    """Return the bytes of an assignment, in the version that a consumer subscribed with; without
    topics that do not exist any more.
    """
    named = [(catalog.name_of(topic_id), indexes) for topic_id, indexes in partitions.items()]
    known = sorted((name, sorted(indexes)) for name, indexes in named if name is not None)
    parts = [_SHORT.pack(min(version, _NEWEST_VERSION)), _INT.pack(len(known))]
    for name, indexes in known:
        text = name.encode()
        parts += (_SHORT.pack(len(text)), text, _INT.pack(len(indexes)))
        parts.append(struct.pack(f">{len(indexes)}i", *indexes))
    parts.append(_INT.pack(-1))
    return b"".join(parts)


def by_topic_id(
    partitions: tuple[tuple[str, tuple[int, ...]], ...], catalog: TopicCatalog
) -> TopicPartitions:
    """Return partitions by the ids of their topics; without topics that do not exist."""
    found = ((catalog.find(name), indexes) for name, indexes in partitions)
    return topic_partitions(
        (topic.topic_id, indexes) for topic, indexes in found if topic is not None
    )


def _version(reader: RecordReader) -> int:
    version = reader.i16()
    if version < 0:
        raise UnknownRecord(f"consumer protocol of version {version}")
    return version


def _partitions(reader: RecordReader) -> tuple[tuple[str, tuple[int, ...]], ...]:
    found = []
    for _ in range(_count(reader)):
        name, count = reader.string() or "", max(reader.i32(), 0)
        found.append((name, struct.unpack(f">{count}i", reader.take(4 * count))))
    return tuple(found)


def _count(reader: RecordReader) -> int:
    count = reader.i32()
    if count > _TOPICS_MAX:
        raise UnknownRecord(f"{count} topics")
    return count


def _bytes(reader: RecordReader) -> bytes:
    size = reader.i32()
    return b"" if size < 0 else reader.take(size)
