"""A group as its coordinator keeps it: members, committed offsets, pending commits, timer."""

import asyncio
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeAlias

from lakehead.broker.coordinator.group.classic_group import ClassicGroup
from lakehead.broker.coordinator.group.consumer.consumer_group import ConsumerGroup
from lakehead.broker.coordinator.group.consumer_protocol import CONSUMER
from lakehead.broker.coordinator.group.messages import GroupSnapshot, GroupState
from lakehead.broker.coordinator.group.record_formats import CommittedOffset
from lakehead.broker.coordinator.group.unstored_changes import UnstoredChanges

TopicPartition: TypeAlias = tuple[str, int]
Offsets: TypeAlias = dict[TopicPartition, CommittedOffset]


class GroupKind(Enum):
    """Types of groups; the values are what ListGroups says."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"


class Topics(Protocol):
    """A set of topics, of which not all may be known."""

    def __contains__(self, topic: str, /) -> bool:
        """Return true if a topic is in the set."""


_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


@dataclass(slots=True)
class GroupCounts:
    """Counts of a node's groups, since its start."""

    rebalances_total: int = 0
    """Changes of group epochs of consumer groups."""


@dataclass(slots=True)
class GroupMetadata:
    """A group that is coordinated here."""

    group: ClassicGroup | ConsumerGroup
    offsets: Offsets = field(default_factory=dict)
    uncommitted: Counter[TopicPartition] = field(default_factory=Counter)
    """Commits under way, by partition: on their way to the log, not yet in `offsets`."""
    pending_transactional: dict[int, set[TopicPartition]] = field(default_factory=dict)
    """Partitions with commits in open transactions, by producer id."""
    last_commit: asyncio.Future[Exception | None] | None = None
    """The outcome of the newest of them, and of all that the same turn brought."""
    changes: UnstoredChanges = field(default_factory=UnstoredChanges)
    """Changes of what the group is."""
    empty_since_ms: int = -1
    stored_size: int = 0
    """Bytes of what is stored of its members."""
    charged: int = 0
    """Bytes that it takes of the memory of groups."""
    timer: asyncio.TimerHandle | None = None
    timer_deadline: float = 0.0

    def begin_commit(self, places: Iterable[TopicPartition]) -> None:
        """Offsets of these partitions are on their way to the log."""
        for place in places:
            self.uncommitted[place] = self.uncommitted.get(place, 0) + 1

    def end_commit(
        self, offsets: Mapping[TopicPartition, CommittedOffset], *, is_kept: bool
    ) -> None:
        """They are there, or will not be."""
        for place in offsets:
            left = self.uncommitted[place] - 1
            if left:
                self.uncommitted[place] = left
            else:
                del self.uncommitted[place]
        if is_kept:
            self.offsets.update(offsets)

    @property
    def is_empty(self) -> bool:
        """True while the group has no member, and none is about to be one."""
        if isinstance(self.group, ConsumerGroup):
            return not self.group.members
        return self.group.state is GroupState.EMPTY and not self.group.pending

    @property
    def kind(self) -> GroupKind:
        """The protocol of the group."""
        is_consumer = isinstance(self.group, ConsumerGroup)
        return GroupKind.CONSUMER if is_consumer else GroupKind.CLASSIC

    @property
    def protocol_type(self) -> str:
        """The protocol type; empty for a classic group that never had a member."""
        return CONSUMER if isinstance(self.group, ConsumerGroup) else self.group.protocol_type

    def consumes(self) -> Topics:
        """Return the topics that members subscribe to."""
        if isinstance(self.group, ConsumerGroup):
            return self.group.store.subscribed_topics()
        return Subscriptions(self.group.snapshot())

    @property
    def places(self) -> set[TopicPartition]:
        """Every partition with an offset in the log, or soon."""
        return set().union(self.offsets, self.uncommitted, self.unstable)

    @property
    def unstable(self) -> set[TopicPartition]:
        """Every partition whose offset an open transaction may change."""
        return set().union(*self.pending_transactional.values())

    def expired(self, now_ms: int, retention_ms: int) -> set[TopicPartition]:
        """Return the partitions whose offset has lived its time (KIP-211).

        That counts from the commit, and where the group had members, from when it had none any more
        too; while it has members, only of topics that they do not consume. A commit that names its
        own time ends with that.
        """
        since_ms = self._expires_since()
        if since_ms is None:
            return set()
        consumed = self.consumes()
        return {
            place
            for place, offset in self.offsets.items()
            if _deadline(offset, since_ms, retention_ms) <= now_ms
            and place[0] not in consumed
            and place not in self.uncommitted
        } - self.unstable

    def _expires_since(self) -> int | None:
        """Return the time before which no offset begins to age; None while none does."""
        group = self.group
        if isinstance(group, ConsumerGroup):
            return -1
        if not group.protocol_type:  # it never had a member: offsets of a simple consumer
            return -1
        if group.state is GroupState.EMPTY:
            return self.empty_since_ms
        is_known = group.state is GroupState.STABLE and group.protocol_type == CONSUMER
        return -1 if is_known else None


def _deadline(offset: CommittedOffset, since_ms: int, retention_ms: int) -> int:
    if offset.expire_timestamp_ms >= 0:
        return offset.expire_timestamp_ms
    return max(offset.commit_timestamp_ms, since_ms) + retention_ms


class Subscriptions:
    """The topics that the members of a group consume.

    They are in the members' metadata, in the format of the consumer protocol: version i16, then an
    array of strings. The topics of other protocols are unknown. If the metadata of a consumer
    cannot be read, every topic counts as subscribed to, as in Kafka: offsets in use are not deleted
    by mistake.
    """

    def __init__(self, group: GroupSnapshot) -> None:
        self._topics: frozenset[str] | None = frozenset()
        if group.protocol_type == CONSUMER and group.members:
            metadata = (member.subscription for member in group.members)
            self._topics = None if group.protocol_name is None else _topics(metadata)

    def __contains__(self, topic: str) -> bool:
        return self._topics is None or topic in self._topics


def _topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    topics: set[str] = set()
    try:
        for one in metadata:
            topics.update(_topics_of(one))
    except (struct.error, ValueError):
        return None
    return frozenset(topics)


def _topics_of(metadata: bytes) -> list[str]:
    _, count = _HEAD.unpack_from(metadata)
    position, topics = _HEAD.size, []
    for _ in range(count):
        (size,) = _LENGTH.unpack_from(metadata, position)
        position += _LENGTH.size
        name = metadata[position : position + size]
        if len(name) != size:
            raise ValueError("a topic's name is cut short")
        topics.append(name.decode())
        position += size
    return topics
