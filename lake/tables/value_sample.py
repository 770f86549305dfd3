"""The first values of a topic, to guess what the rest looks like."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from lakehead.lake.catalog import PartitionLog
from lakehead.lake.decode.decoder import RecordDecoder
from lakehead.lake.decode.invalid import PassedOver
from lakehead.lake.moved_ranges import plan_moved
from lakehead.lake.planner import OffsetRange
from lakehead.lake.record_reader import read_records
from lakehead.lake.store_reader import ObjectReader

_COLUMNS = ("key", "value", "partition", "offset")

SAMPLE_BYTES = 64 << 20
"""Size of a sample at most, unless its first record has more: it is in memory, and is parsed."""


def sample_records(
    reader: ObjectReader, logs: Sequence[PartitionLog], count: int, *, both_ends: bool = False
) -> Any:
    """Return about `count` records, the first ones of each partition and as many of each, with
    `both_ends` as many of the newest: a batch with `key`, `value` and its place, from which a
    decoder can infer the schema; None without any. Of large records there are fewer, up to
    `SAMPLE_BYTES` from each end. Raises what reading objects raises.
    """
    each = -(-count // max(len(logs), 1))
    batches = list(_up_to_size([_first_batches(reader, log, each) for log in logs]))
    if both_ends:
        batches += _up_to_size([_last_batches(reader, log, each) for log in logs])
    if not sum(batch.num_rows for batch in batches):
        return None
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _first_batches(reader: ObjectReader, log: PartitionLog, count: int) -> Iterator[Any]:
    end = min(log.end_offset, log.start_offset + count)
    return records_between(reader, log, log.start_offset, end, _COLUMNS)


def _last_batches(reader: ObjectReader, log: PartitionLog, count: int) -> Iterator[Any]:
    """Those of the newest records that are not among the first."""
    start = max(log.start_offset + count, log.end_offset - count)
    return records_between(reader, log, start, log.end_offset, _COLUMNS)


def _up_to_size(partitions: Sequence[Iterator[Any]]) -> Iterator[Any]:
    """Yield the batches of partitions up to `SAMPLE_BYTES`, about as much of each."""
    left = SAMPLE_BYTES
    for number, batches in enumerate(partitions):
        share = left // (len(partitions) - number)
        while share > 0 and (batch := next(batches, None)) is not None:
            if batch.nbytes > share:
                rows = max(batch.num_rows * share // batch.nbytes, 1)
                # A slice would keep all of the batch in memory.
                batch = batch.take(pa.array(range(rows), pa.int64()))
            yield batch
            left, share = left - batch.nbytes, share - batch.nbytes


def records_between(
    reader: ObjectReader, log: PartitionLog, start: int, end: int, columns: Sequence[str]
) -> Iterator[Any]:
    """Return the records of a partition from one offset to before another, in batches. Raises the
    errors of reading objects. Records that cannot be read are left out.
    """
    if start >= end:
        return
    requested = [OffsetRange(log=log, start=start, end=end)]
    for split in plan_moved(reader, requested):
        decoder = RecordDecoder(columns, invalid=PassedOver())
        yield from read_records(reader, split.ranges, decoder)
