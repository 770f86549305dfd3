"""Streams of the Spark source in Spark 4.0 and 4.1, whose Python sources have no admission control.

Spark requests the end of the next batch with neither its start nor a limit. The start is the end of
the batch before: the last one that this reader returned, or the one in the checkpoint, for which
Spark plans an empty batch when a query goes on. So each batch, also the only one of `availableNow`,
goes up to what is there.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from lakehead.lake.source.options import ReadOptions, stream_options
from lakehead.lake.source.rows import rows_of
from lakehead.lake.source.split_partition import partitions_of, split_of
from lakehead.lake.source.splits import read_split, splits_of_read
from lakehead.lake.source.stream_offsets import StreamOffsets
from lakehead.lake.source.stream_planner import StreamPlanner
from lakehead.storage.errors import SettingsError

if TYPE_CHECKING:
    import pyarrow as pa


class UnlimitedStreamReader(DataSourceStreamReader):
    """A stream of topics, in batches from offset to offset. Offsets live in the checkpoint.

    Wrong options raise SettingsError at the first use: what is raised before it is hidden by an
    error of Spark's own (its worker looks for a reader that was never made).
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(given)
        self._schema = schema
        self._made: StreamPlanner | None = None
        self._end: StreamOffsets | None = None
        """Of the newest batch."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new stream starts, by the options."""
        return self._planner().initial().form()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override] # noqa: N802 - before 4.2
        """Return where everything that is there ends."""
        start = self._end or self._planner().initial()
        self._end = self._planner().latest(start, is_unlimited=True)
        return self._end.form()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the splits of a batch."""
        begin, self._end = StreamOffsets.parse(start), StreamOffsets.parse(end)
        splits = self._planner().plan(begin, self._end, partial(splits_of_read, self._options()))
        return partitions_of(splits)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the records of a split as Arrow batches."""
        options = self._options()
        yield from read_split(options, rows_of(options, self._schema), split_of(partition))

    def _options(self) -> ReadOptions:
        options = stream_options(self._given)
        limits = {
            "maxOffsetsPerTrigger": options.offsets_max,
            "minOffsetsPerTrigger": options.offsets_min,
        }
        for name, value in limits.items():
            if value is not None:
                raise SettingsError(
                    f"option {name!r} needs Spark 4.2: a Python source of this Spark cannot limit "
                    "its batches"
                )
        return options

    def _planner(self) -> StreamPlanner:
        if self._made is None:
            options = self._options()
            rows_of(options, self._schema)
            self._made = StreamPlanner(options)
        return self._made
