"""The records of a share-partition that are in flight: of record batches of which some were
delivered, and not done.

They are a list of batches without holes. A batch is a range of offsets that share their state,
member and lock, so a thousand records that one consumer acquired are one entry. It is split where a
part of it changes; equal neighbours are joined again, if they were delivered together at first.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter

from lakehead.broker.share.record_state import RecordState

NO_MEMBER = ""
NO_DEADLINE = -1

_first = attrgetter("first_offset")


class InFlightBatch:
    """Offsets, first and last inclusive, in one state.

    A batch that is ACQUIRED has its member and the deadline of its acquisition lock (ms). `change`
    is the request that will give it `next_state`, once that is durable. `origin` has the first and
    last offset of the range that was delivered together at first.
    """

    __slots__ = (
        "change",
        "deadline_ms",
        "delivery_count",
        "first_offset",
        "last_offset",
        "member_id",
        "next_state",
        "origin",
        "state",
    )

    def __init__(
        self, first_offset: int, last_offset: int, state: RecordState, delivery_count: int
    ) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.state = state
        self.delivery_count = delivery_count
        self.member_id = NO_MEMBER
        self.deadline_ms = NO_DEADLINE
        self.change: object | None = None
        self.next_state = state
        self.origin = first_offset, last_offset

    def __repr__(self) -> str:
        state = f"{self.state.name} {self.delivery_count} {self.member_id}".rstrip()
        return f"<{self.first_offset}-{self.last_offset} {state}>"

    def __len__(self) -> int:
        return self.last_offset - self.first_offset + 1

    @property
    def is_available(self) -> bool:
        """Return true if the records may be acquired now."""
        return self.state is RecordState.AVAILABLE

    def acquire(self, member_id: str, deadline_ms: int) -> None:
        """Give the records to a member, which makes one delivery more."""
        self.state = RecordState.ACQUIRED
        self.delivery_count += 1
        self.member_id = member_id
        self.deadline_ms = deadline_ms

    def become(self, state: RecordState) -> None:
        """Take a state in which no member has the records."""
        self.state = state
        self.member_id = NO_MEMBER
        self.deadline_ms = NO_DEADLINE
        self.change = None

    def split(self, offset: int) -> "InFlightBatch":
        """Cut before `offset`, which is inside; return the second part."""
        rest = InFlightBatch(offset, self.last_offset, self.state, self.delivery_count)
        rest.member_id = self.member_id
        rest.deadline_ms = self.deadline_ms
        rest.change = self.change
        rest.next_state = self.next_state
        rest.origin = self.origin
        self.last_offset = offset - 1
        return rest

    def resembles(self, other: "InFlightBatch") -> bool:
        """Return true if nothing distinguishes the records of two batches any more."""
        return (
            self.state is other.state
            and (
                self.state.is_terminal
                or (self.delivery_count == other.delivery_count and self.origin == other.origin)
            )
            and self.member_id == other.member_id
            and self.deadline_ms == other.deadline_ms
            and self.change is other.change
            and (self.change is None or self.next_state is other.next_state)
        )


class InFlightBatches:
    """The batches from the start offset of a share-partition to its end offset, in order."""

    __slots__ = ("_batches",)

    def __init__(self) -> None:
        self._batches: list[InFlightBatch] = []

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[InFlightBatch]:
        return iter(self._batches)

    def append(self, batch: InFlightBatch) -> None:
        """Add a batch, which begins where the last one ends."""
        assert not self._batches or self._batches[-1].last_offset + 1 == batch.first_offset
        self._batches.append(batch)

    def clear(self) -> None:
        """Remove all."""
        self._batches.clear()

    def overlapping(self, first_offset: int, last_offset: int) -> Sequence[InFlightBatch]:
        """Return the batches with offsets in [first, last]."""
        low = max(bisect_right(self._batches, first_offset, key=_first) - 1, 0)
        high = bisect_right(self._batches, last_offset, key=_first)
        found = self._batches[low:high]
        return found[1:] if found and found[0].last_offset < first_offset else found

    def cut(self, first_offset: int, last_offset: int) -> Sequence[InFlightBatch]:
        """Return the batches of [first, last]: those that reach beyond are split."""
        self._split(first_offset)
        self._split(last_offset + 1)
        return self.overlapping(first_offset, last_offset)

    def _split(self, offset: int) -> None:
        position = bisect_right(self._batches, offset, key=_first) - 1
        if position >= 0:
            batch = self._batches[position]
            if batch.first_offset < offset <= batch.last_offset:
                self._batches.insert(position + 1, batch.split(offset))

    def join(self) -> None:
        """Join neighbours that nothing distinguishes."""
        joined: list[InFlightBatch] = []
        for batch in self._batches:
            if joined and joined[-1].resembles(batch):
                joined[-1].last_offset = batch.last_offset
            else:
                joined.append(batch)
        self._batches = joined

    def drop_before(self, offset: int) -> None:
        """Remove the offsets below."""
        self._split(offset)
        del self._batches[: bisect_right(self._batches, offset - 1, key=_first)]

    def drop_done(self) -> int | None:
        """Remove the batches at the start that are done; return the offset after the last one that
        was removed, or None.
        """
        count, end = 0, None
        for batch in self._batches:
            if not batch.state.is_terminal:
                break
            count, end = count + 1, batch.last_offset + 1
        del self._batches[:count]
        return end
