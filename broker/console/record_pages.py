"""The page of a partition's records."""

from dataclasses import asdict
from datetime import UTC, datetime
from urllib.parse import urlencode

from lakehead.broker.console.lake_process import LakeProcess
from lakehead.broker.console.page_request import PageError, Reply, Request
from lakehead.broker.console.record_filter import RecordFilter
from lakehead.broker.console.records import (
    RECORDS_MAX,
    FoundBatches,
    RecordSearch,
    fetch_batches,
)
from lakehead.broker.console.renderer import Renderer
from lakehead.broker.console.topic_values import TopicValues
from lakehead.storage.errors import NotFound

_SEARCH_S = 3.0
"""A search for records that takes longer stops there, with a link to what follows."""
_SEARCHED_NEWEST = 10_000
"""Offsets at the end of a partition that are searched where no beginning is given."""
_FILTERS = ("key", "q", "field", "value")


class RecordPages:
    """Makes the page; values are decoded by the process `lake`."""

    def __init__(self, renderer: Renderer, lake: LakeProcess) -> None:
        self._renderer = renderer
        self._node = renderer.node
        self._lake = lake

    def records(self, request: Request, name: str) -> Reply:
        """Return the records of topic `name` that pass the filters of the query."""
        topic = self._renderer.topic(request.viewer, name)
        self._renderer.require(lambda: request.viewer.reads_topic(name), f"read topic {name}")
        partition = request.number("partition", 0, 1 << 31)
        if partition >= len(topic.partitions):
            raise NotFound(f"topic {name} has {len(topic.partitions)} partitions")
        limit = max(request.number("limit", 50, RECORDS_MAX), 1)
        wanted = RecordFilter(
            key=request.query.get("key", ""),
            text=request.query.get("q", ""),
            field=request.query.get("field", ""),
            equal_to=request.query.get("value", ""),
        )
        until = self._node.clock.monotonic() + _SEARCH_S
        values = TopicValues(self._node, self._lake, topic, request.viewer)
        search = RecordSearch(
            wanted,
            limit=limit,
            is_time_over=lambda: self._node.clock.monotonic() > until,
            decode_keys=values.decode_keys,
            decode_values=values.decode_values,
        )
        first, last = self._searched(request, topic.partitions[partition], search)
        if values.problem:
            search.problems.append(values.problem)
        is_cut = search.is_over and not search.is_full and search.position < last.end
        return self._renderer.render(
            "records.html",
            name=name,
            partition=partition,
            partitions=len(topic.partitions),
            limit=limit,
            wanted=wanted,
            filters=urlencode(
                {
                    "limit": limit,
                    **{one: request.query[one] for one in _FILTERS if request.query.get(one)},
                }
            ),
            time=request.query.get("time", ""),
            first=first.offset,
            start=last.start,
            end=last.end,
            is_led=last.is_led,
            records=[asdict(one) for one in search.records],
            next_offset=search.position,
            problems=search.problems,
            looked_at=search.looked_at,
            is_cut=is_cut,
        )

    def _searched(
        self, request: Request, stream_id: int, search: RecordSearch
    ) -> tuple[FoundBatches, FoundBatches]:
        """Have a search see the batches of a partition; return the first and the last of them."""
        given = request.number("offset", -1, 1 << 62)
        offset = given if given >= 0 else None
        time_ms = _time(request.query.get("time", ""))
        newest = search.limit if search.wanted.is_empty else _SEARCHED_NEWEST
        first = None
        while True:
            found = self._renderer.on_loop(
                fetch_batches(self._node, stream_id, offset=offset, time_ms=time_ms, newest=newest)
            )
            first = first or found
            search.add(found)
            is_at_end = not found.batches or search.position >= found.end
            if is_at_end or search.is_full or search.is_over:
                return first, found
            offset, time_ms = search.position, None


def _time(text: str) -> int | None:
    """Return a time in UTC as HTML writes it (2026-11-27T08:00), in milliseconds."""
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise PageError("400 Bad Request", f"{text!r} is not a time") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1000)
