"""A member of a consumer group as its group keeps it: metadata, assignments, deadlines (KIP-848).

Three values of a member are stored: its metadata, the target that the assignor gave it, and
what it is assigned now. They are never changed in place: a value that changes is replaced, so that
the group and its log always agree.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

from lakehead.broker.coordinator.group.members import MEMBER_OBJECTS, cost_of

TopicPartitions: TypeAlias = Mapping[bytes, frozenset[int]]
"""Indexes of partitions by the id of their topic (16 bytes). A topic without any is left out."""

AssignmentEpochs: TypeAlias = Mapping[bytes, tuple[int, ...]]
"""By the id of a topic, the epoch in which each of its partitions was assigned to their member, in
the order of their indexes (KIP-1251). A topic without any is left out: its partitions were assigned
in the epoch of the member.
"""

NO_PARTITIONS: TopicPartitions = {}
FIRST_EPOCH = 1
"""The epoch of a group that nothing has changed yet."""
JOIN_EPOCH = 0
"""The epoch of a member that joins, or comes back after it was fenced."""
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
"""The epoch of a static member that left and may come back under a new member id."""
_PARTITION_COST = 40


class MemberState(IntEnum):
    """States of a member, as they are stored.

    The group waits for a member with UNREVOKED_PARTITIONS to give partitions back; a member with
    UNRELEASED_PARTITIONS waits for other members to give back what it is to have.
    """

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMetadata:
    """Metadata of a member that speaks the classic protocol: its protocols are (name,
    metadata), best first.
    """

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMetadata:
    """The subscription and identity of a member. `classic` is None for one that speaks the consumer
    protocol; `assignor` is None for one that leaves the choice to the broker.
    """

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMetadata | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentAssignment:
    """The partitions that a member may consume (`assigned`), and has to give back before it reaches
    the next epoch (`revoking`).
    """

    epoch: int = JOIN_EPOCH
    previous_epoch: int = JOIN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: TopicPartitions = field(default_factory=dict)
    revoking: TopicPartitions = field(default_factory=dict)
    assigned_epochs: AssignmentEpochs = field(default_factory=dict)
    revoking_epochs: AssignmentEpochs = field(default_factory=dict)

    def epochs_of_assigned(self, topic_id: bytes) -> dict[int, int]:
        """Return the epochs in which the partitions of a topic that the member may consume were
        assigned to it, by index.
        """
        return self._epochs(topic_id, self.assigned, self.assigned_epochs)

    def epochs_of(self, topic_id: bytes) -> dict[int, int]:
        """Return the epochs in which the partitions of a topic that the member has, or has to give
        back, were assigned to it, by index.
        """
        revoking = self._epochs(topic_id, self.revoking, self.revoking_epochs)
        return revoking | self.epochs_of_assigned(topic_id)

    def _epochs(
        self, topic_id: bytes, partitions: TopicPartitions, epochs: AssignmentEpochs
    ) -> dict[int, int]:
        indexes = sorted(partitions.get(topic_id, ()))
        if topic_id in epochs:
            return dict(zip(indexes, epochs[topic_id], strict=True))
        return dict.fromkeys(indexes, max(self.epoch, JOIN_EPOCH))

    def is_reconciled_to(self, epoch: int) -> bool:
        """Return true if the member has what the target of this epoch gives it."""
        return self.state is MemberState.STABLE and self.epoch == epoch


@dataclass(slots=True, kw_only=True)
class ConsumerMember:
    """One member. Deadlines are monotonic seconds, None while nothing is waited for."""

    member_id: str
    metadata: MemberMetadata = field(default_factory=MemberMetadata)
    current: CurrentAssignment = field(default_factory=CurrentAssignment)
    target: TopicPartitions = field(default_factory=dict)
    session_deadline: float | None = None
    """The member is fenced if it is silent until then."""
    revocation_deadline: float | None = None
    """The member is fenced if it has not given partitions back until then."""
    join_deadline: float | None = None
    """A classic member is fenced if it has not sent JoinGroup until then."""
    sync_deadline: float | None = None
    """A classic member is fenced if it has not sent SyncGroup until then."""

    @property
    def is_classic(self) -> bool:
        """Return true for a member that speaks the classic protocol."""
        return self.metadata.classic is not None

    @property
    def deadline(self) -> float | None:
        """Return the first of its deadlines."""
        deadlines = (
            self.session_deadline,
            self.revocation_deadline,
            self.join_deadline,
            self.sync_deadline,
        )
        return min((one for one in deadlines if one is not None), default=None)


def cost_of_metadata(member_id: str, metadata: MemberMetadata) -> int:
    """Return the memory that a member is counted with beside its partitions, in bytes."""
    texts = (
        *(member_id, metadata.instance_id, metadata.rack_id, metadata.client_id),
        *(metadata.client_host, metadata.regex, metadata.assignor),
    )
    protocols = () if metadata.classic is None else metadata.classic.protocols
    topics = ((topic, b"") for topic in metadata.topics)
    return MEMBER_OBJECTS + cost_of(texts, (*protocols, *topics))


def cost_of_epochs(epochs: AssignmentEpochs) -> int:
    """Return the memory that epochs of an assignment are counted with, in bytes."""
    return sum(_PARTITION_COST + 8 * len(of_topic) for of_topic in epochs.values())


def cost_of_partitions(partitions: TopicPartitions) -> int:
    """Return the memory that an assignment is counted with, in bytes."""
    return sum(_PARTITION_COST + 8 * len(indexes) for indexes in partitions.values())


def topic_partitions(pairs: Iterable[tuple[bytes, Collection[int]]]) -> TopicPartitions:
    """Return partitions by topic, of (topic id, indexes); a topic that is named twice has both."""
    found: dict[bytes, frozenset[int]] = {}
    for topic_id, indexes in pairs:
        if indexes:
            found[topic_id] = found.get(topic_id, frozenset()).union(indexes)
    return found


def is_within(inner: TopicPartitions, outer: TopicPartitions) -> bool:
    """Return true if every partition of the first is one of the second."""
    return all(indexes <= outer.get(topic_id, frozenset()) for topic_id, indexes in inner.items())


def overlap(one: TopicPartitions, other: TopicPartitions) -> bool:
    """Return true if a partition is in both."""
    return any(not indexes.isdisjoint(other.get(topic, ())) for topic, indexes in one.items())
