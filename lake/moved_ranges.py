"""Reads byte ranges whose objects may go away meanwhile: what they held is in other objects then.

WAL objects go when they are uploaded, others by compaction while somebody reads for very long.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lake.errors import DataLoss
from lake.planner import ByteRange, OffsetRange, needed_objects, plan_splits
from lake.store_reader import Fetched, StoreReader
from storage.errors import ObjectNotFound

_LOOKS_MAX = 5


def read_moved(
    reader: StoreReader, ranges: Sequence[ByteRange], *, fail_on_data_loss: bool = True
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
            looks = 1 if done else looks + 1
            if read or looks > _LOOKS_MAX:
                raise  # half of a range is read already
        ranges = _found_again(reader, ranges[done:], fail_on_data_loss)


def _found_again(
    reader: StoreReader, ranges: Sequence[ByteRange], fail_on_data_loss: bool
) -> tuple[ByteRange, ...]:
    """Return where the offsets of ranges lie now: those that are not in committed objects are where
    they were.
    """
    catalog, found = reader.open_catalog(), list[ByteRange]()
    for range_ in ranges:
        topic = catalog.state.topics.get(range_.topic)
        is_there = topic is not None and topic.topic_id == range_.topic_id
        log = catalog.partition(range_.id) if is_there else None
        start = range_.end_offset if log is None else max(log.start_offset, range_.first_offset)
        if start != range_.first_offset and fail_on_data_loss:
            raise DataLoss(
                f"offsets {range_.first_offset} to {range_.end_offset - 1} of {range_.id} were "
                "deleted while they were read (set failOnDataLoss to false to read the rest)"
            )
        if log is None or start >= range_.end_offset:
            continue
        if log.end_offset < range_.end_offset:
            found.append(range_)
            continue
        log = replace(log, aborted=range_.aborted)
        asked = [OffsetRange(log=log, start=start, end=range_.end_offset)]
        indexes = reader.read_indexes(needed_objects(asked))
        splits = plan_splits(asked, indexes, fail_on_data_loss=fail_on_data_loss)
        found += [one for split in splits for one in split.ranges]
    return tuple(found)
