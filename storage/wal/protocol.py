"""The seam between a stream engine and its write-ahead log.

Positions are bytes in a log that never ends: they only grow, across restarts and across laps of a
ring, and start at 0 in a new log. A record occupies `[position, end_position)`.

Order of calls: `recover()` to its end, `start()` once, then `append()` and `trim()`, then
`close()`. All calls come from one event loop, and listeners are called on that loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class WalRecord:
    """One record batch of one stream, as recovered.

    `epoch` is the stream epoch it was written under; `base_offset` and `count` are stream offsets
    (the record covers `base_offset .. base_offset + count`, end exclusive).
    """

    position: int
    end_position: int
    stream_id: int
    epoch: int
    base_offset: int
    count: int
    payload: memoryview


class WalListener(Protocol):
    """Who is told about durability."""

    def released(self, position: int) -> None:
        """Every record that ends at or below `position` is durable. In order, on the loop."""

    def failed(self, error: Exception) -> None:
        """The log is broken: said once, and nothing is released after it.

        What was appended and not released has an unknown outcome: recovery may find it.
        """


class WriteAheadLog(Protocol):
    """A durable, ordered queue of record batches: appended at one end, trimmed at the other."""

    @property
    def next_position(self) -> int:
        """Where the next record goes; after `recover()`, where the new epoch begins."""

    @property
    def released_position(self) -> int:
        """The durable frontier: everything that ends at or below it survives a crash."""

    @property
    def trimmed_position(self) -> int:
        """Everything that ends at or below it is no longer needed and is not recovered."""

    @property
    def capacity(self) -> int:
        """Bytes that fit between the trimmed position and the next position."""

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet released."""

    def recover(self) -> AsyncIterator[WalRecord]:
        """Yield the records from the trimmed position to the end, in order. Before `start()`."""

    async def start(self, *, epoch: int, listener: WalListener) -> None:
        """Begin a node epoch, greater than every earlier one, after all that was recovered.

        Raises Fenced when the log has seen this epoch or a later one.
        """

    def append(
        self, stream_id: int, epoch: int, base_offset: int, count: int, payload: Buffer
    ) -> int:
        """Add one record and return its end position, to be compared with `released()`.

        The payload is copied before the call returns. Raises WalFull (no space until a trim or a
        release; nothing was changed), RecordTooLarge, WalFailed, WalClosed.
        """

    async def trim(self, position: int) -> None:
        """Free everything that ends at or below `position`; at most the released position.

        Remembered by recovery at some later time: after a crash, records may be recovered that
        were trimmed, never the other way round.
        """

    async def close(self) -> None:
        """Wait until all that was appended is released (or the log failed), then let go."""
