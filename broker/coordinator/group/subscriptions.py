"""Which topics the members of a group consume.

That is in their metadata, in the format of the consumer protocol: version i16, then an array of
strings. Of other protocols nothing is known. Where a consumer's metadata cannot be read, every
topic counts as subscribed to, as in Kafka: what is in use is not deleted by mistake.
"""

import struct
from collections.abc import Iterable

from lakehead.broker.coordinator.group.messages import GroupSnapshot

CONSUMER = "consumer"
"""The protocol type of consumers."""

_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


class Subscriptions:
    """What the members of a group, as it is now, are subscribed to."""

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
