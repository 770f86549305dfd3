"""Streams of the Spark source from Spark 4.2 on, whose Python sources have admission control.

Spark makes one reader where the query is planned, which lives as long as a run of the query, and
sends another, without state, to the tasks. The first has a planner.
"""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from lakehead.lake.source.options import LONG_MAX, ReadOptions
from lakehead.lake.source.rows import Rows
from lakehead.lake.source.split_partition import partitions_of, split_of
from lakehead.lake.source.splits import read_split, splits_of_read
from lakehead.lake.source.stream_offsets import StreamOffsets
from lakehead.lake.source.stream_planner import StreamPlanner

if TYPE_CHECKING:
    import pyarrow as pa


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of topics, in batches from offset to offset. Offsets live in the checkpoint."""

    def __init__(self, options: ReadOptions, rows: Rows) -> None:
        self._options = options
        self._rows = rows
        self._made: StreamPlanner | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new stream starts, by the options."""
        return self._planner().initial().form()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return a limit other than that of `once`, so that `latest` can recognize a request for
        everything. It applies the limits of the options, which Spark's Python interface has no form
        for.
        """
        return ReadMaxRows(self._options.offsets_max or LONG_MAX)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the batch from `start` on ends."""
        is_unlimited = isinstance(limit, ReadAllAvailable)
        end = self._planner().latest(StreamOffsets.parse(start), is_unlimited=is_unlimited)
        return end.form()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return where everything that is there ends."""
        newest = self._planner().newest
        return None if newest is None else newest.form()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to what is there now, and no further."""
        self._planner().stop_at_present()

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
