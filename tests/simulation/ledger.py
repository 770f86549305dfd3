"""What clients of a world tried, were told and saw, and whether all of it can be true.

Every batch is unique. One may appear only at the offset it was assigned, an offset has one batch
for ever, and what was acknowledged or once read must stay, until it is trimmed or its stream goes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from crc32c import crc32c

from lakehead.storage.format.record_batch import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    patch,
    read_header,
)

_HEADER = struct.Struct(">qiibIhiqqqhii")


class Violation(AssertionError):
    """A promise was broken."""


def make_batch(number: int, count: int, size: int, timestamp: int) -> bytearray:
    """Return batch `number`: `count` offsets, about `size` bytes, unlike any other's. Producer 7
    made all of them.
    """
    body = number.to_bytes(8, "big") * max(1, size // 8)
    batch = bytearray(_HEADER.size + len(body))
    length = len(batch) - 12
    _HEADER.pack_into(
        batch, 0, 0, length, 0, 2, 0, 0, count - 1, timestamp, timestamp, 7, 0, 0, count
    )
    batch[_HEADER.size :] = body
    crc = crc32c(memoryview(batch)[ATTRIBUTES_POSITION:])
    batch[CRC_POSITION:ATTRIBUTES_POSITION] = crc.to_bytes(4, "big")
    return batch


@dataclass(slots=True)
class StreamLedger:
    """What is known of one stream. Offsets as in `lakehead.storage.stream.stream.Stream`."""

    attempts: dict[int, list[bytes]] = field(default_factory=dict)
    """Batches that somebody appended, by the offset they were assigned."""
    known: dict[int, bytes] = field(default_factory=dict)
    """Batches that were acknowledged or read: these stay."""
    end: int = 0
    """The end of the last of them."""
    trimmed: int = 0
    """The start offset that a trim has reported …"""
    trimming: int = 0
    """… and the greatest that any trim may have set."""
    deleting: bool = False
    """A deletion was asked for; it may have happened."""
    deleted: bool = False


class Ledger:
    """What is known of all streams."""

    def __init__(self) -> None:
        self.streams: dict[int, StreamLedger] = {}
        self.acknowledged = 0
        self.reads = 0
        self._batches = 0

    def stream(self, stream_id: int) -> StreamLedger:
        """Return what is known of a stream."""
        return self.streams.setdefault(stream_id, StreamLedger())

    def attempt(
        self, stream_id: int, epoch: int, offset: int, count: int, size: int, timestamp: int
    ) -> memoryview:
        """Return a new batch that is about to be appended at `offset`."""
        self._batches += 1
        batch = make_batch(self._batches, count, size, timestamp)
        patch(batch, 0, offset, epoch)
        self.stream(stream_id).attempts.setdefault(offset, []).append(bytes(batch))
        return memoryview(batch)

    def acknowledge(self, stream_id: int, offset: int, batch: bytes) -> None:
        """A client was told that its batch is durable at `offset`."""
        self.acknowledged += 1
        self._learn(stream_id, offset, batch, "acknowledged")

    def saw(self, stream_id: int, payloads: Iterable[memoryview], wanted: int) -> int:
        """A reader that wanted `wanted` was given these; return where to read on."""
        ledger = self.stream(stream_id)
        at = wanted
        for payload in payloads:
            self.reads += 1
            header, batch = read_header(payload), bytes(payload)
            if not header.base_offset <= at < header.end_offset:
                raise Violation(
                    f"stream {stream_id}: asked for offset {at}, was given "
                    f"[{header.base_offset}, {header.end_offset})"
                )
            if batch not in ledger.attempts.get(header.base_offset, ()):
                raise Violation(
                    f"stream {stream_id}: nobody appended what is read at {header.base_offset}"
                )
            self._learn(stream_id, header.base_offset, batch, "read")
            at = header.end_offset
        return at

    def check_offsets(self, stream_id: int, start: int, end: int) -> None:
        """The start and the end (high watermark) of a stream as somebody sees them now."""
        ledger = self.stream(stream_id)
        if end < ledger.end:
            raise Violation(
                f"stream {stream_id}: the end went back to {end}, {ledger.end} was acknowledged"
            )
        if not ledger.trimmed <= start <= ledger.trimming:
            raise Violation(
                f"stream {stream_id}: starts at {start}, was trimmed to {ledger.trimmed} "
                f"(maybe to {ledger.trimming})"
            )

    def check_log(self, stream_id: int, start: int, seen: set[int]) -> None:
        """After reading a stream from `start` to its end: nothing that must be there is missing."""
        for offset, batch in self.stream(stream_id).known.items():
            if read_header(batch).end_offset > start and offset not in seen:
                raise Violation(f"stream {stream_id}: offset {offset} was acknowledged and is lost")

    def _learn(self, stream_id: int, offset: int, batch: bytes, how: str) -> None:
        ledger = self.stream(stream_id)
        known = ledger.known.setdefault(offset, batch)
        if known != batch:
            raise Violation(f"stream {stream_id}: offset {offset} is {how} with two values")
        ledger.end = max(ledger.end, read_header(batch).end_offset)
