"""The first and the newest records of a topic, whichever partitions they are in."""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from lakehead.lake.catalog import PartitionLog
from lakehead.lake.committed import committed_now
from lakehead.lake.decode.columns import arrow_schema
from lakehead.lake.snapshot import Snapshots
from lakehead.lake.store_reader import ObjectReader, store_reader
from lakehead.lake.tables.value_sample import records_between

_WIDER = 8


def first_records(path: str, topic: str, count: int, columns: Sequence[str]) -> Any:
    """Return the oldest `count` records by their timestamps, as far as these rise in each
    partition: a table. Raises UnknownTopic, and what reading objects raises.
    """
    reader, logs = _logs(path, topic)
    tables = [_first(reader, log, count, columns) for log in logs]
    return _by_time(tables, columns).slice(0, count)


def last_records(path: str, topic: str, count: int, columns: Sequence[str]) -> Any:
    """Return the newest `count` records; as `first_records`."""
    reader, logs = _logs(path, topic)
    rows = _by_time([_last(reader, log, count, columns) for log in logs], columns)
    return rows.slice(max(rows.num_rows - count, 0))


def _logs(path: str, topic: str) -> tuple[ObjectReader, Sequence[PartitionLog]]:
    snapshot = Snapshots(store_reader(path)).now()
    return snapshot, committed_now(snapshot, snapshot.catalog, topic)


def _first(reader: ObjectReader, log: PartitionLog, count: int, columns: Sequence[str]) -> Any:
    found: list[Any] = []
    for batch in records_between(reader, log, log.start_offset, log.end_offset, columns):
        found.append(batch)
        if sum(one.num_rows for one in found) >= count:
            break
    return _table(found, columns).slice(0, count)


def _last(reader: ObjectReader, log: PartitionLog, count: int, columns: Sequence[str]) -> Any:
    """Look further back where compaction and markers of transactions have left gaps."""
    width = count
    while True:
        start = max(log.end_offset - width, log.start_offset)
        rows = _table(records_between(reader, log, start, log.end_offset, columns), columns)
        if rows.num_rows >= count or start == log.start_offset:
            return rows.slice(max(rows.num_rows - count, 0))
        width *= _WIDER


def _table(batches: Iterable[Any], columns: Sequence[str]) -> Any:
    return pa.Table.from_batches(batches, schema=arrow_schema(columns))


def _by_time(tables: list[Any], columns: Sequence[str]) -> Any:
    rows = pa.concat_tables([_table([], columns), *tables])
    return rows.sort_by([(name, "ascending") for name in ("timestamp", "partition", "offset")])
