"""Batch reads of topics by the Spark source.

Spark's Python workers call `partitions` once per read, on the driver's side, and `read` once per
split.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from lakehead.lake.group_offsets import without_groups
from lakehead.lake.moved_ranges import find_indexes
from lakehead.lake.offsets import resolve
from lakehead.lake.planner import Split
from lakehead.lake.row_counts import count_rows, first_rows
from lakehead.lake.source.options import ReadOptions
from lakehead.lake.source.rows import Rows, RowsOfPartitions
from lakehead.lake.source.split_partition import (
    CountedPartition,
    SplitPartition,
    partitions_of,
    split_of,
)
from lakehead.lake.source.splits import read_split, splits_of_read
from lakehead.lake.source.view import View, Viewer

if TYPE_CHECKING:
    import pyarrow as pa


_NOTHING = Split(ranges=())


class BatchReader(DataSourceReader):
    """One read of topics. The latest offsets are fixed when Spark calls `partitions`, at the first
    action on a DataFrame.
    """

    def __init__(self, options: ReadOptions, rows: Rows) -> None:
        self._options = options
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        """Plan the splits, from the metadata log and the indexes of the objects in reach."""
        # Spark needs one split at least.
        return Viewer(self._options).look(self._plan) or [SplitPartition(_NOTHING)]

    def _plan(self, view: View) -> list[InputPartition]:
        logs = list(view.logs.values())
        bounds = without_groups(view.snapshot, logs, self._options.bounds)
        requested = resolve(view.snapshot, logs, bounds)
        needs = self._options.needs
        needed = needs.narrowed(requested)
        if needs.limit is not None and self._keeps_every_record:
            needed = first_rows(view.snapshot, needed, needs.limit)
        if not isinstance(self._rows, RowsOfPartitions):
            return partitions_of(splits_of_read(self._options, view.snapshot, needed))
        fails = self._options.bounds.fail_on_data_loss
        needed, indexes = find_indexes(view.snapshot, needed, fail_on_data_loss=fails)
        counted, rest = count_rows(needed, indexes)
        splits = splits_of_read(self._options, view.snapshot, rest)
        return [CountedPartition(counted), *partitions_of(splits)]

    @property
    def _keeps_every_record(self) -> bool:
        """True if each record is a row, whatever it holds."""
        return self._options.decoding is None and self._options.mode != "DROPMALFORMED"

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the records of a split as Arrow batches."""
        if isinstance(partition, CountedPartition):
            assert isinstance(self._rows, RowsOfPartitions), "as they were planned for"
            for one in partition.counts:
                yield from self._rows.batches(*one)
            return
        yield from read_split(self._options, self._rows, split_of(partition))
