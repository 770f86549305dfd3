"""The transactions of a partition: which are open, and which were aborted (KIP-98).

Readers of committed records see offsets below the first that is not decided: that of the oldest
open transaction, or of one whose marker is not durable yet. Among them they leave out what aborted
transactions wrote, by the entries kept here: one for each abort, in the order of markers, as in
Kafka's transaction index.

Aborted transactions are packed as 32 bytes each, big-endian: producer id, first offset, last offset
(of the marker), last stable offset; i64 each. A partition may have a million of them, and they go
into its states: so they are kept like that.
"""

import sys
from array import array
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence

from lakehead.storage.format.stream_object import AbortedTransaction

_FIELDS = 4
ENTRY_SIZE = 8 * _FIELDS
_LAST_OFFSET = 2


def pack_aborted(entries: Iterable[AbortedTransaction]) -> bytes:
    """Return aborted transactions, in the order of their markers, as a state holds them."""
    return _to_bytes(_columns(entries))


class TransactionIndex:
    """The transactions of one partition, as the batches in offset order show them."""

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self._open: OrderedDict[int, int] = OrderedDict()  # first offsets by producer, ascending
        self._ended: deque[tuple[int, int]] = deque()  # first offset, end of a marker in flight
        self._aborted = _columns(aborted)

    @property
    def packed_size(self) -> int:
        """Bytes of all aborted transactions, packed."""
        return len(self._aborted) * self._aborted.itemsize

    def size_since(self, offset: int) -> int:
        """Return the bytes, packed, of those whose markers are at `offset` or beyond."""
        return self.packed_size - ENTRY_SIZE * self._row(offset)

    def is_open(self, producer_id: int) -> bool:
        """Return true if a producer has a transaction open."""
        return producer_id in self._open

    def begin(self, producer_id: int, first_offset: int) -> None:
        """A producer wrote the first batch of a transaction."""
        self._open[producer_id] = first_offset

    def end(self, producer_id: int, marker_offset: int, *, is_commit: bool) -> None:
        """A marker was written. Without an open transaction it changes nothing."""
        first_offset = self._open.pop(producer_id, None)
        if first_offset is None:
            return
        self._ended.append((first_offset, marker_offset + 1))
        if not is_commit:
            stable = next(iter(self._open.values()), marker_offset + 1)
            self._aborted.extend((producer_id, first_offset, marker_offset, stable))

    def last_stable_offset(self, confirmed_offset: int) -> int:
        """Return the end of what is decided and durable."""
        ended = self._ended
        while ended and ended[0][1] <= confirmed_offset:
            ended.popleft()
        stable = confirmed_offset
        if self._open:
            stable = min(stable, next(iter(self._open.values())))
        if ended:
            stable = min(stable, min(ended)[0])
        return stable

    def aborted_among(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that may have records in [start, end)."""
        found = []
        for row in range(self._row(start_offset), len(self._aborted) // _FIELDS):
            entry = self._entry(row)
            if entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                break  # whatever ended later began behind that
        return found

    def aborted_by(self, start_offset: int, end_offset: int) -> Sequence[AbortedTransaction]:
        """Return the aborted transactions whose markers lie in [start, end)."""
        rows = range(self._row(start_offset), self._row(end_offset))
        return [self._entry(row) for row in rows]

    def trim(self, start_offset: int) -> None:
        """Forget what was aborted below the log's start."""
        del self._aborted[: _FIELDS * self._row(start_offset)]

    def packed(self, end_offset: int) -> bytes:
        """Return the aborted transactions whose markers lie below an offset, packed."""
        return _to_bytes(self._aborted[: _FIELDS * self._row(end_offset)])

    def packed_between(
        self, start_offset: int, end_offset: int, count: int | None = None
    ) -> tuple[bytes, int]:
        """Return aborted transactions whose markers lie in [start, end), the first `count` of them,
        packed; and the offset to go on from.
        """
        first, end = self._row(start_offset), self._row(end_offset)
        last = end if count is None else min(end, first + count)
        packed = _to_bytes(self._aborted[_FIELDS * first : _FIELDS * last])
        return packed, end_offset if last == end else self._entry(last).last_offset

    def restore(self, first_offsets: Sequence[tuple[int, int]], packed: bytes) -> None:
        """Take over what a partition state held: (first offset, producer id) of the open ones, and
        the aborted ones. Raises ValueError for bytes that are not whole.
        """
        if len(packed) % ENTRY_SIZE:
            raise ValueError(f"{len(packed)} bytes of aborted transactions")
        self._open.update((producer_id, first) for first, producer_id in sorted(first_offsets))
        self._aborted.extend(_from_bytes(packed))

    def _entry(self, row: int) -> AbortedTransaction:
        return AbortedTransaction(*self._aborted[_FIELDS * row : _FIELDS * (row + 1)])

    def _row(self, offset: int) -> int:
        """Return the first entry whose marker is at `offset` or beyond."""
        aborted = self._aborted
        rows = range(len(aborted) // _FIELDS)
        return bisect_left(rows, offset, key=lambda row: aborted[_FIELDS * row + _LAST_OFFSET])


def _columns(entries: Iterable[AbortedTransaction]) -> "array[int]":
    numbers: array[int] = array("q")
    for one in entries:
        numbers.extend((one.producer_id, one.first_offset, one.last_offset, one.last_stable_offset))
    return numbers


def _to_bytes(numbers: "array[int]") -> bytes:
    swapped = numbers[:]
    if sys.byteorder == "little":
        swapped.byteswap()
    return swapped.tobytes()


def _from_bytes(packed: bytes) -> "array[int]":
    numbers: array[int] = array("q")
    numbers.frombytes(packed)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
