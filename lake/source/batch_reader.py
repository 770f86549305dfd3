"""Batch reads of topics by the Spark source.

Spark's Python workers call `partitions` once per read, on the driver's side, and `read` once per
split.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from lakehead.lake.group_offsets import without_groups
from lakehead.lake.offsets import resolve
from lakehead.lake.planner import Split
from lakehead.lake.source.options import ReadOptions
from lakehead.lake.source.rows import Rows
from lakehead.lake.source.split_partition import SplitPartition, partitions_of, split_of
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
        needed = self._options.needs.narrowed(requested)
        return partitions_of(splits_of_read(self._options, view.snapshot, needed))

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the records of a split as Arrow batches."""
        yield from read_split(self._options, self._rows, split_of(partition))
