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


EARLIEST = Position("earliest")
LATEST = Position("latest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """From where to where to read: one position for all partitions, or one for each.

    `latest_without_match`: a start for whose timestamp there is no record is the end of the
    partition, else an error. (An end without a match is always the end of the partition.)
    """

    starting: Position | Mapping[TopicPartition, Position] = EARLIEST
    ending: Position | Mapping[TopicPartition, Position] = LATEST
    latest_without_match: bool = False
    fail_on_data_loss: bool = True
