"""Which of the ranges that are found of a stream count: pure.

A bucket holds more than the metadata named: objects that were replaced and not yet deleted, those
that a job or a node wrote and never committed. They hold the same records as others, or records
that nobody was told of. Of a node that was superseded without knowing it (a later stream epoch
begins at a lower offset), what lies beyond does not count. Of the rest, those are taken that
together cover the most offsets, as few as possible.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lakehead.storage.metadata.records import COMPACTED
from lakehead.storage.rebuild.found import FoundRange
from lakehead.storage.rebuild.tail import LastNumbers, counted_until


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """The ranges that count, in the order of offsets, and the offsets between them that no object
    holds. `tail` are ranges that lie behind the end that a crash made (see `tail`).
    """

    ranges: tuple[FoundRange, ...]
    holes: tuple[tuple[int, int], ...]
    tail: tuple[FoundRange, ...]

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """(epoch, first offset known of it), as in `StreamState`."""
        found: dict[int, int] = {}
        for one in self.ranges:
            for epoch, start in one.epochs:
                found.setdefault(epoch, start)
        return tuple(sorted(found.items()))


def cover(ranges: Sequence[FoundRange], last: LastNumbers) -> Cover:
    """Return which of a stream's ranges count; `last` is as of `last_numbers`."""
    ordered = sorted(_undisputed(ranges), key=lambda one: (one.end_offset, one.start_offset))
    found = _most(ordered)
    count = counted_until(found, last)
    chosen = found[:count]
    holes = tuple(
        (before.end_offset, after.start_offset)
        for before, after in pairwise(chosen)
        if before.end_offset < after.start_offset
    )
    return Cover(ranges=chosen, holes=holes, tail=found[count:])


def _undisputed(ranges: Sequence[FoundRange]) -> list[FoundRange]:
    """Leave out what goes on beyond the beginning of a later epoch."""
    begins: dict[int, int] = {}
    for one in ranges:
        for epoch, start in one.epochs:
            begins[epoch] = min(start, begins.get(epoch, start))
    limits: dict[int, int] = {}
    lowest = 1 << 63
    for epoch in sorted(begins, reverse=True):
        limits[epoch] = lowest
        lowest = min(lowest, begins[epoch])
    return [one for one in ranges if one.end_offset <= limits[one.epochs[-1][0]]]


_Worth = tuple[int, int, int, int]
"""Offsets covered; objects, negative; of these compacted ones; and the sum of their ages."""


def _most(ordered: Sequence[FoundRange]) -> tuple[FoundRange, ...]:
    """Return the ranges without an overlap that are worth most (weighted interval scheduling)."""
    ends = [one.end_offset for one in ordered]
    best: list[_Worth] = [(0, 0, 0, 0)]
    taken: list[int] = []
    for number, one in enumerate(ordered):
        before = bisect_right(ends, one.start_offset, 0, number)
        length, count, compacted, created = best[before]
        worth = (
            length + one.end_offset - one.start_offset,
            count - 1,
            compacted + (one.kind == COMPACTED),
            created + one.created_ms,
        )
        if worth > best[number]:
            best.append(worth)
            taken.append(before)
        else:
            best.append(best[number])
            taken.append(-1)
    chosen: list[FoundRange] = []
    number = len(ordered)
    while number:
        number -= 1
        if taken[number] >= 0:
            chosen.append(ordered[number])
            number = taken[number]
    return tuple(reversed(chosen))
