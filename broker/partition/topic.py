"""A topic as the broker serves it: identity, the configs of the hot path, its partitions."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from kio.schema.errors import ErrorCode

from lakehead.broker.partition.record_rules import RecordRules
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.metadata.state import INTERNAL_TOPICS

if TYPE_CHECKING:
    from lakehead.broker.partition.partition import Partition

OFFSETS_TOPIC = "__consumer_offsets"
"""The log of group coordinators."""
TRANSACTIONS_TOPIC = "__transaction_state"
"""The log of transaction coordinators."""
_NAME_MAX = 249
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def is_valid_name(name: str) -> bool:
    """True for a name that Kafka allows for a topic."""
    return (
        0 < len(name) <= _NAME_MAX and name not in {".", ".."} and not set(name) - _NAME_CHARACTERS
    )


class Topic:
    """One topic. `partitions` are by index: None where the partition is not open on this node."""

    __slots__ = (
        "_append_time_ms",
        "id_bytes",
        "is_internal",
        "name",
        "partitions",
        "rules",
        "stream_ids",
        "topic_id",
    )

    def __init__(self, name: str, topic_id: str) -> None:
        self.name = name
        self.topic_id = topic_id
        self.id_bytes = bytes.fromhex(topic_id)
        self.is_internal = name in INTERNAL_TOPICS
        self.partitions: list[Partition | None] = []
        self.stream_ids: tuple[int, ...] = ()
        """The streams of the partitions, by index."""
        self.rules = RecordRules()
        """The rules for producers' batches."""
        self._append_time_ms = 0

    @property
    def uuid(self) -> UUID:
        """The topic id as messages carry it."""
        return UUID(bytes=self.id_bytes)

    def served(self, index: int) -> "Partition":
        """Return a partition that is open here, and not about to be another node's.

        Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER.
        """
        if not 0 <= index < len(self.partitions):
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        partition = self.partitions[index]
        if partition is None or not partition.stream.is_open:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        return partition

    def append_time(self, now_ms: int) -> int:
        """Return the time of a batch that is appended now: it does not go back when the clock does
        (milliseconds).
        """
        self._append_time_ms = max(self._append_time_ms, now_ms)
        return self._append_time_ms

    def extend(self, stream_ids: Sequence[int]) -> None:
        """Take over which streams the partitions have, and with it how many there are."""
        self.stream_ids = tuple(stream_ids)
        self.partitions.extend([None] * (len(stream_ids) - len(self.partitions)))


class TopicRegistry:
    """The topics of the cluster."""

    def __init__(self) -> None:
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[bytes, Topic] = {}

    def add(self, topic: Topic) -> None:
        """Serve a topic."""
        self.by_name[topic.name] = topic
        self.by_id[topic.id_bytes] = topic

    def remove(self, topic: Topic) -> None:
        """Serve a topic no more."""
        self.by_id.pop(topic.id_bytes, None)
        if self.by_name.get(topic.name) is topic:
            del self.by_name[topic.name]

    def led(self) -> "Iterator[Partition]":
        """Yield the partitions that this node leads."""
        for topic in self.by_name.values():
            yield from (partition for partition in topic.partitions if partition is not None)

    def find(self, key: str | bytes) -> Topic | None:
        """Return the topic of a name, or of an id of 16 bytes."""
        return self.by_name.get(key) if isinstance(key, str) else self.by_id.get(key)

    def is_current(self, name: str, topic_id: bytes | None) -> bool:
        """True if a topic has this name, and this id (16 bytes) where one is given: it is not a
        topic of the name that was deleted before.
        """
        topic = self.by_name.get(name)
        return topic is not None and topic_id in {None, topic.id_bytes}

    def partition(self, key: str | bytes, index: int) -> "Partition | None":
        """Return a partition that is open here, None otherwise."""
        topic = self.find(key)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]
