"""The consumer group protocol of KIP-848 as a synchronous state machine.

`ConsumerGroup` takes one event at a time together with the present monotonic time, changes its
state and gathers the records to store. It has no socket, log, task or clock. A response may leave
once all records of the group that were gathered before are durable.

States, as Kafka names them::

    Empty         no member
    Assigning     the group epoch is newer than the target assignment
    Reconciling   there is a target, and members are on their way to it
    Stable        every member has its target

The group epoch grows when members, their subscriptions or their topics change. With a heartbeat the
assignor makes a target assignment of that epoch, `assignment_interval_ms` after the one before at
the earliest, and each member goes there by its own heartbeats (`reconciliation`). A member epoch is
the epoch of the target that a member has reached.

Invariants: a partition has one owner at most, which is the member that has it or has to give it
back; epochs only grow; a member epoch is never beyond that of the target assignment, nor this
beyond the group epoch.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.consumer.assignors import (
    ASSIGNORS,
    AssignedMember,
    AssignmentSpec,
)
from lakehead.broker.coordinator.group.consumer.consumer_group_state import ConsumerGroupState
from lakehead.broker.coordinator.group.consumer.consumer_members import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    CurrentAssignment,
    MemberMetadata,
    MemberState,
    TopicPartitions,
    cost_of_metadata,
    is_within,
    topic_partitions,
)
from lakehead.broker.coordinator.group.consumer.consumer_record_formats import (
    ConsumerGroupKey,
    ConsumerGroupRecord,
    ConsumerGroupValue,
    GroupEpoch,
    RecordKind,
    ResolvedRegex,
    Target,
    TargetEpoch,
)
from lakehead.broker.coordinator.group.consumer.reconciliation import Reconciliation
from lakehead.broker.coordinator.group.consumer.topic_regex import check_regex
from lakehead.broker.coordinator.group.messages import GroupState
from lakehead.broker.coordinator.group.topic_catalog import TopicCatalog
from lakehead.broker.protocol.errors import KafkaError

_REGEXES_MAX = 100
"""Regular expressions of a group's members. Each is held against all topics."""
_REGEX_INTERVAL_SECONDS = 10.0
"""Shortest time between two resolutions of a group's regular expressions."""


class MigrationPolicy(Enum):
    """The changes of protocol that are allowed to groups with members
    (`group.consumer.migration.policy`).
    """

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def allows_upgrade(self) -> bool:
        """Return true if classic groups may become consumer groups."""
        return self in {MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE}

    @property
    def allows_downgrade(self) -> bool:
        """Return true if consumer groups may become classic groups."""
        return self in {MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupSettings:
    """Limits of the consumer protocol, named as Kafka's broker settings are."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 2_147_483_647
    assignors: tuple[str, ...] = ("uniform", "range")
    """Those that members may choose; the first one is for members that do not."""
    regex_refresh_interval_ms: int = 600_000
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    assignment_interval_ms: int = 1_000
    """Shortest time between two target assignments of a group; 0: each change has its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """A ConsumerGroupHeartbeat. None, and -1 for the timeout, mean what was said before."""

    member_id: str
    epoch: int
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: TopicPartitions | None = None

    @property
    def is_full(self) -> bool:
        """Return true if the request says everything, as one after a lost response does."""
        return (
            self.rebalance_timeout_ms != -1
            and (self.topics is not None or self.regex is not None)
            and self.owned is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResult:
    """The response to a ConsumerGroupHeartbeat. `assignment` is None where it did not change."""

    member_id: str
    epoch: int
    heartbeat_interval_ms: int = 0
    assignment: TopicPartitions | None = None


class ConsumerGroup:
    """One consumer group. `catalog` returns the topics as they are now, `settings` the limits of
    the group: both may change between events.
    """

    def __init__(
        self,
        group_id: str,
        settings: Callable[[], ConsumerGroupSettings],
        catalog: Callable[[], TopicCatalog],
    ) -> None:
        self.group_id = group_id
        self.store = ConsumerGroupState(group_id)
        self._settings = settings
        self._catalog = catalog
        self._records: list[ConsumerGroupRecord] = []
        self._known_catalog: TopicCatalog | None = None
        """The topics of which the group epoch has the hash."""
        self._assigned_at = -math.inf
        self._deadline: float | None = None
        self._regex_catalog: TopicCatalog | None = None
        self._regexes_due = -math.inf
        self._is_resolving = False

    # State.

    @property
    def state(self) -> GroupState:
        """The state of the group."""
        return self.store.state

    @property
    def members(self) -> Mapping[str, ConsumerMember]:
        """The members, by id."""
        return self.store.members

    @property
    def settings(self) -> ConsumerGroupSettings:
        """The limits in force."""
        return self._settings()

    @property
    def catalog(self) -> TopicCatalog:
        """The topics as they are now."""
        return self._catalog()

    @property
    def cost(self) -> int:
        """The memory that its members are counted with, in bytes: they are kept, and stored once
        more.
        """
        return 2 * self.store.cost

    @property
    def assignor(self) -> str:
        """The assignor that most members chose; ties go to the order of the setting."""
        names = self.settings.assignors
        chosen = (member.metadata.assignor for member in self.members.values())
        votes = Counter(name for name in chosen if name in names)
        return max(names, key=lambda name: votes[name])

    def next_deadline(self) -> float | None:
        """Return when `tick` may have something to do, if nothing else happens."""
        return self._deadline

    def take_records(self) -> list[ConsumerGroupRecord]:
        """Return the records that were gathered, in the order in which they are to be stored."""
        records, self._records = self._records, []
        return records

    # Loading.

    def restore(self, records: Iterable[ConsumerGroupRecord], now: float) -> None:
        """Take over the last records of the log. Members have a session timeout to send a sign of
        life, and those that have to give partitions back their rebalance timeout.
        """
        for record in records:
            self.store.apply(record)
        self._records += (ConsumerGroupRecord(key, None) for key in self.store.drop_strays())
        for member in self.members.values():
            self.touch(member, now)
            self._watch_revocation(member, now)

    def take_over(
        self,
        epoch: int,
        members: Iterable[tuple[str, MemberMetadata, TopicPartitions]],
        now: float,
    ) -> None:
        """Take over the generation of a classic group, of which every member has its assignment."""
        for member_id, metadata, partitions in members:
            free = topic_partitions(
                (topic_id, [index for index in indexes if self.store.is_free(topic_id, index)])
                for topic_id, indexes in partitions.items()
            )
            epochs = {topic_id: (epoch,) * len(indexes) for topic_id, indexes in free.items()}
            current = CurrentAssignment(
                epoch=epoch, previous_epoch=epoch, assigned=free, assigned_epochs=epochs
            )
            self._put(RecordKind.MEMBER, metadata, member_id)
            self._put(RecordKind.TARGET, Target(partitions=free), member_id)
            self._put(RecordKind.CURRENT, current, member_id)
            self.touch(self.members[member_id], now)
        self._put(RecordKind.TARGET_EPOCH, TargetEpoch(epoch=epoch))
        topics_hash = self.store.hash_in(self.catalog)
        group_epoch = GroupEpoch(epoch=epoch, topics_hash=topics_hash)
        self._put(RecordKind.GROUP, group_epoch, is_first=True)

    # Events of members that speak the consumer protocol.

    def heartbeat(
        self, request: HeartbeatRequest, now: float, room: float = math.inf
    ) -> HeartbeatResult:
        """Handle a ConsumerGroupHeartbeat of a member that joins or stays. A member that joins has
        a member id. `room`: bytes that the groups of the node may still grow by.

        Raises UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID,
        GROUP_MAX_SIZE_REACHED, INVALID_REGULAR_EXPRESSION.
        """
        self.refuse_new_member(request.member_id)
        member = self._find(request)
        before = MemberMetadata() if member is None else member.metadata
        metadata = _described(request, before)
        self.refuse_growth(request.member_id, before, metadata, room)
        regex = metadata.regex
        if regex and regex != before.regex and not self.store.subscribers_of(regex):
            self._check_regex(regex)
        if member is not None and member.member_id != request.member_id:
            self.replace_member(member, request.member_id)
        has_new_subscription = self.describe(request.member_id, before, metadata)
        member = self.members[request.member_id]
        assigned = member.current.assigned
        self.update_target(now)
        self.reconcile(member, request.owned, now, has_new_subscription=has_new_subscription)
        self.touch(member, now)
        is_shown = (
            request.epoch == JOIN_EPOCH or request.is_full or assigned != member.current.assigned
        )
        return HeartbeatResult(
            member_id=member.member_id,
            epoch=member.current.epoch,
            heartbeat_interval_ms=self.settings.heartbeat_interval_ms,
            assignment=member.current.assigned if is_shown else None,
        )

    def leave(self, member_id: str, instance_id: str | None, epoch: int) -> HeartbeatResult:
        """Handle a ConsumerGroupHeartbeat of a member that leaves. A static one that leaves for a
        while keeps its partitions until its session ends.

        Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
        """
        member = self.known(member_id, instance_id)
        if instance_id is not None and epoch == STATIC_LEAVE_EPOCH:
            member.revocation_deadline = None
            # Without assignment epochs, its successor has the partitions from the first one on.
            gone = replace(
                member.current,
                epoch=STATIC_LEAVE_EPOCH,
                revoking={},
                assigned_epochs={},
                revoking_epochs={},
            )
            self._put(RecordKind.CURRENT, gone, member.member_id)
        else:
            self.remove([member])
        return HeartbeatResult(member_id=member_id, epoch=epoch)

    def refuse_commit(
        self,
        member_id: str,
        epoch: int,
        places: Iterable[tuple[bytes, int]],
        *,
        is_known_to_client: bool = True,
    ) -> ErrorCode | None:
        """Return the error of an offset commit in the name of a member, or None. `places`: the
        partitions, of (topic id, index). `is_known_to_client`: the version of the request has
        member epochs.

        A member that has not heard of its present epoch may commit for partitions that it had
        before (KIP-1251). Without an epoch the request is of an admin, or of a consumer that
        chooses its partitions itself: both may write while the group has no members.
        """
        if epoch < 0 and not self.members:
            return None
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.unknown_member_id
        if not (is_known_to_client or member.is_classic):
            return ErrorCode.unsupported_version
        if epoch < member.current.epoch and _had_all(member.current, epoch, places):
            return None
        return _refuse_other_epoch(member, epoch)

    def refuse_fetch(self, member_id: str | None, epoch: int) -> ErrorCode | None:
        """Return the error of a request for offsets in the name of a member, or None."""
        if member_id is None and epoch < 0:
            return None
        member = self.members.get(member_id or "")
        if member is None:
            return ErrorCode.unknown_member_id
        return _refuse_other_epoch(member, epoch)

    def tick(self, now: float) -> None:
        """Let time pass: fence the silent and those that give nothing back."""
        if self._deadline is None or self._deadline > now:
            return
        fenced = [
            member
            for member in self.members.values()
            if member.deadline is not None and member.deadline <= now
        ]
        self.remove(fenced)
        self._deadline = None
        for member in self.members.values():
            self._expect(member.deadline)

    # Regular expressions.

    def regexes_to_resolve(self, now: float) -> frozenset[str]:
        """Return the regular expressions that are to be resolved now, if any are; `resolved` has
        the outcome, or `not_resolved`.
        """
        regexes = self.store.subscribed_regexes
        known = self.store.regexes
        if self._is_resolving or not regexes or (known and now < self._regexes_due):
            return frozenset()
        interval = self.settings.regex_refresh_interval_ms / 1000
        is_due = (
            any(regex not in known for regex in regexes)
            or self._regex_catalog is not self.catalog
            or now >= self._regexes_due - _REGEX_INTERVAL_SECONDS + interval
        )
        if not is_due:
            return frozenset()
        self._is_resolving = True
        self._regex_catalog = self.catalog
        self._regexes_due = now + _REGEX_INTERVAL_SECONDS
        return frozenset(regexes)

    def resolved(
        self, topics: Mapping[str, frozenset[str]], catalog: TopicCatalog, now_ms: int
    ) -> None:
        """Take over the topics that regular expressions match in a catalog. The group epoch grows
        if they are others than before.
        """
        self._is_resolving = False
        has_changed = False
        for regex in sorted(topics):
            if not self.store.subscribers_of(regex):
                continue
            known = self.store.regexes.get(regex)
            has_other_topics = (known.topics if known else frozenset()) != topics[regex]
            has_changed = has_changed or has_other_topics
            if known is None or has_other_topics:
                value = ResolvedRegex(
                    topics=topics[regex], version=catalog.version, timestamp_ms=now_ms
                )
                self._put(RecordKind.REGEX, value, regex)
        self.refresh(is_changed=has_changed)

    def not_resolved(self) -> None:
        """Take note that the resolution failed: a later one may not."""
        self._is_resolving = False
        self._regex_catalog = None

    # Steps of the above, which members of the classic protocol take too (`classic_members`).

    def known(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        """Return a member. Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        if instance_id is None:
            member = self.members.get(member_id)
            if member is None:
                raise KafkaError(
                    ErrorCode.unknown_member_id,
                    f"Member {member_id} is not a member of group {self.group_id}.",
                )
            return member
        member = self.store.static_member(instance_id)
        if member is None:
            raise KafkaError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
        if member.member_id != member_id:
            raise KafkaError(
                ErrorCode.fenced_instance_id,
                f"Static member {member_id} with instance id {instance_id} was fenced by member "
                f"{member.member_id}.",
            )
        return member

    def refuse_new_member(self, member_id: str) -> None:
        """Raise GROUP_MAX_SIZE_REACHED for a new member of a full group."""
        limit = self.settings.max_size
        if len(self.members) >= limit and member_id not in self.members:
            raise KafkaError(
                ErrorCode.group_max_size_reached,
                f"The consumer group has reached its maximum capacity of {limit} members.",
            )

    def refuse_growth(
        self, member_id: str, before: MemberMetadata, after: MemberMetadata, room: float
    ) -> None:
        """Raise GROUP_MAX_SIZE_REACHED where a member would take more memory than there is."""
        if after is before and member_id in self.members:
            return
        growth = cost_of_metadata(member_id, after)
        if member_id in self.members:
            growth -= cost_of_metadata(member_id, before)
        if 2 * growth > max(room, 0):
            raise KafkaError(ErrorCode.group_max_size_reached, "No memory is left for members.")

    def replace_member(self, replaced: ConsumerMember, member_id: str) -> None:
        """Give the place of a static member that came back to its new id, with its partitions, but
        no epoch yet.
        """
        metadata, target = replaced.metadata, replaced.target
        current = replace(replaced.current, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
        self._erase(replaced)
        self._put(RecordKind.MEMBER, metadata, member_id)
        if target:
            self._put(RecordKind.TARGET, Target(partitions=target), member_id)
        self._put(RecordKind.CURRENT, current, member_id)

    def describe(self, member_id: str, before: MemberMetadata, metadata: MemberMetadata) -> bool:
        """Take over what a member said of itself, and said before; return whether its subscription
        changed. The group epoch grows with a new subscription, unless that is a regular expression
        that is not resolved yet.
        """
        if metadata is not before or member_id not in self.members:
            self._put(RecordKind.MEMBER, metadata, member_id)
        has_new_topics = before.topics != metadata.topics
        has_new_regex = before.regex != metadata.regex
        if has_new_regex and before.regex and not self.store.subscribers_of(before.regex):
            self._put(RecordKind.REGEX, None, before.regex)
        has_known_regex = has_new_regex and (
            metadata.regex in self.store.regexes if metadata.regex else bool(before.regex)
        )
        self.refresh(is_changed=has_new_topics or has_known_regex)
        return has_new_topics or has_new_regex

    def refresh(self, *, is_changed: bool) -> None:
        """Let the group epoch grow after a change of the group, or of the topics of its members."""
        catalog = self.catalog
        if not is_changed and catalog is self._known_catalog:
            return
        self._known_catalog = catalog
        topics_hash = self.store.hash_in(catalog)
        if is_changed or topics_hash != self.store.topics_hash:
            epoch = GroupEpoch(epoch=self.store.epoch + 1, topics_hash=topics_hash)
            # First of all: a log that is cut off here has an epoch too much, and a new target heals
            # what is missing.
            self._put(RecordKind.GROUP, epoch, is_first=True)

    def update_target(self, now: float) -> None:
        """Make the target assignment of the group epoch, unless the one before is too recent."""
        store = self.store
        if store.epoch <= store.target_epoch or not store.members:
            return
        if now < self._assigned_at + self.settings.assignment_interval_ms / 1000:
            return
        topics = self.catalog.found(store.subscribed_topics())
        ids = {topic.name: topic.topic_id for topic in topics}
        chosen: dict[frozenset[str], frozenset[bytes]] = {}
        members: dict[str, AssignedMember] = {}
        for member in store.members.values():
            names = store.topics_of(member.metadata)
            if names not in chosen:
                chosen[names] = frozenset(ids[name] for name in names if name in ids)
            members[member.member_id] = AssignedMember(
                topics=chosen[names],
                target=member.target,
                instance_id=member.metadata.instance_id,
            )
        subscribed = frozenset().union(*chosen.values())
        counts = {t.topic_id: t.partition_count for t in topics if t.topic_id in subscribed}
        spec = AssignmentSpec(members=members, partition_counts=counts)
        for member_id, target in ASSIGNORS[self.assignor](spec).items():
            if target != members[member_id].target:
                self._put(RecordKind.TARGET, Target(partitions=target), member_id)
        self._put(RecordKind.TARGET_EPOCH, TargetEpoch(epoch=store.epoch))
        self._assigned_at = now

    def reconcile(
        self,
        member: ConsumerMember,
        owned: TopicPartitions | None,
        now: float,
        *,
        has_new_subscription: bool = False,
    ) -> None:
        """Take a member as far towards its target as it can go now."""
        epoch = self.store.target_epoch
        if member.current.is_reconciled_to(epoch) and not has_new_subscription:
            return
        subscribed = self.catalog.found(self.store.topics_of(member.metadata))
        step = Reconciliation(
            epoch=epoch,
            target=member.target,
            owned=owned,
            topics={topic.topic_id for topic in subscribed},
            is_free=self.store.is_free,
        )
        current = step.next(member.current, has_new_subscription=has_new_subscription)
        if current != member.current:
            self._put(RecordKind.CURRENT, current, member.member_id)
            self._watch_revocation(member, now)

    def touch(self, member: ConsumerMember, now: float) -> None:
        """Record a sign of life: the session of a member starts again."""
        classic = member.metadata.classic
        timeout_ms = (
            self.settings.session_timeout_ms if classic is None else classic.session_timeout_ms
        )
        member.session_deadline = now + timeout_ms / 1000
        self._expect(member.session_deadline)

    def watch(self, deadline: float) -> None:
        """See to it that `tick` is called by a deadline of a member."""
        self._expect(deadline)

    def remove(self, members: Iterable[ConsumerMember]) -> None:
        """Take members out: the rest gets a new target."""
        gone = list(members)
        for member in gone:
            regex = member.metadata.regex  # of what is erased then
            self._erase(member)
            if regex and not self.store.subscribers_of(regex):
                self._put(RecordKind.REGEX, None, regex)
        if gone:
            self.refresh(is_changed=True)

    # Inside.

    def _find(self, request: HeartbeatRequest) -> ConsumerMember | None:
        """Return the member that sent a heartbeat, or that it replaces; None for a new one."""
        is_joining = request.epoch == JOIN_EPOCH
        if request.instance_id is None:
            member = self.members.get(request.member_id)
            if member is None and is_joining:
                return None
            member = self.known(request.member_id, None)
        else:
            member = self.store.static_member(request.instance_id)
            if is_joining:
                self._refuse_unreleased(request, member)
                # A dynamic member may become a static one.
                return member or self.members.get(request.member_id)
            member = self.known(request.member_id, request.instance_id)
        _refuse_epoch(request, member)
        return member

    def _check_regex(self, regex: str) -> None:
        """Raise INVALID_REGULAR_EXPRESSION for one that is broken, or too many for one group."""
        check_regex(regex)
        if len(self.store.subscribed_regexes) >= _REGEXES_MAX:
            raise KafkaError(
                ErrorCode.invalid_regular_expression,
                f"The members of a group may have {_REGEXES_MAX} regular expressions.",
            )

    @staticmethod
    def _refuse_unreleased(request: HeartbeatRequest, member: ConsumerMember | None) -> None:
        """Refuse a static member whose instance id another one has that did not leave."""
        if member is None or member.is_classic or member.current.epoch == STATIC_LEAVE_EPOCH:
            return
        raise KafkaError(
            ErrorCode.unreleased_instance_id,
            f"Static member {request.member_id} with instance id {request.instance_id} cannot join "
            f"the group because the instance id is owned by {member.member_id} member.",
        )

    def _watch_revocation(self, member: ConsumerMember, now: float) -> None:
        """Give a member its rebalance timeout to give partitions back. A member of the classic
        protocol has to join again in time instead.
        """
        if member.is_classic or member.current.state is not MemberState.UNREVOKED_PARTITIONS:
            member.revocation_deadline = None
            return
        member.revocation_deadline = now + member.metadata.rebalance_timeout_ms / 1000
        self._expect(member.revocation_deadline)

    def _erase(self, member: ConsumerMember) -> None:
        """Delete everything that is stored of a member."""
        for kind in (RecordKind.CURRENT, RecordKind.TARGET, RecordKind.MEMBER):
            self._put(kind, None, member.member_id)

    def _put(
        self,
        kind: RecordKind,
        value: ConsumerGroupValue | None,
        name: str = "",
        *,
        is_first: bool = False,
    ) -> None:
        record = ConsumerGroupRecord(ConsumerGroupKey(kind, self.group_id, name), value)
        self.store.apply(record)
        if is_first:
            self._records = [record, *(other for other in self._records if other.key != record.key)]
        else:
            self._records.append(record)

    def _expect(self, deadline: float | None) -> None:
        if deadline is not None and (self._deadline is None or deadline < self._deadline):
            self._deadline = deadline


def _described(request: HeartbeatRequest, before: MemberMetadata) -> MemberMetadata:
    """Return what a member says of itself now; `before` itself where that is nothing new."""
    after = MemberMetadata(
        instance_id=before.instance_id if request.instance_id is None else request.instance_id,
        rack_id=before.rack_id if request.rack_id is None else request.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topics=before.topics if request.topics is None else request.topics,
        regex=before.regex if request.regex is None else request.regex,
        rebalance_timeout_ms=before.rebalance_timeout_ms
        if request.rebalance_timeout_ms == -1
        else request.rebalance_timeout_ms,
        assignor=before.assignor if request.assignor is None else request.assignor,
    )
    return before if after == before else after


def _had_all(current: CurrentAssignment, epoch: int, places: Iterable[tuple[bytes, int]]) -> bool:
    """Return true if a member had partitions in an epoch before its own, and has not given them
    back.
    """
    known: dict[bytes, dict[int, int]] = {}
    for topic_id, index in places:
        if topic_id not in known:
            known[topic_id] = current.epochs_of(topic_id)
        if known[topic_id].get(index, current.epoch) > epoch:
            return False
    return True


def _refuse_other_epoch(member: ConsumerMember, epoch: int) -> ErrorCode | None:
    if epoch == member.current.epoch:
        return None
    return ErrorCode.illegal_generation if member.is_classic else ErrorCode.stale_member_epoch


def _refuse_epoch(request: HeartbeatRequest, member: ConsumerMember) -> None:
    """Refuse a member epoch that is not the member's. The one before is taken from a member that
    has no more than it may have: it may have missed the response with the new one.
    """
    current = member.current
    if request.epoch in {JOIN_EPOCH, current.epoch}:
        return
    word = "greater" if request.epoch > current.epoch else "smaller"
    if (
        word == "smaller"
        and request.epoch == current.previous_epoch
        and request.owned is not None
        and is_within(request.owned, current.assigned)
    ):
        return
    raise KafkaError(
        ErrorCode.fenced_member_epoch,
        f"The consumer group member has a {word} member epoch ({request.epoch}) than the one known "
        f"by the group coordinator ({current.epoch}). The member must abandon all its partitions "
        "and rejoin.",
    )
