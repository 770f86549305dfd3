"""The content of each page, as its template takes it."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from lakehead.broker.cluster.heartbeat import HeartbeatResponse
from lakehead.broker.cluster.node_status import busiest, node_rows
from lakehead.broker.console.viewer import Viewer
from lakehead.broker.coordinator.group.group_metadata import Offsets
from lakehead.broker.diagnosis.metadata_log import public_entry, record_counts
from lakehead.broker.diagnosis.partition import explain
from lakehead.broker.observability.group_lag import partition_lags
from lakehead.broker.observability.observed_node import ObservedNode
from lakehead.broker.observability.share_lag import ShareLag
from lakehead.lake.declaration.table_declaration import TableDeclaration
from lakehead.storage.errors import NotFound, SettingsError, StorageError
from lakehead.storage.latency import LATENCY_BUCKETS_S
from lakehead.storage.metadata.state import MetadataImage, StreamState, TableState, TopicState

PAGE_SIZE = 100
LOG_PAGE_SIZE = 50
_BUSIEST_SHOWN = 10
_STEP = 200
"""Access rules are applied to this many names between two turns of the event loop."""
DOLLARS_PER_GIB_MONTH = 0.023
"""List price of S3 standard in us-east-1, November 2026, as are those of `StoreStats.cost`."""
_Item = TypeVar("_Item")


async def allowed(names: Iterable[str], may: Callable[[str], bool]) -> list[str]:
    """Return the names for which `may` is true, in turns."""
    found = []
    for number, name in enumerate(names, 1):
        if may(name):
            found.append(name)
        if number % _STEP == 0:
            await asyncio.sleep(0)
    return found


def cluster_page(node: ObservedNode) -> dict[str, Any]:
    """Return the counts and costs of the cluster."""
    state = node.state
    stored = sum(item.size for item in state.objects.values())
    stats = node.store.stats
    dollars, sent = stats.cost(), node.engine.uploader.stats.bytes
    return {
        "cluster_id": state.cluster_id,
        "store": node.store.uri,
        "topics": len(state.topics),
        "partitions": len(state.streams),
        "objects": len(state.objects),
        "stored": stored,
        "storage_month": stored / (1 << 30) * DOLLARS_PER_GIB_MONTH,
        "requests": sum(one.requests for one in (stats.put, stats.get, stats.list, stats.delete)),
        "request_dollars": dollars,
        "dollars_per_tb": dollars / sent * 1e12 if sent else None,
        "entries": state.next_entry,
        "node_id": node.services.node_id,
        "nodes": node_rows(state, {}),
    }


def live(state: MetadataImage, responses: Mapping[int, HeartbeatResponse]) -> dict[str, Any]:
    """Return the nodes and the busiest partitions by the nodes' responses to a heartbeat."""
    nodes = node_rows(state, responses)
    return {
        "nodes": nodes,
        "busiest": [
            {"topic": one.topic, "partition": one.partition, "rate": one.rate}
            for one in busiest(state, responses, _BUSIEST_SHOWN)
        ],
        "bytes_in": sum(row["bytes_in"] or 0 for row in nodes),
        "bytes_out": sum(row["bytes_out"] or 0 for row in nodes),
        "dollars_an_hour": sum(one.load.dollars_an_hour for one in responses.values()),
    }


def latencies(node: ObservedNode) -> dict[str, Any]:
    """Return histograms of this node's latencies since its start: the upper bounds of buckets in
    seconds, and by the kind of operation the counts of all buckets, the last of which has no bound.
    """
    found = {
        "produce": node.dispatcher.latencies.get("Produce"),
        "fetch": node.dispatcher.latencies.get("Fetch"),
        "put": node.store.stats.put.latency,
    }
    counts = {name: list(one.counts) for name, one in found.items() if one is not None}
    return {"bounds": list(LATENCY_BUCKETS_S), "counts": counts}


def with_text(names: Iterable[str], text: str, *, internal: bool) -> list[str]:
    """Return the names of topics that have `text` in them, without regard to capital letters."""
    wanted = text.lower()
    return [
        name for name in names if wanted in name.lower() and (internal or not name.startswith("__"))
    ]


def topics_page(state: MetadataImage, names: Collection[str], *, page: int) -> dict[str, Any]:
    """Return a page of the topics with these names."""
    shown = (state.topics.get(name) for name in _of_page(sorted(names), page))
    rows = [_topic_row(state, topic) for topic in shown if topic is not None]
    return {"topics": rows, "total": len(names), "page": page, "pages": _page_count(names)}


def _of_page(items: Sequence[_Item], page: int) -> Sequence[_Item]:
    """Return the items of a list that a page of it has."""
    return items[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]


def _page_count(items: Collection[Any]) -> int:
    return -(-len(items) // PAGE_SIZE) or 1


def _streams(state: MetadataImage, partitions: Iterable[int]) -> Iterator[StreamState]:
    for stream_id in partitions:
        if (stream := state.streams.get(stream_id)) is not None:
            yield stream


def _topic_row(state: MetadataImage, topic: TopicState) -> dict[str, Any]:
    streams = list(_streams(state, topic.partitions))
    return {
        "name": topic.name,
        "partitions": len(streams),
        "offsets": sum(stream.end_offset - stream.start_offset for stream in streams),
        "bytes": sum(extent.size for stream in streams for extent in stream.extents),
        "table": topic.declares_table,
    }


def topic_page(
    state: MetadataImage,
    topic: TopicState,
    ends: Mapping[int, int],
    *,
    shows_configs: bool,
    page: int,
) -> dict[str, Any]:
    """Return a topic with a page of its partitions. `ends`: high watermarks of those that this node
    leads.
    """
    shown = _streams(state, _of_page(topic.partitions, page))
    return {
        **_topic_row(state, topic),
        "topic_id": topic.topic_id,
        "configs": dict(sorted(topic.configs.items())) if shows_configs else None,
        "rows": _partition_rows(state, topic, shown, ends),
        "page": page,
        "pages": _page_count(topic.partitions),
        "tables": [row["key"] for row in _table_rows(state, topic)] if topic.declares_table else [],
    }


def _partition_rows(
    state: MetadataImage,
    topic: TopicState,
    streams: Iterable[StreamState],
    ends: Mapping[int, int],
) -> list[dict[str, Any]]:
    live_nodes = state.live_node_ids
    return [
        {
            **asdict(explain(state, topic, stream, live_nodes)),
            "high_watermark": ends.get(stream.partition),
        }
        for stream in streams
    ]


def partition_page(
    state: MetadataImage, topic: TopicState, partition: int, ends: Mapping[int, int], *, page: int
) -> dict[str, Any]:
    """Return a partition with its objects, the newest first. Raises NotFound."""
    count = len(topic.partitions)
    stream = state.streams.get(topic.partitions[partition]) if partition < count else None
    if stream is None:
        raise NotFound(f"topic {topic.name} has no partition {partition}: it has {count}")
    (row,) = _partition_rows(state, topic, [stream], ends)
    last = max(len(stream.extents) - (page - 1) * PAGE_SIZE, 0)
    shown = stream.extents[max(last - PAGE_SIZE, 0) : last]
    return {
        **row,
        "extents": [
            {
                "object": extent.object_key,
                "start": extent.start_offset,
                "end": extent.end_offset,
                "size": extent.size,
                "newest": extent.max_timestamp,
            }
            for extent in reversed(shown)
        ],
        "page": page,
        "pages": _page_count(stream.extents),
        "partitions": count,
        "has_table": topic.declares_table,
    }


def high_watermarks(node: ObservedNode, topic: str) -> dict[int, int]:
    """Return the high watermarks of a topic's partitions that this node leads. Belongs to the event
    loop.
    """
    found = node.topics.by_name.get(topic)
    return {one.index: one.high_watermark for one in (found.partitions if found else ()) if one}


async def groups_page(viewer: Viewer, text: str) -> list[dict[str, Any]]:
    """Return the groups that have `text` in their names, without regard to capital letters, and
    that this node coordinates. Raises KafkaError while it loads them.
    """
    every, wanted = await viewer.node.groups.list_groups(), text.lower()
    groups = [one for one in every if wanted in one.group_id.lower()]
    seen = set(await allowed((one.group_id for one in groups), viewer.sees_group))
    return [
        {
            "group": one.group_id,
            "type": one.kind.value,
            "state": one.state.value,
            "protocol": one.protocol_type,
        }
        for one in sorted(groups, key=lambda one: one.group_id)
        if one.group_id in seen
    ]


def lag_rows(node: ObservedNode, offsets: Offsets) -> list[dict[str, Any]]:
    """Return the lag of each committed offset."""
    return [
        {
            "topic": one.topic,
            "partition": one.partition,
            "offset": one.committed.offset,
            "end": one.end,
            "lag": one.records,
            "is_exact": one.is_exact,
            "committed": one.committed.commit_timestamp_ms,
        }
        for one in sorted(partition_lags(node, offsets))
    ]


def share_row(one: ShareLag) -> dict[str, Any]:
    """Return a partition of a share group."""
    return {**one._asdict(), "lag": one.records}


def tables_page(state: MetadataImage, names: Collection[str], *, page: int) -> dict[str, Any]:
    """Return a page of the tables that topics of these names declare, by the metadata alone."""
    topics = (state.topics.get(name) for name in _of_page(sorted(names), page))
    rows = [
        row
        for topic in topics
        if topic is not None and topic.declares_table
        for row in _table_rows(state, topic)
    ]
    return {"tables": rows, "total": len(names), "page": page, "pages": _page_count(names)}


def _table_rows(state: MetadataImage, topic: TopicState) -> Iterator[dict[str, Any]]:
    held = state.tables.get(topic.topic_id, TableState())
    behind = 0
    for stream in _streams(state, topic.partitions):
        start = max(held.end_offset(stream.partition), stream.start_offset)
        behind += max(stream.end_offset - start, 0)
    row = {
        "topic": topic.name,
        "behind": behind,
        "holder": held.holder.partition("/")[0],
        "until": held.until_ms or -1,
        "problem": held.problem,
        "configs": {
            key: value
            for key, value in sorted(topic.configs.items())
            if key.startswith("lakehead.table")
        },
    }
    try:
        keys = [one.key for one in TableDeclaration.each_of(topic)]
    except SettingsError as error:  # set by another release
        keys, row["problem"] = [topic.name], str(error)
    for key in keys:
        yield {"key": key, **row}


def table_row(state: MetadataImage, topic: TopicState, key: str) -> dict[str, Any] | None:
    """Return the table of a topic with a key, by the metadata alone; None if it declares none."""
    if not topic.declares_table:
        return None
    return next((row for row in _table_rows(state, topic) if row["key"] == key), None)


async def log_page(node: ObservedNode, before: int) -> dict[str, Any]:
    """Return the entries of the metadata log below a number, newest first. They end where entries
    are no more, since a checkpoint has their records.
    """
    store = node.engine.metadata.store
    first = max(before - LOG_PAGE_SIZE, 0)
    rows = []
    for number in range(before - 1, first - 1, -1):
        try:
            entry = await public_entry(store, number)
        except (NotFound, StorageError):
            break
        rows.append(
            {
                "number": number,
                "time": entry.get("time_ms", -1),
                "writer": entry.get("writer", ""),
                "records": record_counts(entry.get("records", ())),
            }
        )
    return {"entries": rows, "before": first if len(rows) == before - first else 0}
