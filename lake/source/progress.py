"""The lag of a stream, from Spark's progress report, which has no place for metrics of Python
sources.
"""

import json
from typing import Any

from lakehead.lake.source.stream_offsets import StreamOffsets


def offsets_behind_latest(source: Any) -> dict[str, float]:
    """Return `minOffsetsBehindLatest`, `maxOffsetsBehindLatest` and `avgOffsetsBehindLatest` over
    the partitions of a source in a query's progress: a `SourceProgress` or its JSON form.
    Empty before the first batch.
    """
    read = source if isinstance(source, dict) else json.loads(source.json)
    if not read.get("latestOffset") or not read.get("endOffset"):
        return {}
    latest, end = (
        StreamOffsets.parse(read[name]).offsets for name in ("latestOffset", "endOffset")
    )
    behind = [max(offset - end.get(id_, 0), 0) for id_, offset in latest.items()]
    if not behind:
        return {}
    return {
        "minOffsetsBehindLatest": min(behind),
        "maxOffsetsBehindLatest": max(behind),
        "avgOffsetsBehindLatest": sum(behind) / len(behind),
    }
