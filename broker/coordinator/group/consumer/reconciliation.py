"""The next assignment of a member of a consumer group, on its way to its target (KIP-848).

A member first gives back what it is not to have any more, and stays in its epoch until it has: only
then other members may get those partitions. Then it enters the epoch of the target, with what is
free of its target; what other members still have follows as they give it back.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.consumer.consumer_members import (
    CurrentAssignment,
    MemberState,
    TopicPartitions,
    overlap,
)
from lakehead.broker.protocol.errors import KafkaError

_NONE: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """The goal of a member. `owned` are the partitions that it says it has, None if it
    did not say; `topics` the ids of the topics that it subscribes to; `is_free` returns whether no
    other member has a partition.
    """

    epoch: int
    target: TopicPartitions
    owned: TopicPartitions | None
    topics: Collection[bytes]
    is_free: Callable[[bytes, int], bool]

    def next(
        self, current: CurrentAssignment, *, has_new_subscription: bool = False
    ) -> CurrentAssignment:
        """Return the assignment that follows, or `current` where the member cannot go on.
        `has_new_subscription`: it must have nothing of topics that it does not subscribe to.

        Raises FENCED_MEMBER_EPOCH for a member in a state of a later release that does not say that
        it gave everything back.
        """
        after = self._next(current, has_new_subscription=has_new_subscription)
        return current if after is current else self._with_epochs(after, current)

    def _next(self, current: CurrentAssignment, *, has_new_subscription: bool) -> CurrentAssignment:
        match current.state:
            case MemberState.STABLE:
                if current.epoch != self.epoch:
                    return self._towards_target(current)
                return self._subscribed(current) if has_new_subscription else current
            case MemberState.UNREVOKED_PARTITIONS:
                if not self._owns(current.revoking):
                    return self._towards_target(current)
                return self._subscribed(current) if has_new_subscription else current
            case MemberState.UNRELEASED_PARTITIONS:
                return self._towards_target(current)
            case MemberState.UNKNOWN:
                if self.owned is None or any(self.owned.values()):
                    raise KafkaError(
                        ErrorCode.fenced_member_epoch,
                        "The member is in an unknown state. It must give up its partitions and "
                        "join again.",
                    )
                return self._towards_target(current)

    def _with_epochs(
        self, after: CurrentAssignment, before: CurrentAssignment
    ) -> CurrentAssignment:
        """Return an assignment with the epochs in which its partitions were assigned: what the
        member keeps has the one that it had.
        """
        assigned_epochs = {}
        for topic_id, indexes in after.assigned.items():
            known = before.epochs_of_assigned(topic_id)
            assigned_epochs[topic_id] = tuple(known.get(i, self.epoch) for i in sorted(indexes))
        revoking_epochs = {}
        for topic_id, indexes in after.revoking.items():
            known = before.epochs_of(topic_id)
            revoking_epochs[topic_id] = tuple(known[i] for i in sorted(indexes))
        return replace(after, assigned_epochs=assigned_epochs, revoking_epochs=revoking_epochs)

    def _owns(self, partitions: TopicPartitions) -> bool:
        """Return true if the member may still have one of these partitions."""
        return self.owned is None or overlap(self.owned, partitions)

    def _subscribed(self, current: CurrentAssignment) -> CurrentAssignment:
        """Take the topics away that the member does not subscribe to any more."""
        gone = {t: i for t, i in current.assigned.items() if t not in self.topics}
        if not gone:
            return current
        kept = {t: i for t, i in current.assigned.items() if t in self.topics}
        revoking = _union(current.revoking, gone)
        if self._owns(revoking):
            return CurrentAssignment(
                epoch=current.epoch,
                previous_epoch=current.epoch,
                state=MemberState.UNREVOKED_PARTITIONS,
                assigned=kept,
                revoking=revoking,
            )
        return CurrentAssignment(
            epoch=current.epoch,
            previous_epoch=current.epoch,
            state=current.state,
            assigned=kept,
            revoking=current.revoking,
        )

    def _towards_target(self, current: CurrentAssignment) -> CurrentAssignment:
        assigned: dict[bytes, frozenset[int]] = {}
        revoking: dict[bytes, frozenset[int]] = {}
        added: dict[bytes, frozenset[int]] = {}
        is_waiting = False
        for topic_id in self.target.keys() | current.assigned.keys():
            wanted = self.target.get(topic_id, _NONE) if topic_id in self.topics else _NONE
            had = current.assigned.get(topic_id, _NONE)
            given_back = current.revoking.get(topic_id, _NONE)
            missing = wanted - had
            free = frozenset(
                index for index in missing if index in given_back or self.is_free(topic_id, index)
            )
            is_waiting = is_waiting or len(free) < len(missing)
            _put(assigned, topic_id, had & wanted)
            _put(revoking, topic_id, had - wanted)
            _put(added, topic_id, free)
        if revoking and self._owns(revoking):
            return CurrentAssignment(
                epoch=current.epoch,
                previous_epoch=current.epoch,
                state=MemberState.UNREVOKED_PARTITIONS,
                assigned=assigned,
                revoking=revoking,
            )
        return CurrentAssignment(
            epoch=self.epoch,
            previous_epoch=current.epoch,
            state=MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE,
            assigned=_union(assigned, added),
        )


def _put(partitions: dict[bytes, frozenset[int]], topic_id: bytes, indexes: frozenset[int]) -> None:
    if indexes:
        partitions[topic_id] = indexes


def _union(one: TopicPartitions, other: TopicPartitions) -> TopicPartitions:
    return {
        topic_id: one.get(topic_id, _NONE) | other.get(topic_id, _NONE)
        for topic_id in (*one, *(topic for topic in other if topic not in one))
    }
