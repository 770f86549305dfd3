"""Rows of a table that its topic's records do not make again, counted by where they came from."""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

import pyarrow.dataset as ds

from lakehead.lake.tables.delta_table import Table

_PARTITIONS_AT_ONCE = 64


class Span(NamedTuple):
    """Offsets [first, end) of a partition."""

    first: int
    end: int


def rows_outside(table: Table, spans: Mapping[int, Span]) -> int:
    """Return how many rows of a topic's table are of none of these offsets, by partition."""
    each = [_within(partition, span) for partition, span in spans.items()]
    within = sum(
        table.count(reduce(or_, each[start : start + _PARTITIONS_AT_ONCE]))
        for start in range(0, len(each), _PARTITIONS_AT_ONCE)
    )
    return table.count() - within


def compacted_away(
    old: Sequence[Table], new: Sequence[Table | None], spans: Mapping[int, Span]
) -> int:
    """Return how many more rows `old` tables have than `new` ones of these offsets, by partition,
    which both have read: of records that compaction has removed since.
    """
    count = 0
    for partition, span in spans.items():
        predicate = _within(partition, span)
        before = sum(table.count(predicate) for table in old)
        after = sum(table.count(predicate) for table in new if table is not None)
        count += max(0, before - after)
    return count


def _within(partition: int, span: Span) -> Any:
    return (
        (ds.field("_partition") == partition)
        & (ds.field("_offset") >= span.first)
        & (ds.field("_offset") < span.end)
    )
