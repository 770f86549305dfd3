"""The protocol of share groups (KIP-932) as a synchronous state machine.

`ShareGroup` takes one event at a time together with the present monotonic time, changes its state
and gathers the records to store. It has no socket, log, task or clock.

The group epoch grows when members, their subscriptions or their topics change. With a heartbeat
there is a target assignment of that epoch, `assignment_interval_ms` after the one before at the
earliest, and each member has it with its next heartbeat: partitions are shared, so no member waits
for another. A member gets only partitions of which the group has a state in `__share_group_state`:
`to_initialize` returns those that have none yet.

A coordinator notes first that it is about to begin states (`initializing`) or to delete them
(`deleting`), as Kafka does, and that it has done so afterwards (`initialized`, `deleted`). One that
cannot store the first note was followed by another, and must not touch a state.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.consumer.consumer_members import (
    FIRST_EPOCH,
    JOIN_EPOCH,
    TopicPartitions,
    cost_of_partitions,
)
from lakehead.broker.coordinator.group.consumer.consumer_record_formats import (
    GroupEpoch,
    Target,
    TargetEpoch,
)
from lakehead.broker.coordinator.group.members import MEMBER_OBJECTS, cost_of
from lakehead.broker.coordinator.group.messages import GroupState
from lakehead.broker.coordinator.group.share.share_assignor import assign
from lakehead.broker.coordinator.group.share.share_record_formats import (
    KnownPartitions,
    ShareAssignment,
    ShareGroupKey,
    ShareGroupRecord,
    ShareGroupValue,
    ShareMemberMetadata,
    ShareRecordKind,
    StatePartitions,
)
from lakehead.broker.coordinator.group.topic_catalog import KnownTopic, TopicCatalog
from lakehead.broker.protocol.errors import KafkaError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupSettings:
    """Limits of share groups, named as Kafka's broker settings are."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 200
    assignment_interval_ms: int = 1_000
    """Shortest time between two target assignments of a group; 0: each change has its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHeartbeat:
    """A ShareGroupHeartbeat. None means what was said before."""

    member_id: str
    epoch: int
    client_id: str = ""
    client_host: str = ""
    rack_id: str | None = None
    topics: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHeartbeatResult:
    """The response to a ShareGroupHeartbeat. `assignment` is None where it did not change."""

    member_id: str
    epoch: int
    heartbeat_interval_ms: int = 0
    assignment: TopicPartitions | None = None


@dataclass(slots=True)
class ShareGroupMember:
    """One member. The deadline is in monotonic seconds."""

    member_id: str
    metadata: ShareMemberMetadata = field(default_factory=ShareMemberMetadata)
    current: ShareAssignment = field(default_factory=ShareAssignment)
    target: TopicPartitions = field(default_factory=dict)
    session_deadline: float = 0.0

    @property
    def cost(self) -> int:
        """The memory that it is counted with, in bytes."""
        partitions = cost_of_partitions(self.target) + cost_of_partitions(self.current.assigned)
        return _cost_of_metadata(self.member_id, self.metadata) + partitions


class ShareGroup:
    """One share group. `catalog` returns the topics as they are now, `settings` the limits."""

    def __init__(
        self,
        group_id: str,
        settings: Callable[[], ShareGroupSettings],
        catalog: Callable[[], TopicCatalog],
    ) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        """The group epoch."""
        self.state_epoch = 0
        """The latest group epoch in which states were made."""
        self.target_epoch = FIRST_EPOCH
        """The group epoch that the target assignment is of."""
        self.members: dict[str, ShareGroupMember] = {}
        self.partitions = StatePartitions()
        """The partitions that the group has a state of."""
        self._topics_hash = 0
        self._assigned_at = -math.inf
        self._settings = settings
        self._catalog = catalog
        self._records: list[ShareGroupRecord] = []
        self._stored: set[ShareGroupKey] = set()
        self._members_cost = 0
        self._subscribers: Counter[str] = Counter()
        self._known_catalog: TopicCatalog | None = None
        """The topics of which the group epoch has the hash."""
        self._is_unassigned: bool | None = None
        self._missing: tuple[TopicCatalog, dict[bytes, frozenset[int]]] | None = None
        """The results of `_has_unassigned` and `to_initialize`, until something changes."""

    # State.

    @property
    def state(self) -> GroupState:
        """The state as ShareGroupDescribe and ListGroups name it."""
        return GroupState.STABLE if self.members else GroupState.EMPTY

    @property
    def keys(self) -> Iterable[ShareGroupKey]:
        """The keys of all records that the log has of the group, or will have."""
        return self._stored

    @property
    def cost(self) -> int:
        """The memory that its members are counted with, in bytes: they are kept, and stored once
        more.
        """
        return 2 * self._members_cost

    def take_records(self) -> list[ShareGroupRecord]:
        """Return the records that were gathered, in the order in which they are to be stored."""
        records, self._records = self._records, []
        return records

    def restore(self, records: Iterable[ShareGroupRecord], now: float) -> None:
        """Take over the last records of the log. Members have a session timeout to send a sign of
        life.
        """
        for record in records:
            self._apply(record)
        self.state_epoch = self.epoch
        for member in self.members.values():
            self._touch(member, now)

    def next_deadline(self) -> float | None:
        """Return when `tick` may have something to do, if nothing else happens."""
        return min((one.session_deadline for one in self.members.values()), default=None)

    # Events.

    def heartbeat(
        self, request: ShareHeartbeat, now: float, room: float = math.inf
    ) -> ShareHeartbeatResult:
        """Handle a heartbeat of a member that joins or stays. `room`: bytes that the groups of the
        node may still grow by. Raises UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH,
        GROUP_MAX_SIZE_REACHED.
        """
        member = self._find(request)
        before = member.metadata if member is not None else ShareMemberMetadata()
        metadata = ShareMemberMetadata(
            rack_id=before.rack_id if request.rack_id is None else request.rack_id,
            client_id=request.client_id,
            client_host=request.client_host,
            topics=before.topics if request.topics is None else request.topics,
        )
        is_pending = self._has_unassigned()
        if member is None or metadata != before:
            known = 0 if member is None else _cost_of_metadata(member.member_id, before)
            growth = _cost_of_metadata(request.member_id, metadata) - known
            if 2 * growth > max(room, 0):
                raise KafkaError(ErrorCode.group_max_size_reached, "No memory is left for members.")
            self._put(ShareRecordKind.MEMBER, metadata, request.member_id)
        is_new = member is None or metadata.topics != before.topics
        self._refresh(is_changed=is_new or is_pending)
        self._update_target(now)
        member = self.members[request.member_id]
        assigned = self._allowed(member)
        has_changed = member.current.assigned != assigned
        if has_changed or member.current.epoch != self.target_epoch:
            current = ShareAssignment(
                epoch=self.target_epoch,
                previous_epoch=member.current.epoch,
                assigned=assigned,
            )
            self._put(ShareRecordKind.CURRENT, current, member.member_id)
        self._touch(member, now)
        is_shown = has_changed or request.epoch == JOIN_EPOCH or request.topics is not None
        return ShareHeartbeatResult(
            member_id=member.member_id,
            epoch=member.current.epoch,
            heartbeat_interval_ms=self._settings().heartbeat_interval_ms,
            assignment=member.current.assigned if is_shown else None,
        )

    def leave(self, member_id: str, epoch: int) -> ShareHeartbeatResult:
        """Handle a heartbeat of a member that leaves. Raises UNKNOWN_MEMBER_ID."""
        if member_id not in self.members:
            raise self._unknown(member_id)
        self._remove([member_id])
        return ShareHeartbeatResult(member_id=member_id, epoch=epoch)

    def tick(self, now: float) -> None:
        """Let time pass: fence the silent."""
        self._remove(
            [one.member_id for one in self.members.values() if one.session_deadline <= now]
        )

    def to_initialize(self) -> dict[bytes, frozenset[int]]:
        """Return the partitions that members subscribe to and the group has no state of."""
        catalog = self._catalog()
        if self._missing is not None and self._missing[0] is catalog:
            return self._missing[1]
        found = {}
        for topic in self._subscribed():
            known = self.partitions.initialized.get(topic.topic_id)
            missing = frozenset(range(topic.partition_count)) - (known.indexes if known else set())
            if missing:
                found[topic.topic_id] = missing
        self._missing = catalog, found
        return found

    def initializing(self, partitions: TopicPartitions) -> int:
        """States of these partitions are about to begin; return their epoch."""
        known = self.partitions
        self._set_partitions(
            replace(
                known,
                initializing=self._with(known.initializing, partitions),
                deleting=_without(known.deleting, partitions),
            )
        )
        self.state_epoch = self.epoch
        return self.epoch

    def initializing_again(self, partitions: TopicPartitions) -> int:
        """States of these partitions are about to begin, and some of them have one; return the
        epoch, which fences leaders with earlier states. The group epoch grows if no member left
        since those were made.
        """
        if self.state_epoch >= self.epoch:
            self._refresh(is_changed=True)
        return self.initializing(partitions)

    def initialized(self, partitions: TopicPartitions) -> None:
        """The group has a state of these partitions now: a heartbeat has them assigned."""
        known = self.partitions
        begun = {
            key: KnownPartitions(one.name, one.indexes - partitions.get(key, frozenset()))
            for key, one in known.initializing.items()
        }
        self._set_partitions(
            replace(
                known,
                initializing={key: one for key, one in begun.items() if one.indexes},
                initialized=self._with(known.initialized, partitions),
            )
        )

    def deleting(self, topic_ids: Iterable[bytes]) -> TopicPartitions:
        """The states of these topics are about to be deleted; return the partitions that may have
        one.
        """
        known, catalog = self.partitions, self._catalog()
        noted = known.initializing.keys() | known.initialized.keys() | known.deleting.keys()
        names = {key: catalog.name_of(key) for key in topic_ids if key in noted}
        topics = catalog.found(name for name in names.values() if name is not None)
        self._set_partitions(
            StatePartitions(
                initializing=_without(known.initializing, names),
                initialized=_without(known.initialized, names),
                deleting={**known.deleting, **{one.topic_id: one.name for one in topics}},
            )
        )
        return {one.topic_id: frozenset(range(one.partition_count)) for one in topics}

    def deleted(self, topic_ids: Collection[bytes]) -> None:
        """The states of these topics are deleted."""
        known = self.partitions
        self._set_partitions(replace(known, deleting=_without(known.deleting, topic_ids)))

    # Inside.

    def _find(self, request: ShareHeartbeat) -> ShareGroupMember | None:
        """Return the member that sent a heartbeat; None for a new one."""
        member = self.members.get(request.member_id)
        if member is None:
            if request.epoch != JOIN_EPOCH:
                raise self._unknown(request.member_id)
            limit = self._settings().max_size
            if len(self.members) >= limit:
                raise KafkaError(
                    ErrorCode.group_max_size_reached,
                    f"The share group has reached its maximum capacity of {limit} members.",
                )
            return None
        current = member.current
        if request.epoch not in {JOIN_EPOCH, current.epoch, current.previous_epoch}:
            word = "greater" if request.epoch > current.epoch else "smaller"
            raise KafkaError(
                ErrorCode.fenced_member_epoch,
                f"The share group member has a {word} member epoch ({request.epoch}) than the one "
                f"known by the group coordinator ({current.epoch}). The member must abandon all "
                "its partitions and rejoin.",
            )
        return member

    def _unknown(self, member_id: str) -> KafkaError:
        return KafkaError(
            ErrorCode.unknown_member_id,
            f"Member {member_id} is not a member of group {self.group_id}.",
        )

    def _subscribed(self) -> list[KnownTopic]:
        return self._catalog().found(self._subscribers)

    def _refresh(self, *, is_changed: bool) -> None:
        """Let the group epoch grow after a change of the group, or of the topics of its members."""
        catalog = self._catalog()
        if not is_changed and catalog is self._known_catalog:
            return
        self._known_catalog = catalog
        topics_hash = catalog.hash_of(self._subscribers)
        if is_changed or topics_hash != self._topics_hash:
            epoch = GroupEpoch(epoch=self.epoch + 1, topics_hash=topics_hash)
            self._put(ShareRecordKind.GROUP, epoch)

    def _has_unassigned(self) -> bool:
        """Return true if no assignment is due, and members subscribe to partitions with a state
        that none of them is to have.
        """
        if not self.members or self.target_epoch < self.epoch:
            return False
        if self._is_unassigned is None:
            self._is_unassigned = self._find_unassigned()
        return self._is_unassigned

    def _find_unassigned(self) -> bool:
        given: dict[bytes, set[int]] = {}
        for member in self.members.values():
            for topic_id, indexes in member.target.items():
                given.setdefault(topic_id, set()).update(indexes)
        return any(
            known.name in self._subscribers and known.indexes != given.get(topic_id, set())
            for topic_id, known in self.partitions.initialized.items()
        )

    def _allowed(self, member: ShareGroupMember) -> TopicPartitions:
        """Return those of a member's target that are of its topics: the target may be older."""
        ids = {topic.topic_id for topic in self._catalog().found(member.metadata.topics)}
        return {key: indexes for key, indexes in member.target.items() if key in ids}

    def _update_target(self, now: float) -> None:
        """Make the target assignment of the group epoch, unless the one before is too recent."""
        if self.epoch <= self.target_epoch:
            return
        if now < self._assigned_at + self._settings().assignment_interval_ms / 1000:
            return
        topics = {topic.name: topic for topic in self._subscribed()}
        partitions = {}
        for topic in topics.values():
            known = self.partitions.initialized.get(topic.topic_id)
            if known is not None:
                partitions[topic.topic_id] = known.indexes
        subscriptions = {
            member.member_id: frozenset(
                topics[name].topic_id for name in member.metadata.topics if name in topics
            )
            for member in self.members.values()
        }
        for member_id, target in assign(subscriptions, partitions).items():
            if target != self.members[member_id].target:
                self._put(ShareRecordKind.TARGET, Target(partitions=target), member_id)
        self._put(ShareRecordKind.TARGET_EPOCH, TargetEpoch(epoch=self.epoch))
        self._assigned_at = now

    def _touch(self, member: ShareGroupMember, now: float) -> None:
        member.session_deadline = now + self._settings().session_timeout_ms / 1000

    def _remove(self, member_ids: Iterable[str]) -> None:
        gone = list(member_ids)
        for member_id in gone:
            for kind in (ShareRecordKind.CURRENT, ShareRecordKind.TARGET, ShareRecordKind.MEMBER):
                self._put(kind, None, member_id)
        if gone:
            self._refresh(is_changed=True)

    def _with(
        self, known: Mapping[bytes, KnownPartitions], added: TopicPartitions
    ) -> dict[bytes, KnownPartitions]:
        """Return partitions together with others, of topics that exist."""
        found, catalog = dict(known), self._catalog()
        for topic_id, indexes in added.items():
            name = catalog.name_of(topic_id)
            if name is not None and indexes:
                before = found.get(topic_id, KnownPartitions(name, frozenset()))
                found[topic_id] = KnownPartitions(name, before.indexes | indexes)
        return found

    def _set_partitions(self, partitions: StatePartitions) -> None:
        """Note partitions, without those of topics that were deleted."""
        catalog = self._catalog()
        topics = {*partitions.initializing, *partitions.initialized, *partitions.deleting}
        gone = {topic_id for topic_id in topics if catalog.name_of(topic_id) is None}
        kept = StatePartitions(
            initializing=_without(partitions.initializing, gone),
            initialized=_without(partitions.initialized, gone),
            deleting=_without(partitions.deleting, gone),
        )
        self._put(ShareRecordKind.PARTITIONS, kept)

    def _put(
        self, kind: ShareRecordKind, value: ShareGroupValue | None, member_id: str = ""
    ) -> None:
        record = ShareGroupRecord(ShareGroupKey(kind, self.group_id, member_id), value)
        self._apply(record)
        self._records.append(record)

    def _apply(self, record: ShareGroupRecord) -> None:
        key, value = record
        member = self.members.get(key.member_id)
        self._members_cost -= 0 if member is None else member.cost
        self._is_unassigned = self._missing = None
        if value is None:
            self._stored.discard(key)
            self._delete(key)
        else:
            self._stored.add(key)
            self._take_over(key, value)
        member = self.members.get(key.member_id)
        self._members_cost += 0 if member is None else member.cost

    def _take_over(self, key: ShareGroupKey, value: ShareGroupValue) -> None:
        match value:
            case GroupEpoch():
                self.epoch, self._topics_hash = value.epoch, value.topics_hash
            case TargetEpoch():
                self.target_epoch = value.epoch
            case StatePartitions():
                self.partitions = value
            case ShareMemberMetadata():
                member = self._member(key.member_id)
                self._subscribe(member.metadata.topics, value.topics)
                member.metadata = value
            case Target():
                self._member(key.member_id).target = value.partitions
            case ShareAssignment():
                self._member(key.member_id).current = value

    def _delete(self, key: ShareGroupKey) -> None:
        member = self.members.get(key.member_id)
        match key.kind:
            case ShareRecordKind.MEMBER if member is not None:
                self._subscribe(member.metadata.topics, frozenset())
                del self.members[key.member_id]
            case ShareRecordKind.TARGET if member is not None:
                member.target = {}
            case ShareRecordKind.CURRENT if member is not None:
                member.current = ShareAssignment()
            case _:
                pass

    def _subscribe(self, before: frozenset[str], after: frozenset[str]) -> None:
        """A member subscribes to other topics than before."""
        self._subscribers.update(after)
        for name in before:
            self._subscribers[name] -= 1
            if not self._subscribers[name]:
                del self._subscribers[name]

    def _member(self, member_id: str) -> ShareGroupMember:
        member = self.members.get(member_id)
        if member is None:
            member = self.members[member_id] = ShareGroupMember(member_id)
        return member


def _cost_of_metadata(member_id: str, metadata: ShareMemberMetadata) -> int:
    texts = (member_id, metadata.rack_id, metadata.client_id, metadata.client_host)
    topics = ((topic, b"") for topic in metadata.topics)
    return MEMBER_OBJECTS + cost_of(texts, topics)


def _without(topics: Mapping[bytes, T], gone: Collection[bytes]) -> dict[bytes, T]:
    return {topic_id: one for topic_id, one in topics.items() if topic_id not in gone}
