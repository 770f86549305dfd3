"""The part of a stream reader that all Sparks share: where a stream starts, the splits of a batch,
and their rows.

Spark makes one reader where the query is planned, which lives as long as a run of the query, and
sends another, without state, to the tasks. The first has a planner.
"""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from lakehead.lake.source.options import ReadOptions
from lakehead.lake.source.rows import Rows
from lakehead.lake.source.split_partition import partitions_of, split_of
from lakehead.lake.source.splits import read_split, splits_of_read
from lakehead.lake.source.stream_offsets import StreamOffsets
from lakehead.lake.source.stream_planner import StreamPlanner

if TYPE_CHECKING:
    import pyarrow as pa


class PlannedStreamReader(DataSourceStreamReader):
    """A stream of topics, in batches from offset to offset. Offsets live in the checkpoint.

    The end of a batch is decided by the reader of each Spark.
    """

    def __init__(self, options: ReadOptions, rows: Rows) -> None:
        self._options = options
        self._rows = rows
        self._made: StreamPlanner | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new stream starts, by the options."""
        return self._planner().initial().form()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the splits of a batch."""
        begin, until = StreamOffsets.parse(start), StreamOffsets.parse(end)
        splits = self._planner().plan(begin, until, partial(splits_of_read, self._options))
        return partitions_of(splits)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the records of a split as Arrow batches."""
        yield from read_split(self._options, self._rows, split_of(partition))

    def _planner(self) -> StreamPlanner:
        if self._made is None:
            self._made = StreamPlanner(self._options)
        return self._made
