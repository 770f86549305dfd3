"""The state of a consumer group: what its records say, applied one by one (KIP-848).

Whatever changes in a group is a record first. A group that is loaded applies its last records, in
any order, and has the state that it had before; so has one that is loaded elsewhere.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from lakehead.broker.coordinator.group.consumer.consumer_members import (
    FIRST_EPOCH,
    ConsumerMember,
    CurrentAssignment,
    MemberMetadata,
    TopicPartitions,
    cost_of_epochs,
    cost_of_metadata,
    cost_of_partitions,
)
from lakehead.broker.coordinator.group.consumer.consumer_record_formats import (
    ConsumerGroupKey,
    ConsumerGroupRecord,
    GroupEpoch,
    RecordKind,
    ResolvedRegex,
    Target,
    TargetEpoch,
)
from lakehead.broker.coordinator.group.members import cost_of
from lakehead.broker.coordinator.group.messages import GroupState
from lakehead.broker.coordinator.group.topic_catalog import TopicCatalog


class ConsumerGroupState:
    """Epochs, members, targets and resolved regular expressions of one group."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        """The group epoch: it grows with each change of members, subscriptions or topics."""
        self.topics_hash = 0
        """The hash of the topics that the group epoch is of."""
        self.target_epoch = 0
        """The group epoch that the target assignment is of."""
        self.members: dict[str, ConsumerMember] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        """The topics of the regular expressions that members subscribe to, as far as resolved."""
        self.cost = 0
        """Bytes that the members are counted with."""
        self._owners: dict[tuple[bytes, int], str] = {}
        self._instances: dict[str, str] = {}
        self._subscribers: Counter[str] = Counter()
        self._regex_subscribers: Counter[str] = Counter()
        self._stored: set[ConsumerGroupKey] = set()

    # Queries.

    @property
    def state(self) -> GroupState:
        """The state as DescribeGroups and ListGroups name it."""
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.target_epoch:
            return GroupState.ASSIGNING
        if all(m.current.is_reconciled_to(self.target_epoch) for m in self.members.values()):
            return GroupState.STABLE
        return GroupState.RECONCILING

    @property
    def subscribed_regexes(self) -> Collection[str]:
        """The regular expressions that members subscribe to."""
        return self._regex_subscribers.keys()

    @property
    def are_all_classic(self) -> bool:
        """Return true if every member speaks the classic protocol, and there is one."""
        return bool(self.members) and all(m.is_classic for m in self.members.values())

    @property
    def keys(self) -> Iterable[ConsumerGroupKey]:
        """The keys of all records that the log has of the group, or will have."""
        return self._stored

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        """Return the static member of an instance id."""
        member_id = self._instances.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def owner(self, topic_id: bytes, index: int) -> str | None:
        """Return the id of the member that has a partition, or has to give it back."""
        return self._owners.get((topic_id, index))

    def is_free(self, topic_id: bytes, index: int) -> bool:
        """Return true if no member has a partition."""
        return (topic_id, index) not in self._owners

    def topics_of(self, metadata: MemberMetadata) -> frozenset[str]:
        """Return the topics that a member of this metadata subscribes to, by name and by regular
        expression. One that is not resolved yet matches none.
        """
        resolved = self.regexes.get(metadata.regex) if metadata.regex else None
        return metadata.topics if resolved is None else metadata.topics | resolved.topics

    def subscribed_topics(self) -> set[str]:
        """Return the topics that members subscribe to."""
        resolved = (regex.topics for regex in self.regexes.values())
        return set(self._subscribers).union(*resolved)

    def is_subscribed(self, topic: str) -> bool:
        """Return true if a member subscribes to a topic."""
        if topic in self._subscribers:
            return True
        return any(topic in resolved.topics for resolved in self.regexes.values())

    def subscribers_of(self, regex: str) -> int:
        """Return how many members subscribe to a regular expression."""
        return self._regex_subscribers[regex]

    def hash_in(self, catalog: TopicCatalog) -> int:
        """Return the hash of the topics that members subscribe to."""
        return catalog.hash_of(self.subscribed_topics())

    # Changes.

    def apply(self, record: ConsumerGroupRecord) -> None:
        """Take over what a record says."""
        key, value = record
        if value is None:
            self._stored.discard(key)
            self._delete(key)
            return
        self._stored.add(key)
        match value:
            case GroupEpoch():
                self.epoch, self.topics_hash = value.epoch, value.topics_hash
            case TargetEpoch():
                self.target_epoch = value.epoch
            case ResolvedRegex():
                self._resolve(key.name, value)
            case MemberMetadata():
                self._describe(self._member(key.name), value)
            case Target():
                member = self._member(key.name)
                self.cost += cost_of_partitions(value.partitions)
                self.cost -= cost_of_partitions(member.target)
                member.target = value.partitions
            case CurrentAssignment():
                self._assign(self._member(key.name), value)

    def drop_strays(self) -> list[ConsumerGroupKey]:
        """Forget members without metadata, after loading; return the keys of what is left of them
        in the log. Kafka writes none: they come of a log that was cut off.
        """
        strays = [
            key
            for key in self._stored
            if key.kind in {RecordKind.TARGET, RecordKind.CURRENT}
            and self._key(RecordKind.MEMBER, key.name) not in self._stored
        ]
        for key in strays:
            self.apply(ConsumerGroupRecord(key, None))
        for member_id in {key.name for key in strays}:
            self.apply(ConsumerGroupRecord(self._key(RecordKind.MEMBER, member_id), None))
        return strays

    def _key(self, kind: RecordKind, name: str) -> ConsumerGroupKey:
        return ConsumerGroupKey(kind, self.group_id, name)

    def _member(self, member_id: str) -> ConsumerMember:
        member = self.members.get(member_id)
        if member is None:
            member = self.members[member_id] = ConsumerMember(member_id=member_id)
            self.cost += cost_of_metadata(member_id, member.metadata)
        return member

    def _delete(self, key: ConsumerGroupKey) -> None:
        member = self.members.get(key.name)
        match key.kind:
            case RecordKind.GROUP:
                self.epoch, self.topics_hash = FIRST_EPOCH, 0
            case RecordKind.TARGET_EPOCH:
                self.target_epoch = 0
            case RecordKind.REGEX:
                self._resolve(key.name, None)
            case RecordKind.MEMBER if member is not None:
                self._describe(member, MemberMetadata())
                self._assign(member, CurrentAssignment())
                self.cost -= cost_of_partitions(member.target)
                self.cost -= cost_of_metadata(key.name, member.metadata)
                del self.members[key.name]
            case RecordKind.TARGET if member is not None:
                self.cost -= cost_of_partitions(member.target)
                member.target = {}
            case RecordKind.CURRENT if member is not None:
                self._assign(member, CurrentAssignment())
            case _:
                pass

    def _describe(self, member: ConsumerMember, metadata: MemberMetadata) -> None:
        before, member.metadata = member.metadata, metadata
        self.cost += cost_of_metadata(member.member_id, metadata)
        self.cost -= cost_of_metadata(member.member_id, before)
        if before.topics != metadata.topics:
            _count(self._subscribers, before.topics, metadata.topics)
        if before.regex != metadata.regex:
            _count(self._regex_subscribers, _given(before.regex), _given(metadata.regex))
        if before.instance_id is not None and (
            self._instances.get(before.instance_id) == member.member_id
        ):
            del self._instances[before.instance_id]
        if metadata.instance_id is not None:
            self._instances[metadata.instance_id] = member.member_id

    def _assign(self, member: ConsumerMember, current: CurrentAssignment) -> None:
        before, member.current = member.current, current
        for epochs in (current.assigned_epochs, current.revoking_epochs):
            self.cost += cost_of_epochs(epochs)
        for epochs in (before.assigned_epochs, before.revoking_epochs):
            self.cost -= cost_of_epochs(epochs)
        if before.assigned == current.assigned and before.revoking == current.revoking:
            return
        for partitions in (before.assigned, before.revoking):
            for place in _places(partitions):
                if self._owners.get(place) == member.member_id:
                    del self._owners[place]
            self.cost -= cost_of_partitions(partitions)
        for partitions in (current.assigned, current.revoking):
            self._owners.update(dict.fromkeys(_places(partitions), member.member_id))
            self.cost += cost_of_partitions(partitions)

    def _resolve(self, regex: str, resolved: ResolvedRegex | None) -> None:
        before = self.regexes.pop(regex, None)
        if before is not None:
            self.cost -= _cost_of_regex(regex, before)
        if resolved is not None:
            self.regexes[regex] = resolved
            self.cost += _cost_of_regex(regex, resolved)


def _places(partitions: TopicPartitions) -> Iterator[tuple[bytes, int]]:
    for topic_id, indexes in partitions.items():
        for index in indexes:
            yield topic_id, index


def _given(regex: str) -> tuple[str, ...]:
    return (regex,) if regex else ()


def _count(counter: Counter[str], before: Iterable[str], after: Iterable[str]) -> None:
    for name in after:
        counter[name] += 1
    for name in before:
        counter[name] -= 1
        if not counter[name]:
            del counter[name]


def _cost_of_regex(regex: str, resolved: ResolvedRegex) -> int:
    return cost_of((regex,), ((topic, b"") for topic in resolved.topics))
