"""The transactions of a partition: which are open, and which were aborted (KIP-98).

Readers of committed records see offsets below the first that is not decided: that of the oldest
open transaction, or of one whose marker is not durable yet. Among them they leave out what aborted
transactions wrote, by the entries kept here: one for each abort, in the order of markers, as in
Kafka's transaction index.
"""

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Sequence

from storage.format.stream_object import AbortedTransaction


def _last_offset(entry: AbortedTransaction) -> int:
    return entry.last_offset


class TransactionIndex:
    """The transactions of one partition, as batches tell of them in offset order."""

    def __init__(self) -> None:
        self._open: OrderedDict[int, int] = OrderedDict()  # first offsets by producer, ascending
        self._ended: deque[tuple[int, int]] = deque()  # first offset, end of a marker in flight
        self._aborted: list[AbortedTransaction] = []

    def is_open(self, producer_id: int) -> bool:
        """Whether a producer has a transaction open."""
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
            self._aborted.append(
                AbortedTransaction(producer_id, first_offset, marker_offset, stable)
            )

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
        for entry in self._aborted[self._row(start_offset) :]:
            if entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                break  # whatever ended later began behind that
        return found

    def aborted_by(self, start_offset: int, end_offset: int) -> Sequence[AbortedTransaction]:
        """Return the aborted transactions whose markers lie in [start, end)."""
        return self._aborted[self._row(start_offset) : self._row(end_offset)]

    def trim(self, start_offset: int) -> None:
        """Forget what was aborted below the log's start."""
        del self._aborted[: self._row(start_offset)]

    def restore(
        self, first_offsets: Sequence[tuple[int, int]], aborted: Sequence[AbortedTransaction]
    ) -> None:
        """Take over what a partition state held: (first offset, producer id) of the open ones."""
        self._open.update((producer_id, first) for first, producer_id in sorted(first_offsets))
        self._aborted.extend(aborted)

    def _row(self, offset: int) -> int:
        """Return the first entry whose marker is at `offset` or beyond."""
        return bisect_left(self._aborted, offset, key=_last_offset)
