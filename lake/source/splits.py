"""Splits of the Spark source: made where the query is planned, read in tasks."""

import functools
import gc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from lake.errors import DataLoss
from lake.planner import ByteRange, OffsetRange, Split, needed_objects, plan_splits
from lake.snapshot import Snapshot
from lake.source.options import ReadOptions
from lake.source.rows import Rows
from lake.store_reader import store_reader
from storage.errors import ObjectNotFound

if TYPE_CHECKING:
    import pyarrow as pa

_SPLITS_WANTED = 16
"""A small read is still shared out; how many cores there are is not told to a data source."""
_LOOKS_MAX = 5


class SplitPartition(InputPartition):
    """A split, as Spark hands it to a task."""

    def __init__(self, split: Split) -> None:
        super().__init__(split)
        self.split = split


def plan_partitions(
    options: ReadOptions, snapshot: Snapshot, asked: Sequence[OffsetRange]
) -> list[InputPartition]:
    """Return the splits of a read. Raises DataLoss, CorruptObject, StoreUnavailable."""
    splits = plan_splits(
        asked,
        snapshot.read_indexes(needed_objects(asked)),
        splits_min=options.splits_min,
        splits_wanted=_SPLITS_WANTED,
        offsets_max=options.offsets_in_split_max,
        fail_on_data_loss=options.bounds.fail_on_data_loss,
    )
    return [SplitPartition(split) for split in splits]


def read_split(
    options: ReadOptions, rows: Rows, partition: InputPartition
) -> Iterator["pa.RecordBatch"]:
    """Yield the rows of a split as Arrow batches.

    An object that is gone was replaced by another, which is looked up: WAL objects when they are
    uploaded, others by compaction while a query ran for very long.
    """
    # Only tasks decode: the planner, and the worker that asks for the schema, start quicker.
    from lake.decode.decoder import RecordDecoder
    from lake.record_reader import decode_fetched

    assert isinstance(partition, SplitPartition)
    _keep_modules()
    reader, decoder = store_reader(options.path), RecordDecoder(rows.record_columns)
    make = rows.maker()
    ranges, looks = partition.split.ranges, 0
    while True:
        done, read = 0, 0
        try:
            for fetched in reader.read(ranges):
                for batch in decode_fetched(fetched, decoder):
                    yield make(batch)
                read += len(fetched.data)
                if read == fetched.range.length:
                    done, read = done + 1, 0
            return
        except ObjectNotFound:
            if read or looks == _LOOKS_MAX:
                raise  # half of a range is read already
        looks += 1
        ranges = _found_again(options, ranges[done:])


@functools.cache
def _keep_modules() -> None:
    """Take what is imported by now out of the garbage collector's sight, once in a process.

    Spark's worker collects all garbage after each task. To look through the modules of a compiler
    each time would cost more than to read a split.
    """
    gc.collect()
    gc.freeze()


def _found_again(options: ReadOptions, ranges: Sequence[ByteRange]) -> tuple[ByteRange, ...]:
    """Return where the offsets of ranges lie now: those that are not in committed objects are where
    they were.
    """
    reader = store_reader(options.path)
    catalog, found = reader.open_catalog(), list[ByteRange]()
    for range_ in ranges:
        topic = catalog.state.topics.get(range_.topic)
        is_there = topic is not None and topic.topic_id == range_.topic_id
        log = catalog.partition(range_.id) if is_there else None
        start = range_.end_offset if log is None else max(log.start_offset, range_.first_offset)
        if start != range_.first_offset and options.bounds.fail_on_data_loss:
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
        splits = plan_splits(
            asked,
            reader.read_indexes(needed_objects(asked)),
            fail_on_data_loss=options.bounds.fail_on_data_loss,
        )
        found += [one for split in splits for one in split.ranges]
    return tuple(found)
