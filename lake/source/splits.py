"""Splits of the Spark source: made where the query is planned, read in tasks."""

import functools
import gc
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lakehead.lake.moved_ranges import plan_moved, read_moved
from lakehead.lake.planner import OffsetRange, Split
from lakehead.lake.snapshot import Snapshot
from lakehead.lake.source.options import ReadOptions
from lakehead.lake.source.rows import Rows, RowsOfPartitions
from lakehead.lake.store_reader import store_reader

if TYPE_CHECKING:
    import pyarrow as pa

_SPLITS_WANTED = 16
"""Splits of a small read: a data source cannot know the number of cores."""


def splits_of_read(
    options: ReadOptions, snapshot: Snapshot, requested: Sequence[OffsetRange]
) -> tuple[Split, ...]:
    """Return the splits of a read. Raises DataLoss, CorruptObject, StoreUnavailable."""
    return plan_moved(
        snapshot,
        requested,
        splits_min=options.splits_min,
        splits_wanted=_SPLITS_WANTED,
        offsets_max=options.offsets_in_split_max,
        fail_on_data_loss=options.bounds.fail_on_data_loss,
    )


def read_split(options: ReadOptions, rows: Rows, split: Split) -> Iterator["pa.RecordBatch"]:
    """Yield the rows of a split as Arrow batches."""
    # Only tasks decode: the planner, and the worker that returns the schema, start quicker.
    from lakehead.lake.decode.decoder import RecordDecoder
    from lakehead.lake.decode.invalid import ByMode
    from lakehead.lake.record_reader import count_fetched, decode_fetched

    _keep_modules()
    reader = store_reader(options.path)
    decoder = RecordDecoder(rows.record_columns, invalid=ByMode(mode=options.mode))
    fail_on_data_loss = options.bounds.fail_on_data_loss
    pieces = read_moved(reader, split.ranges, fail_on_data_loss=fail_on_data_loss)
    if isinstance(rows, RowsOfPartitions):
        for fetched in pieces:
            topic, partition = fetched.range.id
            yield from rows.batches(topic, partition, count_fetched(fetched, decoder))
        return
    make = rows.maker()
    for fetched in pieces:
        for batch in decode_fetched(fetched, decoder):
            yield make(batch)


@functools.cache
def _keep_modules() -> None:
    """Take what is imported by now out of the garbage collector's sight, once in a process.

    Spark's worker collects all garbage after each task. To look through the modules of a compiler
    each time would cost more than to read a split.
    """
    gc.collect()
    gc.freeze()
