"""Batch reads of the Spark source. Runs in Spark's Python workers: `partitions` once per read, on
the driver's side, `read` once per split.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from lakehead.lake.offsets import resolve
from lakehead.lake.planner import Split
from lakehead.lake.source.options import ReadOptions
from lakehead.lake.source.rows import Rows
from lakehead.lake.source.splits import SplitPartition, plan_partitions, read_split
from lakehead.lake.source.view import View, Viewer

if TYPE_CHECKING:
    import pyarrow as pa

_NOTHING = Split(ranges=())


class BatchReader(DataSourceReader):
    """One read of topics. What is latest is settled when Spark asks for the partitions: at the
    first action on a DataFrame, and for good.
    """

    def __init__(self, options: ReadOptions, rows: Rows) -> None:
        self._options = options
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        """Plan the splits, from the metadata log and the indexes of the objects in reach."""
        # Spark asks for one split at least.
        return Viewer(self._options).look(self._plan) or [SplitPartition(_NOTHING)]

    def _plan(self, view: View) -> list[InputPartition]:
        asked = resolve(view.snapshot, list(view.logs.values()), self._options.bounds)
        return plan_partitions(self._options, view.snapshot, asked)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the records of a split as Arrow batches."""
        yield from read_split(self._options, self._rows, partition)
