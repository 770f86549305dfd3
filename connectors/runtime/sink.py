"""What a sink is."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from lakehead.connectors.runtime.figures import ConnectFigures
from lakehead.connectors.runtime.records import Headers


class TopicPartition(NamedTuple):
    """A partition of a topic that is read."""

    topic: str
    partition: int


class Consumed(NamedTuple):
    """A record of a topic."""

    at: TopicPartition
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int | None


class SourceOffset(NamedTuple):
    """How far a partition was read, and of which topic: an offset means nothing in a topic of the
    same name that was made later.
    """

    next: int
    """The next offset to read."""
    topic_id: str
    """Empty where it is not known."""


Offsets = Mapping[TopicPartition, SourceOffset]
"""How far each partition was read."""


class Sink(Protocol):
    """Takes records of topics elsewhere, unit by unit: what is written is nothing until `commit`.

    A sink that keeps records and offsets in one transaction holds each record once; one that cannot
    keeps offsets after records, and may repeat the last unit after a crash.
    """

    def open(self, partitions: Sequence[TopicPartition]) -> Offsets:
        """Return how far the target is in these partitions; one it knows nothing of is left out.
        From here on no former run of the same connector writes any more, where the target can
        forbid it.
        """

    def write(self, records: Sequence[Consumed]) -> ConnectFigures:
        """Take records into the present unit; return how many, and what could not be taken.

        Raises TransactionAborted, ConnectorError.
        """

    def commit(self, offsets: Offsets) -> None:
        """End the unit: records and offsets are durable. Raises as `write` does."""

    def abort(self) -> None:
        """Forget the present unit."""

    def close(self) -> None:
        """Give up what is open."""
