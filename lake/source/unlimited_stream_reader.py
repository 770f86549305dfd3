"""Streams of the Spark source in Spark 4.0 and 4.1, whose Python sources have no admission control.

Spark requests the end of the next batch with neither its start nor a limit. The start is the end of
the batch before: the last one that this reader returned, or the one in the checkpoint, for which
Spark plans an empty batch when a query goes on. So each batch, also the only one of `availableNow`,
goes up to what is there.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from lakehead.lake.source.options import ReadOptions
from lakehead.lake.source.planned_stream_reader import PlannedStreamReader
from lakehead.lake.source.rows import Rows
from lakehead.lake.source.stream_offsets import StreamOffsets
from lakehead.storage.errors import LakeheadError, SettingsError


class UnlimitedStreamReader(PlannedStreamReader):
    """A stream whose batches are as large as what is there."""

    def __init__(self, options: ReadOptions, rows: Rows) -> None:
        """Raises SettingsError for options that limit batches."""
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
        super().__init__(options, rows)
        self._end: StreamOffsets | None = None
        """Of the newest batch."""

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override] # noqa: N802 - before 4.2
        """Return where everything that is there ends."""
        start = self._end or self._planner().initial()
        self._end = self._planner().latest(start, is_unlimited=True)
        return self._end.form()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the splits of a batch."""
        self._end = StreamOffsets.parse(end)
        return super().partitions(start, end)


class RefusedStream(DataSourceStreamReader):
    """A stream that cannot begin, which says why at its first use: what is raised before it is
    hidden by an error of Spark's own (its worker looks for a reader that was never made).
    """

    def __init__(self, reason: LakeheadError) -> None:
        self._reason = reason

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Raise the reason."""
        raise self._reason

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override] # noqa: N802
        """Raise the reason."""
        raise self._reason

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:  # noqa: ARG002
        """Raise the reason."""
        raise self._reason

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002
        """Raise the reason."""
        raise self._reason
