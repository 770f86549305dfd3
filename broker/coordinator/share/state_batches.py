"""State batches put together: ranges of offsets, in order and apart, with the newest state."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from lakehead.broker.share.record_state import StateBatch


def combined(
    known: Sequence[StateBatch], added: Iterable[StateBatch], start_offset: int
) -> tuple[StateBatch, ...]:
    """Return `known`, which is in order and apart, with `added`, from `start_offset` on.

    Of batches that overlap, the higher delivery count wins, then the higher state, as in Kafka:
    neither ever falls, so a write that comes late or twice changes nothing.
    """
    batches = [
        one for one in _merged(known, _apart(list(added))) if one.last_offset >= start_offset
    ]
    if batches and batches[0].first_offset < start_offset:
        batches[0] = batches[0]._replace(first_offset=start_offset)
    return tuple(_joined(batches))


def _apart(batches: Sequence[StateBatch]) -> Sequence[StateBatch]:
    """Return batches in order and apart. Thousands may come at once, in order mostly."""
    if all(one.last_offset < other.first_offset for one, other in pairwise(batches)):
        return batches
    half = len(batches) // 2
    return list(_merged(_apart(batches[:half]), _apart(batches[half:])))


def _merged(ones: Iterable[StateBatch], others: Iterable[StateBatch]) -> Iterator[StateBatch]:
    """Yield the batches of two, each in order and apart, in order and apart."""
    left, right = iter(ones), iter(others)
    one, other = next(left, None), next(right, None)
    while one is not None and other is not None:
        if other.first_offset < one.first_offset:
            one, other, left, right = other, one, right, left
        if one.last_offset < other.first_offset:
            yield one
            one = next(left, None)
            continue
        if one.first_offset < other.first_offset:
            yield one._replace(last_offset=other.first_offset - 1)
            one = one._replace(first_offset=other.first_offset)
        last_offset = min(one.last_offset, other.last_offset)
        winner = max(one, other, key=lambda batch: (batch.delivery_count, batch.state))
        yield winner._replace(last_offset=last_offset)
        one = _rest(one, last_offset) or next(left, None)
        other = _rest(other, last_offset) or next(right, None)
    if one is not None:
        yield one
        yield from left
    if other is not None:
        yield other
        yield from right


def _rest(batch: StateBatch, offset: int) -> StateBatch | None:
    """Return the part of a batch behind an offset, None if there is none."""
    return batch._replace(first_offset=offset + 1) if batch.last_offset > offset else None


def _joined(batches: Iterable[StateBatch]) -> Iterator[StateBatch]:
    """Yield batches, with neighbours of one state as one."""
    last: StateBatch | None = None
    for one in batches:
        if last is None:
            last = one
        elif last.last_offset + 1 == one.first_offset and last[2:] == one[2:]:
            last = last._replace(last_offset=one.last_offset)
        else:
            yield last
            last = one
    if last is not None:
        yield last
