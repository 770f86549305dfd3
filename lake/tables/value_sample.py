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


def sample_records(
    reader: ObjectReader, logs: Sequence[PartitionLog], count: int, *, both_ends: bool = False
) -> Any:
    """Return about `count` records, the first ones of each partition and as many of each, with
    `both_ends` as many of the newest: a batch with `key`, `value` and its place, from which a
    decoder can infer the schema; None without any. Raises what reading objects raises.
    """
    batches = list(_first_batches(reader, logs, count, _COLUMNS))
    if both_ends:
        batches += _last_batches(reader, logs, count, _COLUMNS)
    if not sum(batch.num_rows for batch in batches):
        return None
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _first_batches(
    reader: ObjectReader, logs: Sequence[PartitionLog], count: int, columns: Sequence[str]
) -> Iterator[Any]:
    each = -(-count // max(len(logs), 1))
    for log in logs:
        end = min(log.end_offset, log.start_offset + each)
        yield from records_between(reader, log, log.start_offset, end, columns)


def _last_batches(
    reader: ObjectReader, logs: Sequence[PartitionLog], count: int, columns: Sequence[str]
) -> Iterator[Any]:
    """Those of the newest records that are not among the first."""
    each = -(-count // max(len(logs), 1))
    for log in logs:
        start = max(log.start_offset + each, log.end_offset - each)
        yield from records_between(reader, log, start, log.end_offset, columns)


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
