"""The batch headers from which a partition's state is built. An object without a newer state of a
partition carries the headers of its batches, so that opening the partition reads no data.

A state remembers five batches of each idempotent producer, and open transactions. So the newest
five headers of each producer are kept, and all that belong to transactions: unchanged batch
headers, 61 bytes each, in offset order. A control batch is kept whole, since its record says
whether the transaction was committed.
"""

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lakehead.storage.format.control_batch import Marker, read_marker
from lakehead.storage.format.record_batch import (
    ATTRIBUTES_POSITION,
    CONTROL,
    HEADER_SIZE,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    BatchHeader,
    producer_id,
    read_header,
    with_header,
)
from lakehead.storage.object_store.protocol import Buffer

KEPT = 5
_FOLDED_AT = 4096
_FLAGS_POSITION = ATTRIBUTES_POSITION + 1
_FLAGS_AND_PRODUCER = struct.Struct(">22xB20xq")
"""Of the header of a record batch (`record_batch`)."""


class StateBatch(NamedTuple):
    """One batch, as far as a partition's state needs it. `marker`: what a control batch says."""

    header: BatchHeader
    marker: Marker | None


def state_batch(batch: memoryview) -> StateBatch:
    """Return what counts of one whole batch. Raises ValueError for a malformed control batch."""
    header = read_header(batch)
    return StateBatch(header, read_marker(batch) if header.is_control else None)


def producer_headers(batches: Sequence[Buffer]) -> bytes:
    """Return what counts of a stream's batches, each one RecordBatch."""
    found: list[bytes] = []
    kept: dict[int, int] = {}
    whole = with_header(batches)
    kinds = Counter(map(_FLAGS_AND_PRODUCER.unpack_from, whole))
    most = sum(
        count if flags & (CONTROL | TRANSACTIONAL) else min(count, KEPT)
        for (flags, producer), count in kinds.items()
        if producer != NO_PRODUCER_ID
    )
    for batch in reversed(whole):
        if len(found) == most:
            break  # no older one counts
        flags, producer = _FLAGS_AND_PRODUCER.unpack_from(batch)
        if producer == NO_PRODUCER_ID:
            continue
        count = kept.get(producer, 0)
        if flags & CONTROL:  # it has no sequence
            found.append(bytes(batch))
        elif count < KEPT or flags & TRANSACTIONAL:
            found.append(bytes(batch[:HEADER_SIZE]))
            kept[producer] = count + 1
    found.reverse()
    return b"".join(found)


def head_of(batch: Buffer) -> bytes:
    """Return the part of a batch of which `producer_headers` makes the same as of all of it."""
    if len(batch) >= HEADER_SIZE and batch[_FLAGS_POSITION] & CONTROL:
        return bytes(batch)
    return bytes(batch[:HEADER_SIZE])


class GatheredHeaders:
    """The part that counts of a stream's batches, gathered as they come."""

    __slots__ = ("_fold_at", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[Buffer] = []
        self._fold_at = _FOLDED_AT

    def add(self, batch: Buffer) -> None:
        """Add the next batch, one RecordBatch."""
        if len(batch) < HEADER_SIZE or producer_id(batch) == NO_PRODUCER_ID:
            return
        self._pieces.append(head_of(batch))
        self._fold()

    def add_encoded(self, data: bytes) -> None:
        """Add what `producer_headers` made of the next batches. Raises ValueError where it is
        malformed.
        """
        self._pieces += raw_producer_headers(data)
        self._fold()

    def _fold(self) -> None:
        if len(self._pieces) >= self._fold_at:
            self._pieces = list(raw_producer_headers(self.encoded()))
            self._fold_at = max(_FOLDED_AT, 2 * len(self._pieces))

    def encoded(self) -> bytes:
        """Return what `producer_headers` makes of these batches."""
        return producer_headers(self._pieces)


def raw_producer_headers(data: bytes) -> Iterator[memoryview]:
    """Yield what an object carries, piece by piece: headers, and whole control batches. Raises
    ValueError where it is malformed.
    """
    view, at = memoryview(data), 0
    while at + HEADER_SIZE <= len(view):
        header = read_header(view, at)
        size = header.size if header.is_control else HEADER_SIZE
        if size < HEADER_SIZE or at + size > len(view):
            raise ValueError("a control batch is cut short")
        yield view[at : at + size]
        at += size


def parse_producer_headers(data: bytes) -> Iterator[StateBatch]:
    """Yield what an object carries. Raises ValueError where it is malformed."""
    for piece in raw_producer_headers(data):
        yield state_batch(piece)
