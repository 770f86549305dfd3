"""Server-side assignors of consumer groups: `uniform` and `range` (KIP-848). Pure functions.

An assignor gets every member with the topics that it subscribes to and the partitions that it was
to have so far, and returns what each is to have. Partitions of a topic go only to subscribers of
the topic, each to one member, and none is left over while the topic has a subscriber.

Racks count for nothing, as in Kafka 4.2: storage is shared, so no node is nearer to a partition.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from lakehead.broker.configs.definition import split_list
from lakehead.broker.coordinator.group.consumer.consumer_members import TopicPartitions
from lakehead.storage.errors import SettingsError

_ROUNDS_MAX = 20
"""Passes over all topics in which a group of different subscriptions is balanced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedMember:
    """A member as assignors see it: `topics` are the ids of those that it subscribes to, `target`
    is what it was to have before.
    """

    topics: frozenset[bytes]
    target: TopicPartitions
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentSpec:
    """The input of an assignor: members by id, and the number of partitions of each topic
    that one of them subscribes to, by its id.
    """

    members: Mapping[str, AssignedMember]
    partition_counts: Mapping[bytes, int]

    @property
    def is_homogeneous(self) -> bool:
        """Return true if all members subscribe to the same topics."""
        return len({member.topics for member in self.members.values()}) <= 1


Targets: TypeAlias = dict[str, TopicPartitions]
"""The partitions that each member is to have, by its id."""
Assignor: TypeAlias = Callable[[AssignmentSpec], Targets]


def range_assignor(spec: AssignmentSpec) -> Targets:
    """Give each subscriber of a topic a run of its partitions, in the order of instance ids and
    then of member ids: of two topics with equally many partitions, which the same members subscribe
    to, a member has the same partitions, so that it can join them.
    """
    subscribers: dict[bytes, list[str]] = defaultdict(list)
    for member_id in sorted(spec.members, key=lambda one: _range_order(one, spec)):
        for topic_id in spec.members[member_id].topics:
            subscribers[topic_id].append(member_id)
    targets: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in spec.members}
    for topic_id, members in subscribers.items():
        quota, extra = divmod(spec.partition_counts[topic_id], len(members))
        start = 0
        for position, member_id in enumerate(members):
            end = start + quota + (position < extra)
            if end > start:
                targets[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(targets)


def _range_order(member_id: str, spec: AssignmentSpec) -> tuple[bool, str]:
    instance_id = spec.members[member_id].instance_id
    return (True, member_id) if instance_id is None else (False, instance_id)


def uniform_assignor(spec: AssignmentSpec) -> Targets:
    """Give each member as many partitions as any other, as far as subscriptions allow, and leave to
    each as much as possible of what it had.
    """
    if not spec.members:
        return {}
    return (_homogeneous if spec.is_homogeneous else _Heterogeneous(spec).targets)(spec)


def _homogeneous(spec: AssignmentSpec) -> Targets:
    """Every member may have every partition: keep up to a quota, share out the rest."""
    counts = spec.partition_counts
    kept = {
        member_id: {
            topic_id: _existing(indexes, counts[topic_id])
            for topic_id, indexes in member.target.items()
            if topic_id in counts
        }
        for member_id, member in spec.members.items()
    }
    quota, extra = divmod(sum(counts.values()), len(spec.members))
    sizes = {member_id: sum(map(len, kept[member_id].values())) for member_id in kept}
    # Members with the most have the extra ones: they need not give them back.
    order = sorted(kept, key=lambda member_id: -sizes[member_id])
    free = _unowned(kept.values(), counts)
    room: list[tuple[str, int]] = []
    for position, member_id in enumerate(order):
        most = quota + (position < extra)
        if sizes[member_id] > most:
            free += _shed(kept[member_id], sizes[member_id] - most)
        elif sizes[member_id] < most:
            room.append((member_id, most - sizes[member_id]))
    place = 0
    for member_id, wanted in room:
        _add(kept[member_id], free[place : place + wanted])
        place += wanted
    return {member_id: _without_empty(partitions) for member_id, partitions in kept.items()}


class _Heterogeneous:
    """Members with different subscriptions: keep what is still subscribed to, give the rest to the
    subscribers with the least, then move partitions from those with more to those with less.
    """

    def __init__(self, spec: AssignmentSpec) -> None:
        self._spec = spec
        self._owned: dict[str, dict[bytes, set[int]]] = {}
        self._sizes: dict[str, int] = {}
        self._subscribers: dict[bytes, list[str]] = defaultdict(list)
        for member_id, member in spec.members.items():
            owned = {
                topic_id: set(_existing(indexes, spec.partition_counts[topic_id]))
                for topic_id, indexes in member.target.items()
                if topic_id in member.topics
            }
            self._owned[member_id] = owned
            self._sizes[member_id] = sum(map(len, owned.values()))
            for topic_id in member.topics:
                self._subscribers[topic_id].append(member_id)

    def targets(self, _spec: AssignmentSpec) -> Targets:
        """Return what each member is to have."""
        counts = self._spec.partition_counts
        free: dict[bytes, list[int]] = defaultdict(list)
        for topic_id, index in _unowned(self._owned.values(), counts):
            free[topic_id].append(index)
        # Topics with few subscribers leave little choice, so they come first.
        topics = sorted(self._subscribers, key=lambda one: (len(self._subscribers[one]), one))
        for topic_id in topics:
            self._share_out(topic_id, free[topic_id])
        for _ in range(_ROUNDS_MAX):
            moves = sum(self._balance(topic_id) for topic_id in topics)
            if not moves:
                break
        return {
            member_id: {topic: frozenset(indexes) for topic, indexes in owned.items() if indexes}
            for member_id, owned in self._owned.items()
        }

    def _share_out(self, topic_id: bytes, free: list[int]) -> None:
        if not free:
            return
        heap = [(self._sizes[one], place) for place, one in enumerate(self._subscribers[topic_id])]
        heapq.heapify(heap)
        for index in free:
            size, place = heap[0]
            member_id = self._subscribers[topic_id][place]
            self._owned[member_id].setdefault(topic_id, set()).add(index)
            self._sizes[member_id] += 1
            heapq.heapreplace(heap, (size + 1, place))

    def _balance(self, topic_id: bytes) -> int:
        """Move partitions of a topic from those of its owners with the most to those of its
        subscribers with the least; return how many were moved.
        """
        order = sorted(self._subscribers[topic_id], key=lambda one: self._sizes[one])
        least = [(self._sizes[one], place) for place, one in enumerate(order)]
        moves = 0
        for giver in reversed(order):
            owned = self._owned[giver].get(topic_id)
            while owned and self._sizes[giver] > least[0][0] + 1:
                size, place = least[0]
                taker = order[place]
                if size != self._sizes[taker]:  # it gave some away meanwhile
                    heapq.heapreplace(least, (self._sizes[taker], place))
                    continue
                index = max(owned)
                owned.discard(index)
                self._owned[taker].setdefault(topic_id, set()).add(index)
                self._sizes[giver] -= 1
                self._sizes[taker] += 1
                heapq.heapreplace(least, (size + 1, place))
                moves += 1
        return moves


def _existing(indexes: frozenset[int], count: int) -> frozenset[int]:
    """Return those of `indexes` that exist in a topic with `count` partitions."""
    if not indexes or max(indexes) < count:
        return indexes
    return frozenset(index for index in indexes if index < count)


def _unowned(
    owners: Iterable[Mapping[bytes, Iterable[int]]], counts: Mapping[bytes, int]
) -> list[tuple[bytes, int]]:
    """Return the partitions without an owner, topic after topic."""
    owned: dict[bytes, set[int]] = {topic_id: set() for topic_id in counts}
    for partitions in owners:
        for topic_id, indexes in partitions.items():
            owned[topic_id].update(indexes)
    return [
        (topic_id, index)
        for topic_id in sorted(counts)
        if len(owned[topic_id]) < counts[topic_id]
        for index in range(counts[topic_id])
        if index not in owned[topic_id]
    ]


def _shed(partitions: dict[bytes, frozenset[int]], surplus: int) -> list[tuple[bytes, int]]:
    """Take `surplus` partitions away, always from the topic with the most; return them."""
    shed: list[tuple[bytes, int]] = []
    while len(shed) < surplus:
        topic_id = max(partitions, key=lambda one: len(partitions[one]))
        gone = sorted(partitions[topic_id])[-(surplus - len(shed)) :]
        partitions[topic_id] = partitions[topic_id].difference(gone)
        shed += [(topic_id, index) for index in gone]
    return shed


def _add(partitions: dict[bytes, frozenset[int]], more: Iterable[tuple[bytes, int]]) -> None:
    by_topic: dict[bytes, list[int]] = defaultdict(list)
    for topic_id, index in more:
        by_topic[topic_id].append(index)
    for topic_id, indexes in by_topic.items():
        partitions[topic_id] = partitions.get(topic_id, frozenset()).union(indexes)


def _without_empty(partitions: TopicPartitions) -> TopicPartitions:
    return {topic_id: indexes for topic_id, indexes in partitions.items() if indexes}


ASSIGNORS: Mapping[str, Assignor] = {"uniform": uniform_assignor, "range": range_assignor}
"""By the names that clients choose them by."""


def assignors_of(setting: str) -> tuple[str, ...]:
    """Return the assignors that a setting lists, with their classes' names of Kafka too. Raises
    SettingsError.
    """
    names = tuple(_KAFKA_CLASSES.get(name, name) for name in split_list(setting))
    for name in names:
        if name not in ASSIGNORS:
            raise SettingsError(f"group.consumer.assignors: {name} is not an assignor")
    if not names or len(set(names)) < len(names):
        raise SettingsError("group.consumer.assignors must name an assignor, and each one once")
    return names


_KAFKA_CLASSES = {
    f"org.apache.kafka.coordinator.group.assignor.{name.capitalize()}Assignor": name
    for name in ASSIGNORS
}
