"""The lag of a stream, from Spark's progress report, which has no place for metrics of Python
sources.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

from lakehead.lake.errors import DataLoss
from lakehead.lake.positions import TopicPartition
from lakehead.lake.source.stream_offsets import StreamOffsets

Which = Literal["endOffset", "latestOffset"]
"""The next offsets to read, and the latest that were known (from Spark 4.2 on)."""


def progress_offsets(source: Any, which: Which) -> Mapping[TopicPartition, int]:
    """Return offsets of a source in a query's progress: a `SourceProgress` or its JSON form. Empty
    before the first batch, and for a source of another form.
    """
    read = source if isinstance(source, dict) else json.loads(source.json)
    form = read.get(which) or {}
    try:
        # Those that a listener gets are dictionaries too, with offsets as text.
        return StreamOffsets.parse(json.loads(form) if isinstance(form, str) else form).offsets
    except (DataLoss, ValueError):
        return {}


def offsets_behind_latest(source: Any) -> dict[str, float]:
    """Return `minOffsetsBehindLatest`, `maxOffsetsBehindLatest` and `avgOffsetsBehindLatest` over
    the partitions of a source in a query's progress: a `SourceProgress` or its JSON form.
    Empty before the first batch.
    """
    end = progress_offsets(source, "endOffset")
    latest = progress_offsets(source, "latestOffset") if end else {}
    behind = [max(offset - end.get(id_, 0), 0) for id_, offset in latest.items()]
    if not behind:
        return {}
    return {
        "minOffsetsBehindLatest": min(behind),
        "maxOffsetsBehindLatest": max(behind),
        "avgOffsetsBehindLatest": sum(behind) / len(behind),
    }
