"""Offsets of a stream as Spark keeps them in its checkpoint. Pure.

`{"t":{"0":123}}`, as Spark's Kafka source has them: the start of the next batch. A key of the form
`t@<topic id>` with an empty object names the id of the topic; no topic has such a name, and a
reader that does not know the form finds no partition there. Spark compares offsets by their text,
so the same offsets are always written the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lakehead.lake.errors import DataLoss
from lakehead.lake.positions import TopicPartition

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffsets:
    """The next offset of each partition; `topic_ids` by topic, where they are known."""

    offsets: Offsets
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, form: Mapping[str, Any]) -> "StreamOffsets":
        """Return the offsets of a form. Raises DataLoss for another form."""
        offsets: dict[TopicPartition, int] = {}
        topic_ids: dict[str, str] = {}
        try:
            for topic, partitions in form.items():
                name, at, topic_id = topic.partition("@")
                if at:
                    topic_ids[name] = topic_id
                for partition, offset in partitions.items():
                    offsets[TopicPartition(topic, int(partition))] = int(offset)
        except (AttributeError, TypeError, ValueError):
            raise DataLoss(
                f"the checkpoint has offsets {form!r}, which are not of this source: they must be "
                'like {"topic":{"0":23}}. Start the query with another checkpointLocation'
            ) from None
        return cls(offsets=offsets, topic_ids=topic_ids)

    def form(self) -> dict[str, dict[str, int]]:
        """Return what Spark writes as JSON."""
        form: dict[str, dict[str, int]] = {}
        for id_ in sorted(self.offsets):
            form.setdefault(id_.topic, {})[str(id_.partition)] = self.offsets[id_]
        for topic in sorted(self.topic_ids):
            form[f"{topic}@{self.topic_ids[topic]}"] = {}
        return form

    @property
    def topics(self) -> frozenset[str]:
        """The topics that there are offsets of."""
        return frozenset(id_.topic for id_ in self.offsets)

    def is_of(self, topic: str, topic_id: str) -> bool:
        """Return whether the offsets of a topic may be of the one with this id."""
        return self.topic_ids.get(topic, topic_id) == topic_id


def rate_limited(start: Offsets, end: Offsets, most: int) -> dict[TopicPartition, int]:
    """Return ends with about `most` offsets above `start` in all: each partition has a share in
    proportion to what it has, and at least one, so that none starves (as Spark's Kafka source).
    """
    sizes = {id_: end[id_] - start[id_] for id_ in end if end[id_] > start[id_]}
    total = sum(sizes.values())
    limited = dict(end)
    if total > most:
        for id_, size in sizes.items():
            share = max(most * size // total, 1)
            limited[id_] = min(start[id_] + share, end[id_])
    return limited


def offsets_between(start: Offsets, end: Offsets) -> int:
    """Return how many offsets lie between."""
    return sum(max(end[id_] - start[id_], 0) for id_ in end)
