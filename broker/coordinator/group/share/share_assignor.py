"""The assignor `simple` of share groups (KIP-932): each partition has at least one member, and each
member at least one partition, where there are enough of both. Members share partitions.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import TypeAlias

from lakehead.broker.coordinator.group.consumer.consumer_members import (
    TopicPartitions,
    topic_partitions,
)

Subscriptions: TypeAlias = Mapping[str, frozenset[bytes]]
"""The ids of the topics that a member subscribes to, by its id."""

SIMPLE = "simple"


def assign(
    subscriptions: Subscriptions, partitions: Mapping[bytes, frozenset[int]]
) -> dict[str, TopicPartitions]:
    """Return the partitions of each member, of those that have a state (`partitions`).

    Topics with the same subscribers are one round: with more members than partitions each member
    has one, else each partition has one member.
    """
    subscribers: dict[bytes, list[str]] = defaultdict(list)
    for member_id in sorted(subscriptions):
        for topic_id in subscriptions[member_id]:
            if topic_id in partitions:
                subscribers[topic_id].append(member_id)
    rounds: dict[tuple[str, ...], list[bytes]] = defaultdict(list)
    for topic_id in sorted(subscribers):
        rounds[tuple(subscribers[topic_id])].append(topic_id)
    given: dict[str, list[tuple[bytes, int]]] = {member_id: [] for member_id in subscriptions}
    for members, topics in rounds.items():
        places = [
            (topic_id, index) for topic_id in topics for index in sorted(partitions[topic_id])
        ]
        for turn in range(max(len(members), len(places)) if places else 0):
            given[members[turn % len(members)]].append(places[turn % len(places)])
    return {
        member_id: topic_partitions((topic_id, [index]) for topic_id, index in sorted(found))
        for member_id, found in given.items()
    }
