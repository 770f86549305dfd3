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
    asked: Sequence[OffsetRange],
    *,
    fail_on_data_loss: bool = True,
    **shape: Any,
) -> tuple[Split, ...]:
    """Return splits that cover what is asked, see `plan_splits`, from where the offsets lie now.

    Raises DataLoss for offsets that were deleted since, or that the newest metadata says are in an
    object that is not there; with `fail_on_data_loss` false they are left out. Raises what reading
    raises.
    """
    asked, indexes = find_indexes(reader, asked, fail_on_data_loss=fail_on_data_loss)
    return plan_splits(asked, indexes, fail_on_data_loss=fail_on_data_loss, **shape)


def find_indexes(
    reader: ObjectReader, asked: Sequence[OffsetRange], *, fail_on_data_loss: bool = True
) -> tuple[list[OffsetRange], Mapping[str, ObjectIndex]]:
    """Return what is asked with the extents that hold it now, and the indexes of their objects, but
    of those that are lost. Raises DataLoss, and what reading raises.
    """
    known, asked = dict[str, ObjectIndex](), list(asked)
    for _ in range(_LOOKS_MAX):
        keys = needed_objects(asked)
        known |= reader.read_indexes([key for key in keys if key not in known])
        gone = {key for key in keys if key not in known}
        if not gone:
            break
        catalog = reader.open_catalog()
        now = [_asked_now(catalog, one, gone, fail_on_data_loss) for one in asked]
        if now == asked:
            break
        asked = [one for one in now if one.start < one.end]
    return asked, known


def _asked_now(
    catalog: Catalog, asked: OffsetRange, gone: set[str], fail_on_data_loss: bool
) -> OffsetRange:
    """Return what is asked with the extents of a catalog, if it needs an object that is gone."""
    if gone.isdisjoint(extent.object_key for extent in asked.extents()):
        return asked
    log = _log_now(catalog, asked.log)
    start = asked.end if log is None else max(log.start_offset, asked.start)
    _check_start(asked.log, asked.start, asked.end, start, fail_on_data_loss)
    if log is None:
        return replace(asked, start=start)
    extents = log.extents
    if log.end_offset < asked.end:  # the tail is where it was
        tail = tuple(one for one in asked.log.extents if one.start_offset >= log.end_offset)
        if not tail or tail[0].start_offset != log.end_offset:
            return replace(asked, start=start)
        extents += tail
    return replace(asked, log=replace(asked.log, extents=extents), start=start)


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
        asked = [OffsetRange(log=log, start=start, end=range_.end_offset)]
        splits = plan_moved(reader, asked, fail_on_data_loss=fail_on_data_loss)
        found += [one for split in splits for one in split.ranges]
    return tuple(found)
