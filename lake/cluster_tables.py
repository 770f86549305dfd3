"""Tables about a cluster, as Arrow tables: the content of its metadata log, and the state of its
tables.

    tables = lakehead.catalog_tables("s3://bucket/prefix")
    topics = tables.topics
    duckdb.sql("FROM topics"); polars.DataFrame(topics)

Spark has the same in `lakehead sql` as `lakehead.topics` and so on, and with the option `catalog`
of its source. It needs no broker: all is as of the last uploads.
"""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import pyarrow as pa

from lakehead.lake.catalog import Catalog
from lakehead.lake.cluster_table_columns import CLUSTER_TABLES, OFFSETS_FOR
from lakehead.lake.declaration.table_declaration import PREFIX
from lakehead.lake.jobs.table_status import TableStatus, table_statuses
from lakehead.lake.store_reader import StoreReader, store_reader
from lakehead.lake.tables.ddl import parse_schema
from lakehead.storage.clock import SystemClock
from lakehead.storage.metadata.state import NodeState, ObjectState, StreamState, TopicState
from lakehead.storage.object_store import ObjectStore

CATALOG_SCHEMAS: dict[str, Any] = {
    name: parse_schema(columns) for name, columns in CLUSTER_TABLES.items()
}
"""By name of the table."""


class CatalogTables:
    """Tables about a cluster as it was when this was opened; `tables` are as they are at a read.

    Reading `groups` reads the topic of offsets; `tables` the logs of Delta tables; `offsets_for`
    indexes of objects, and about a block of each partition. All else is in memory.
    """

    def __init__(self, catalog: Catalog, reader: StoreReader) -> None:
        self._catalog = catalog
        self._state = catalog.state
        self._reader = reader

    def table(self, name: str) -> pa.Table:
        """Return a table by its name, but `offsets_for`."""
        assert name != OFFSETS_FOR, "that one has arguments"
        found: pa.Table = getattr(self, name)
        return found

    @property
    def topics(self) -> pa.Table:
        """Topics: what lies in objects of each, and what it sets."""
        return _table("topics", map(self._topic, self._topics()))

    @property
    def partitions(self) -> pa.Table:
        """Partitions: the leader of each, and its offsets in objects."""
        rows = (
            _partition(topic, self._state.streams[stream_id])
            for topic in self._topics()
            for stream_id in topic.partitions
        )
        return _table("partitions", rows)

    @property
    def objects(self) -> pa.Table:
        """Objects, and the ranges of offsets that still count in each."""
        ranges: dict[str, list[dict[str, Any]]] = {}
        for topic in self._topics():
            for stream_id in topic.partitions:
                stream = self._state.streams[stream_id]
                for extent in stream.extents:
                    ranges.setdefault(extent.object_key, []).append(
                        {
                            "topic": topic.name,
                            "partition": stream.partition,
                            "start_offset": extent.start_offset,
                            "end_offset": extent.end_offset,
                            "bytes": extent.size,
                            "newest": _moment(extent.max_timestamp),
                        }
                    )
        objects = sorted(self._state.objects.items())
        return _table("objects", (_object(one, ranges.get(key, [])) for key, one in objects))

    @property
    def groups(self) -> pa.Table:
        """Groups: what each has committed of each partition; one row for a group without any.

        Raises what reading objects raises.
        """
        from lakehead.lake.group_offsets import read_groups

        rows = []
        for group in read_groups(self._reader, self._catalog):
            head = {
                "group": group.group_id,
                "protocol_type": group.protocol_type,
                "generation": group.generation,
                "members": group.members,
            }
            rows += [
                head
                | {
                    "topic": one.topic,
                    "partition": one.partition,
                    "committed_offset": one.offset,
                    "lag": self._lag(one.topic, one.partition, one.offset),
                    "metadata": one.metadata,
                    "committed": _moment(one.committed_ms),
                    "expires": _moment(one.expires_ms),
                }
                for one in group.offsets
            ] or [head]
        return _table("groups", rows)

    @property
    def nodes(self) -> pa.Table:
        """Nodes that are registered."""
        led: dict[int, int] = {}
        for topic in self._topics():
            for stream_id in topic.partitions:
                stream = self._state.streams[stream_id]
                if stream.is_open:
                    led[stream.node_id] = led.get(stream.node_id, 0) + 1
        nodes = sorted(self._state.nodes.items())
        return _table("nodes", (_node(node, led.get(node_id, 0)) for node_id, node in nodes))

    @property
    def tables(self) -> pa.Table:
        """Declared tables: how far behind, how many files, what the last runs cost; `error` says
        what is wrong with one that cannot be read.
        """
        statuses = table_statuses(self._catalog, SystemClock().now_ms())
        return _table("tables", map(status_row, statuses))

    def offsets_for(self, timestamp_ms: int, topics: Sequence[str] = ()) -> pa.Table:
        """Return of each partition (of `topics`, or of all but Kafka's own) the offset of the first
        record whose timestamp is at or above `timestamp_ms`, or the end offset if there is none.

        Raises UnknownTopic, and what reading objects raises.
        """
        from lakehead.lake.offsets import start_offsets
        from lakehead.lake.positions import Bounds, Position

        names = topics or [name for name in self._catalog.topics() if not name.startswith("__")]
        logs = [log for name in names for log in self._catalog.partitions(name)]
        bounds = Bounds(starting=Position("timestamp", timestamp_ms), latest_without_match=True)
        found = start_offsets(self._reader, logs, bounds)
        rows = (
            {
                "topic": log.id.topic,
                "partition": log.id.partition,
                "offset": found[log.id],
                "end_offset": log.end_offset,
            }
            for log in logs
        )
        return _table(OFFSETS_FOR, rows)

    def _topics(self) -> list[TopicState]:
        named = sorted(
            self._state.topics.items(), key=lambda one: (one[0].startswith("__"), one[0])
        )
        return [topic for _, topic in named]

    def _topic(self, topic: TopicState) -> dict[str, Any]:
        streams = [self._state.streams[stream_id] for stream_id in topic.partitions]
        return {
            "topic": topic.name,
            "topic_id": topic.topic_id,
            "partitions": len(streams),
            "offsets": sum(stream.end_offset - stream.start_offset for stream in streams),
            "bytes": sum(extent.size for stream in streams for extent in stream.extents),
            "objects": len({extent.object_key for stream in streams for extent in stream.extents}),
            "value_format": topic.configs.get(f"{PREFIX}value.format", "raw"),
            "has_table": topic.declares_table,
            "configs": sorted(topic.configs.items()),
        }

    def _lag(self, topic: str, partition: int, offset: int) -> int | None:
        known = self._state.topics.get(topic)
        if known is None or partition >= len(known.partitions):
            return None
        return max(0, self._state.streams[known.partitions[partition]].end_offset - offset)


def catalog_tables(path: str | ObjectStore) -> CatalogTables:
    """Return the tables about the cluster at `path`, as of now. Raises as `Catalog.open`."""
    reader = store_reader(path)
    return CatalogTables(reader.open_catalog(), reader)


def status_row(status: TableStatus) -> dict[str, Any]:
    """Return the row of `tables` for a status."""
    row = {field.name: getattr(status, field.name) for field in fields(status)}
    last = row.pop("last_commit_ms")
    return row | {"last_commit": None if last is None else _moment(last)}


def _table(name: str, rows: Iterable[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=CATALOG_SCHEMAS[name])


def _partition(topic: TopicState, stream: StreamState) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "partition": stream.partition,
        "leader": stream.node_id if stream.is_open else None,
        "leader_epoch": stream.epoch,
        "start_offset": stream.start_offset,
        "end_offset": stream.end_offset,
        "bytes": sum(extent.size for extent in stream.extents),
        "objects": len({extent.object_key for extent in stream.extents}),
        "newest": _moment(max((extent.max_timestamp for extent in stream.extents), default=-1)),
        "stream_id": stream.stream_id,
    }


def _object(one: ObjectState, ranges: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "key": one.key,
        "kind": one.kind,
        "bytes": one.size,
        "node": one.node_id,
        "created": _moment(one.created_ms),
        "unreferenced_since": _moment(one.unreferenced_ms),
        "ranges": ranges,
    }


def _node(node: NodeState, led: int) -> dict[str, Any]:
    return {
        "node": node.node_id,
        "epoch": node.epoch,
        "host": node.host,
        "port": node.port,
        "rack": node.rack,
        "machine": node.host_id,
        "wal": node.wal,
        "is_fenced": node.is_fenced,
        "is_recovered": node.is_recovered,
        "is_draining": node.is_draining,
        "partitions_led": led,
    }


def _moment(milliseconds: int) -> int | None:
    """Microseconds, as Arrow has a moment; None for none, and for what is out of its range."""
    return milliseconds * 1000 if 0 <= milliseconds < 1 << 53 else None
