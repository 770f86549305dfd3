"""Partitions, and positions in them at which a read begins or ends. Without the store: a process
that only returns the schema of a read starts quicker.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Position(NamedTuple):
    """A place in a partition: its start, its end, an offset, or the first record with a timestamp
    (milliseconds) at or above `value`.
    """

    kind: Literal["earliest", "latest", "offset", "timestamp"]
    value: int = 0


class GroupPosition(NamedTuple):
    """The offsets that a consumer group has committed, each a position of its partition."""

    group_id: str

    @classmethod
    def parse(cls, text: str) -> "GroupPosition | None":
        """Return what `group:NAME` names; None for any other text."""
        group_id = text.removeprefix(_GROUP)
        return cls(group_id) if text.startswith(_GROUP) and group_id else None


_GROUP = "group:"

EARLIEST = Position("earliest")
LATEST = Position("latest")


Positions = Position | GroupPosition | Mapping[TopicPartition, Position]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """From where to where to read: one position for all partitions, one for each, or those of a
    group, which take a look at its commits (`lakehead.lake.group_offsets.without_groups`).

    `latest_without_match`: a start for whose timestamp there is no record is the end of the
    partition, else an error. (An end without a match is always the end of the partition.)
    """

    starting: Positions = EARLIEST
    ending: Positions = LATEST
    latest_without_match: bool = False
    fail_on_data_loss: bool = True
