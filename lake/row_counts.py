"""Rows that the indexes of objects count, so that a read of nothing but their number, or of the
first few, leaves data out.

The count of an index item is exact unless a transaction that was aborted reaches into it, or only
some of its offsets are requested. Control batches are not in it, and what log compaction or forget
has removed is not either: they write objects with counts of their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from lakehead.lake.planner import OffsetRange, covering_items
from lakehead.lake.store_reader import ObjectReader
from lakehead.storage.format.stream_object import IndexItem, ObjectIndex
from lakehead.storage.format.transaction_index import TransactionIndex
from lakehead.storage.metadata.extents import Extent

_INDEXES_MAX = 64
"""Indexes that are read, one after the other, to find out where the first rows end."""


class RowCount(NamedTuple):
    """A number of rows of a partition."""

    topic: str
    partition: int
    rows: int


class _Counter:
    """Counts the records of one request, item by item."""

    def __init__(self, requested: OffsetRange) -> None:
        self._requested = requested
        self._transactions = TransactionIndex(requested.log.aborted)

    def items(self, extent: Extent, index: ObjectIndex) -> list[tuple[IndexItem, bool]]:
        """Return the items of an extent, and of each whether its count is that of its rows."""
        start = max(self._requested.start, extent.start_offset)
        end = min(self._requested.end, extent.end_offset)
        items = covering_items(index, self._requested.log.stream_id, start, end)
        return [(item, self._is_exact(item, start, end)) for item in items]

    def _is_exact(self, item: IndexItem, start: int, end: int) -> bool:
        if item.kafka_records < 0 or item.start_offset < start or item.end_offset > end:
            return False
        return not any(self._transactions.aborted_among(item.start_offset, item.end_offset))


def count_rows(
    requested: Sequence[OffsetRange], indexes: Mapping[str, ObjectIndex]
) -> tuple[list[RowCount], list[OffsetRange]]:
    """Return the rows that are counted by indexes, and what is to be read to count the others.

    Raises CorruptObject.
    """
    counted: list[RowCount] = []
    rest: list[OffsetRange] = []
    for one in requested:
        counter, rows, begin = _Counter(one), 0, one.start
        for extent in one.extents():
            index = indexes.get(extent.object_key)
            for item, is_exact in () if index is None else counter.items(extent, index):
                if is_exact:
                    if begin < item.start_offset:
                        rest.append(replace(one, start=begin, end=item.start_offset))
                    rows, begin = rows + item.kafka_records, item.end_offset
        if begin < one.end:
            rest.append(replace(one, start=begin))
        if rows:
            counted.append(RowCount(one.log.id.topic, one.log.id.partition, rows))
    return counted, rest


def first_rows(
    reader: ObjectReader, requested: Sequence[OffsetRange], rows_min: int
) -> list[OffsetRange]:
    """Return the beginning of a read that has `rows_min` rows, if the whole has them. All of it
    where some tens of indexes do not say so. Raises the errors of reading.
    """
    kept: list[OffsetRange] = []
    rows = looks = 0
    for one in requested:
        counter = _Counter(one)
        for extent in one.extents():
            looks += 1
            index = reader.read_indexes([extent.object_key]).get(extent.object_key)
            if index is None or looks > _INDEXES_MAX:
                return list(requested)
            for item, is_exact in counter.items(extent, index):
                rows += item.kafka_records if is_exact else 0
                if rows >= rows_min:
                    return [*kept, replace(one, end=min(item.end_offset, one.end))]
        kept.append(one)
    return kept
