"""Interfaces of sources and sinks, and the values that pass between them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import msgspec

from lakehead.storage.jobs.job import Totals


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectResult(Totals):
    """The result of one run. Counts only committed transactions."""

    records: int = 0
    """Records that are in their topic now."""
    bytes: int = 0
    """Of their keys and values."""
    dead_letters: int = 0
    """Bad input in the dead-letter topic."""
    skipped: int = 0
    """Bad input that was skipped."""
    finished: int = 0
    """Partitions of the source (files, versions) that were read to their end."""
    transactions: int = 0
    aborted: int = 0
    """Transactions that came to nothing and were done again."""
    seconds: float = 0.0

    def as_fields(self) -> dict[str, Any]:
        """Return name and figure, as a command or a task shows them."""
        fields = asdict(self)
        fields["seconds"] = round(self.seconds, 3)
        return {name.replace("_", " "): value for name, value in fields.items()}


class Progress(NamedTuple):
    """The progress of a run."""

    result: ConnectResult
    doing: str
    done_bytes: int
    total_bytes: int


Headers = tuple[tuple[str, bytes | None], ...]

Partition = Mapping[str, str]
"""The unit of a source that has a position, such as a file: Kafka Connect's source partition."""

Position = Mapping[str, Any]
"""The position of a source in a partition: Kafka Connect's source offset; values as JSON has them.
"""


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record for a topic."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    """None: the time at which it is written."""
    partition: int | None = None
    """None: chosen by the key as Kafka's own clients do, or any."""
    place: str = ""
    """The origin, for people."""

    @property
    def size_bytes(self) -> int:
        """Size in limits: key and value."""
        return len(self.value or b"") + len(self.key or b"")


class DeadLetter(msgspec.Struct, frozen=True, gc=False):
    """Bad input of a source: it cannot be a record."""

    place: str
    """File and line, or the like, for people."""
    reason: str
    raw: bytes
    """The input, or its beginning."""


class Batch(msgspec.Struct, frozen=True):
    """A part of what a source reads, small enough for memory, and the position behind it."""

    records: tuple[Record, ...]
    position: Position
    letters: tuple[DeadLetter, ...] = ()
    read_bytes: int = 0
    is_whole: bool = True
    """True if the position may be kept: False if only a later batch completes this one."""


class Work(NamedTuple):
    """A partition of a source with something to read."""

    partition: Partition
    name: str
    """For people."""
    size_bytes: int
    """Remaining size, approximate; 0 if unknown."""


Positions = Callable[[Partition], Position | None]
"""The position of a partition; None if it was never read."""


class Source(Protocol):
    """Reads one thing from the outside world.

    The same partition and position must give the same records in the same order: that is what makes
    each of them be in the topic once, whatever is killed.
    """

    def work(self, positions: Positions) -> Sequence[Work]:
        """Return the partitions that have something to read now, in the order to read them.

        Raises ConnectorError, StorageError.
        """

    def read(self, work: Work, position: Position | None) -> Iterator[Batch]:
        """Read a partition from a position to its present end. Raises as `work` does.

        Abandoned at any batch.
        """

    def close(self) -> None:
        """Give up what is open."""


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
    """The offset up to which a partition was read, and the id of its topic: an offset means nothing
    in a later topic of the same name.
    """

    next: int
    """The next offset to read."""
    topic_id: str
    """Empty where it is not known."""


Offsets = Mapping[TopicPartition, SourceOffset]
"""The offset of each partition."""


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

    def write(self, records: Sequence[Consumed]) -> ConnectResult:
        """Take records into the present unit; return how many, and what could not be taken.

        Raises TransactionAborted, ConnectorError.
        """

    def commit(self, offsets: Offsets) -> None:
        """End the unit: records and offsets are durable. Raises as `write` does."""

    def abort(self) -> None:
        """Forget the present unit."""

    def close(self) -> None:
        """Give up what is open."""
