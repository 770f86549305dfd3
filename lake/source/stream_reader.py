"""Streams of the Spark source from Spark 4.2 on, whose Python sources have admission control."""

from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from lakehead.lake.source.options import LONG_MAX
from lakehead.lake.source.planned_stream_reader import PlannedStreamReader
from lakehead.lake.source.stream_offsets import StreamOffsets


class StreamReader(PlannedStreamReader, SupportsTriggerAvailableNow):
    """A stream whose batches are limited by the options and by Spark."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
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
