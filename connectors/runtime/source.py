"""What a source is."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from lakehead.connectors.runtime.records import Batch, Partition, Position, Work

Positions = Callable[[Partition], Position | None]
"""How far a partition was read; None if never."""


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
