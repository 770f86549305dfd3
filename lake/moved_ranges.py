"""Plans and reads offsets whose objects may go away meanwhile: they lie in other objects then.

WAL objects go when they are uploaded; others are merged or compacted, and go when their grace
period is over, while a job or a reader still works by an older view of the metadata.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lakehead.lake.catalog import Catalog, PartitionLog
from lakehead.lake.errors import DataLoss
from lakehead.lake.planner import ByteRange, OffsetRange, Split, needed_objects, plan_splits
from lakehead.lake.store_reader import Fetched, ObjectReader
from lakehead.storage.errors import ObjectNotFound
from lakehead.storage.format.stream_object import ObjectIndex

_LOOKS_MAX = 5


def plan_moved(
    reader: ObjectReader,
    requested: Sequence[OffsetRange],
    *,
    fail_on_data_loss: bool = True,
    **shape: Any,
) -> tuple[Split, ...]:
    """Return splits that cover the request, see `plan_splits`, by the present extents of its
    offsets.

    Raises DataLoss for offsets that were deleted since, or that the newest metadata says are in an
    object that is not there; with `fail_on_data_loss` false they are left out. Raises the errors
    of reading.
    """
    requested, indexes = find_indexes(reader, requested, fail_on_data_loss=fail_on_data_loss)
    return plan_splits(requested, indexes, fail_on_data_loss=fail_on_data_loss, **shape)


def find_indexes(
    reader: ObjectReader, requested: Sequence[OffsetRange], *, fail_on_data_loss: bool = True
) -> tuple[list[OffsetRange], Mapping[str, ObjectIndex]]:
    """Return the request with its present extents, and the indexes of their objects that are not
    lost. Raises DataLoss, and the errors of reading.
    """
    known, requested = dict[str, ObjectIndex](), list(requested)
    for _ in range(_LOOKS_MAX):
        keys = needed_objects(requested)
        known |= reader.read_indexes([key for key in keys if key not in known])
        gone = {key for key in keys if key not in known}
        if not gone:
            break
        catalog = reader.open_catalog()
        now = [_present_range(catalog, one, gone, fail_on_data_loss) for one in requested]
        if now == requested:
            break
        requested = [one for one in now if one.start < one.end]
    return requested, known


def _present_range(
    catalog: Catalog, requested: OffsetRange, gone: set[str], fail_on_data_loss: bool
) -> OffsetRange:
    """Return the request with the extents of a catalog, if it needs an object that is gone."""
    if gone.isdisjoint(extent.object_key for extent in requested.extents()):
        return requested
    log = _log_now(catalog, requested.log)
    start = requested.end if log is None else max(log.start_offset, requested.start)
    _check_start(requested.log, requested.start, requested.end, start, fail_on_data_loss)
    if log is None:
        return replace(requested, start=start)
    extents = log.extents
    if log.end_offset < requested.end:  # the tail is where it was
        tail = tuple(one for one in requested.log.extents if one.start_offset >= log.end_offset)
        if not tail or tail[0].start_offset != log.end_offset:
            return replace(requested, start=start)
        extents += tail
    return replace(requested, log=replace(requested.log, extents=extents), start=start)


def _log_now(catalog: Catalog, log: PartitionLog | ByteRange) -> PartitionLog | None:
    """Return a partition as it is now; None if its topic was deleted."""
    topic = catalog.state.topics.get(log.id.topic)
    is_there = topic is not None and topic.topic_id == log.topic_id
    return catalog.partition(log.id) if is_there else None


def _check_start(
    log: PartitionLog | ByteRange, first: int, end: int, start: int, fail_on_data_loss: bool
) -> None:
    if start != first and fail_on_data_loss:
        raise DataLoss(
            f"offsets {first} to {end - 1} of {log.id} were deleted while they were read (set "
            "failOnDataLoss to false to read the rest)"
        )


def read_moved(
    reader: ObjectReader, ranges: Sequence[ByteRange], *, fail_on_data_loss: bool = True
) -> Iterator[Fetched]:
    """Yield the bytes of `ranges` as `StoreReader.read` does; those of an object that is gone from
    where their offsets lie now. Raises as that, and DataLoss.
    """
    looks = 0
    while True:
        done, read = 0, 0
        try:
            for fetched in reader.read(ranges):
                yield fetched
                read += len(fetched.data)
                if read == fetched.range.length:
                    done, read = done + 1, 0
            return
        except ObjectNotFound:
            looks = 1 if done or read else looks + 1
            if looks > _LOOKS_MAX:
                raise
        left = ranges[done:]
        if read:
            left = (left[0].after(read), *left[1:])
        ranges = _found_again(reader, left, fail_on_data_loss)


def _found_again(
    reader: ObjectReader, ranges: Sequence[ByteRange], fail_on_data_loss: bool
) -> tuple[ByteRange, ...]:
    """Return where the offsets of ranges lie now: those that are not in committed objects are where
    they were.
    """
    catalog, found = reader.open_catalog(), list[ByteRange]()
    for range_ in ranges:
        log = _log_now(catalog, range_)
        start = range_.end_offset if log is None else max(log.start_offset, range_.first_offset)
        _check_start(range_, range_.first_offset, range_.end_offset, start, fail_on_data_loss)
        if log is None or start >= range_.end_offset:
            continue
        if log.end_offset < range_.end_offset:
            found.append(range_)
            continue
        log = replace(log, aborted=range_.aborted)
        requested = [OffsetRange(log=log, start=start, end=range_.end_offset)]
        splits = plan_moved(reader, requested, fail_on_data_loss=fail_on_data_loss)
        found += [one for split in splits for one in split.ranges]
    return tuple(found)
