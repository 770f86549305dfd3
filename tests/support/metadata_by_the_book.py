"""A reader of the metadata log and its checkpoints, written from docs/formats alone.

It imports nothing of the project. Records about configs, quotas, access and the controller are
judged by nobody here: what they change is not asked for.
"""

import copy
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crc32c import crc32c
from pyarrow import parquet


class Refused(Exception):
    """The rules refuse a record."""


def demand(condition: bool, what: str) -> None:
    if not condition:
        raise Refused(what)


@dataclass
class Stream:
    """Extents are (start, end, key of the object)."""

    epoch: int = -1
    node: int = -1
    is_open: bool = False
    start: int = 0
    end: int = 0
    assigned: int = -1
    preferred: int = -1
    extents: list[tuple[int, int, str]] = field(default_factory=list)
    state_from: int = -1
    state_extents: list[tuple[int, int, str]] = field(default_factory=list)


@dataclass
class Node:
    epoch: int
    is_fenced: bool = False
    floor: tuple[int, int] = (0, 0)
    is_draining: bool = False
    wal: str = ""
    host_id: str = ""
    log: tuple[str, int, int] = ("", -1, -1)
    """Its id, the last epoch that was begun on it, a position that it reaches at least."""
    lost: tuple[str, int, int] | None = None
    """Id and epoch of the last log that was given up, and how many streams were open."""


@dataclass
class Table:
    holder: str
    term: int
    until: int
    offsets: list[int] = field(default_factory=list)
    request: tuple[str, int] = ("", 0)


@dataclass
class Cluster:
    """What the log says after `entries` entries."""

    entries: int = 0
    cluster_id: str = ""
    nodes: dict[int, Node] = field(default_factory=dict)
    retired: dict[int, int] = field(default_factory=dict)
    topics: dict[str, str] = field(default_factory=dict)
    partitions: dict[str, list[int]] = field(default_factory=dict)
    streams: dict[int, Stream] = field(default_factory=dict)
    objects: dict[str, str] = field(default_factory=dict)
    logs: dict[str, int] = field(default_factory=dict)
    """By key of an object, the node whose records it has, or stands for."""
    next_stream: int = 0
    term: int = -1
    level: int = 1
    tables: dict[str, Table] = field(default_factory=dict)

    def extents(self, topic: str, partition: int) -> list[tuple[int, int, str]]:
        return self.streams[self.partitions[self.topics[topic]][partition]].extents

    def live(self, node: int, epoch: int) -> bool:
        found = self.nodes.get(node)
        return found is not None and found.epoch == epoch and not found.is_fenced

    def held(self) -> set[str]:
        """Keys of the objects that a stream refers to."""
        return {
            key
            for stream in self.streams.values()
            for _, _, key in (*stream.extents, *stream.state_extents)
        }

    def inherited(self) -> dict[str, int]:
        """Tail objects that a stream refers to, and the nodes in whose logs their records are."""
        held = self.held()
        tails = (key for key, kind in self.objects.items() if kind == "tail" and key in held)
        return {key: self.logs[key] for key in tails}


def read_cluster(meta: Path) -> Cluster:
    """Read a folder `meta/` that nobody writes to: the newest checkpoint, and the entries since."""
    checkpoints = sorted((meta / "checkpoint").glob("*.parquet"))
    cluster = read_checkpoint(checkpoints[-1]) if checkpoints else Cluster()
    entries: list[bytes] = []
    while (path := meta / "log" / f"{cluster.entries + len(entries):020d}.json").exists():
        entries.append(path.read_bytes())
    return read_log(cluster, entries)


def read_checkpoint(path: Path) -> Cluster:
    """Read a checkpoint as the Parquet file that it is."""
    tables: dict[str, list[dict[str, Any]]] = {}
    for row in parquet.read_table(path).to_pylist():
        tables.setdefault(row["table"], []).append(row)
    (head,) = tables["cluster"]
    assert head["next_entry"] == int(path.stem)
    nodes = tables.get("nodes", [])
    objects = tables.get("objects", [])
    streams = {
        row["stream_id"]: Stream(
            epoch=row["stream_epoch"],
            node=row["node_id"],
            is_open=row["is_open"],
            start=row["start_offset"],
            end=row["end_offset"],
            assigned=-1 if row.get("assigned") is None else row["assigned"],
            preferred=-1 if row.get("preferred") is None else row["preferred"],
            state_from=-1 if row.get("state_from") is None else row["state_from"],
        )
        for row in tables.get("streams", [])
    }
    for row in tables.get("extents", []):
        key = objects[row["object"]]["key"]
        streams[row["stream_id"]].extents.append((row["start_offset"], row["end_offset"], key))
    for row in tables.get("state_extents", []):
        kept = (row["start_offset"], row["end_offset"], objects[row["object"]]["key"])
        streams[row["stream_id"]].state_extents.append(kept)
    for stream in streams.values():
        ends = [extent[1] for extent in stream.extents]
        assert ends == sorted(ends)
        assert not ends or ends[-1] == stream.end
    return Cluster(
        entries=head["next_entry"],
        cluster_id=head["cluster_id"],
        nodes={
            row["node_id"]: Node(
                row["node_epoch"],
                row["is_fenced"],
                (row["wal_epoch"], row["wal_floor"]),
                bool(row.get("is_draining")),
                row.get("wal") or "",
                row.get("host_id") or "",
                (
                    row.get("log_id") or "",
                    -1 if row.get("log_epoch") is None else row["log_epoch"],
                    -1 if row.get("log_position") is None else row["log_position"],
                ),
                (row["lost_log_id"], row["lost_log_epoch"], row["lost_log_streams"])
                if row.get("lost_log_id")
                else None,
            )
            for row in nodes
            if not row["is_retired"]
        },
        retired={row["node_id"]: row["node_epoch"] for row in nodes if row["is_retired"]},
        topics={row["topic"]: row["topic_id"] for row in tables.get("topics", [])},
        partitions={
            row["topic_id"]: json.loads(row["partitions"]) for row in tables.get("topics", [])
        },
        streams=streams,
        objects={row["key"]: row["kind"] for row in objects},
        logs={row["key"]: row["node_id"] for row in objects},
        next_stream=head["next_stream_id"],
        term=head["term"],
        level=next((row["level"] for row in tables.get("features", [])), 1),
        tables=_read_tables(tables),
    )


def _read_tables(tables: dict[str, list[dict[str, Any]]]) -> dict[str, Table]:
    return {
        row["topic_id"]: Table(
            row["owner"],
            row["term"],
            row["until_ms"],
            [
                place["end_offset"]
                for place in tables.get("table_offsets", [])
                if place["topic_id"] == row["topic_id"]
            ],
            (row.get("requester") or "", row.get("requested_until_ms") or 0),
        )
        for row in tables.get("tables", [])
    }


def read_log(cluster: Cluster, entries: Iterable[bytes]) -> Cluster:
    """Apply the entries that follow."""
    for body in entries:
        head = b'{"crc32c":"%08x",' % crc32c(body[21:])
        assert body.startswith(head), f"checksum of entry {cluster.entries}"
        entry = json.loads(body)
        assert entry["version"] <= 2
        after = copy.deepcopy(cluster)
        try:
            for record in entry["records"]:
                apply(after, record)
        except Refused:
            after = cluster
        after.entries = cluster.entries + 1
        cluster = after
    return cluster


def apply(cluster: Cluster, record: dict[str, Any]) -> None:
    """Apply one record. Raises Refused."""
    kind = record["type"]
    if kind == "ClusterCreated":
        demand(not cluster.cluster_id, "a cluster already")
        cluster.cluster_id = record["cluster_id"]
    elif kind == "FeatureLevel":
        demand(record["level"] > cluster.level, "not above the level")
        cluster.level = record["level"]
    elif kind in _OF_NODES:
        _apply_node(cluster, kind, record)
    elif kind in {"CreateTopic", "DeleteTopic"}:
        _apply_topic(cluster, kind, record)
    elif kind == "AssignStreams":
        _assign(cluster, record)
    elif kind == "ControllerLease":
        demand(cluster.live(record["node_id"], record["node_epoch"]), "not live")
        demand(record["term"] == cluster.term + 1, "term")
        cluster.term = record["term"]
    elif kind in {"TakeTable", "RequestTable", "TableProgress"}:
        _apply_table(cluster, kind, record)
    elif kind.endswith("Stream"):
        _apply_stream(cluster, kind, record)
    elif kind == "CommitObjects":
        demand(all(one["kind"] != "tail" for one in record["objects"]), "a tail")
        _commit(cluster, record)
    elif kind == "InheritTail":
        demand(len(record["objects"]) > 0, "no object")
        demand(all(one["kind"] == "tail" for one in record["objects"]), "no tail")
        _commit(cluster, {**record, "wal_epoch": record["node_epoch"] + 1})
    elif kind == "CommitTail":
        _commit_tail(cluster, record)
    elif kind == "DropObjects":
        for key in record["keys"]:
            demand(key in cluster.objects and key not in cluster.held(), "in use")
            del cluster.objects[key]
    else:
        ours = {"TopicConfig", "BrokerConfig", "ProducerIdBlock", "NodeSecret"}
        assert kind in ours, f"not written by this test: {kind}"


_OF_NODES = {
    "RegisterNode",
    "FenceNode",
    "DrainNode",
    "RetireNode",
    "StartLog",
    "AcceptLogLoss",
}


def _apply_node(cluster: Cluster, kind: str, record: dict[str, Any]) -> None:
    number = record["node_id"]
    if kind == "RegisterNode":
        known = cluster.nodes.get(number)
        last = cluster.retired.pop(number, -1) if known is None else known.epoch
        demand(record["epoch"] == last + 1, "epoch of a node")
        floor = (last + 1, 0) if known is None else known.floor
        before = Node(0) if known is None else known
        cluster.nodes[number] = Node(
            record["epoch"],
            floor=floor,
            wal=record.get("wal", ""),
            host_id=record.get("host_id", ""),
            log=before.log,
            lost=before.lost,
        )
    elif kind in {"StartLog", "AcceptLogLoss"}:
        _apply_log(cluster, kind, record)
    elif kind == "DrainNode":
        demand(cluster.live(number, record["epoch"]), "not live")
        cluster.nodes[number].is_draining = record["is_draining"]
    elif kind == "FenceNode":
        demand(record.get("term", -1) in (-1, cluster.term), "a term that has passed")
        demand(cluster.live(number, record["epoch"]), "not live")
        cluster.nodes[number].is_fenced = True
    else:
        demand(number in cluster.nodes, "no such node")
        mine = [s for s in cluster.streams.values() if s.is_open and s.node == number]
        demand(not mine, "it has streams")
        demand(number not in cluster.inherited().values(), "its log has a tail")
        cluster.retired[number] = cluster.nodes.pop(number).epoch


def _apply_log(cluster: Cluster, kind: str, record: dict[str, Any]) -> None:
    number = record["node_id"]
    demand(cluster.live(number, record["node_epoch"]), "not live")
    node = cluster.nodes[number]
    if kind == "StartLog":
        node.log = (record["log_id"], record["node_epoch"], record.get("position", -1))
    else:
        demand(node.log[0] != "", "nothing to lose")
        node.lost = (*node.log[:2], record["streams"])
        for key, owner in cluster.inherited().items():
            cluster.objects[key] = "headers" if owner == number else "tail"
        node.log = (record["log_id"], -1, -1)


def _assign(cluster: Cluster, record: dict[str, Any]) -> None:
    number = record["node_id"]
    demand(record.get("term", -1) in (-1, cluster.term), "a term that has passed")
    demand(number in cluster.nodes and not cluster.nodes[number].is_fenced, "not live")
    for stream_id in record["stream_ids"]:
        demand(stream_id in cluster.streams, "no such stream")
        stream = cluster.streams[stream_id]
        stream.assigned = number
        if record.get("is_preferred", False) or stream.preferred < 0:
            stream.preferred = number


def _apply_topic(cluster: Cluster, kind: str, record: dict[str, Any]) -> None:
    number = record["topic_id"]
    if kind == "CreateTopic":
        demand(record["name"] not in cluster.topics, "name taken")
        demand(number not in cluster.partitions, "id taken")
        cluster.topics[record["name"]] = number
        cluster.partitions[number] = []
        return
    demand(number in cluster.partitions, "no such topic")
    for stream in cluster.partitions.pop(number):
        cluster.streams.pop(stream, None)  # it may have gone alone before
    cluster.tables.pop(number, None)
    cluster.topics = {name: other for name, other in cluster.topics.items() if other != number}


def _apply_table(cluster: Cluster, kind: str, record: dict[str, Any]) -> None:
    number = record["topic_id"]
    demand(number in cluster.partitions, "no such topic")
    if kind == "RequestTable":
        demand(number in cluster.tables, "never had a lease")
        demand(record["requester"] != "", "no requester")
        demand(record["until_ms"] >= 0, "a time below 0")
        until = record["until_ms"]
        cluster.tables[number].request = (record["requester"], until) if until else ("", 0)
        return
    term = record["term"]
    table = cluster.tables.get(number, Table("", -1, 0))
    if kind == "TakeTable":
        demand(term == table.term + 1, "term of a table")
        demand(record["holder"] != "", "no holder")
        demand(record["until_ms"] >= 0, "a time below 0")
        request = ("", 0) if record["holder"] == table.request[0] else table.request
        cluster.tables[number] = Table(
            record["holder"], term, record["until_ms"], table.offsets, request
        )
        return
    demand(term == table.term and table.until > 0, "a term that has passed")
    demand(len(record["offsets"]) <= len(cluster.partitions[number]), "more than partitions")
    demand(all(offset >= 0 for offset in record["offsets"]), "below 0")
    table.offsets = list(record["offsets"])


def _apply_stream(cluster: Cluster, kind: str, record: dict[str, Any]) -> None:
    number = record["stream_id"]
    if kind == "CreateStream":
        demand(number == cluster.next_stream, "next stream")
        demand(record["topic_id"] in cluster.partitions, "no such topic")
        partitions = cluster.partitions[record["topic_id"]]
        demand(record["partition"] == len(partitions), "next partition")
        partitions.append(number)
        cluster.streams[number] = Stream()
        cluster.next_stream += 1
        return
    demand(number in cluster.streams, "no such stream")
    stream = cluster.streams[number]
    if kind == "OpenStream":
        demand(cluster.live(record["node_id"], record["node_epoch"]), "not live")
        demand(stream.assigned in (-1, record["node_id"]), "assigned elsewhere")
        demand(record["epoch"] == stream.epoch + 1, "epoch of a stream")
        owner = cluster.nodes.get(stream.node)
        is_free = not stream.is_open or stream.node == record["node_id"] or owner is None
        is_recovered = owner is not None and owner.is_fenced and owner.floor[0] > owner.epoch
        demand(is_free or is_recovered, "open elsewhere")
        stream.epoch, stream.node, stream.is_open = record["epoch"], record["node_id"], True
    elif kind == "CloseStream":
        demand(stream.is_open and stream.epoch == record["epoch"], "not open under it")
        stream.is_open = False
    elif kind == "TrimStream":
        demand(stream.start <= record["start_offset"] <= stream.end, "outside")
        stream.start = record["start_offset"]
        gone = [extent for extent in stream.extents if extent[1] <= stream.start]
        if stream.state_from >= 0:
            stream.state_extents += [one for one in gone if one[1] > stream.state_from]
        stream.extents = [extent for extent in stream.extents if extent[1] > stream.start]
        if record.get("drops_state"):
            stream.state_extents = []
            if stream.state_from >= 0:
                first = stream.extents[0][0] if stream.extents else -1
                stream.state_from = max(stream.state_from, first) if stream.extents else -1
    else:
        assert kind == "DeleteStream"
        del cluster.streams[number]


def _commit_tail(cluster: Cluster, record: dict[str, Any]) -> None:
    demand(cluster.live(record["taker_id"], record["taker_epoch"]), "taker not live")
    sources = record["sources"]
    demand(len(sources) > 0, "no source")
    for key in sources:
        demand(cluster.objects.get(key) == "tail", "no tail")
        demand(cluster.logs.get(key) == record["node_id"], "a tail of another node")
    for item in record["objects"]:
        key = item["key"]
        demand(key.startswith(("data/", "wal/")) and key not in cluster.objects, "a new key")
        cluster.objects[key] = item["kind"]
    for number, stream in cluster.streams.items():
        old = [extent for extent in stream.extents if extent[2] in sources]
        new = [
            (span["start_offset"], span["end_offset"], item["key"])
            for item in record["objects"]
            for span in item["ranges"]
            if span["stream_id"] == number
        ]
        demand(not old or number in record["streams"], "a stream is left out")
        demand(_covered(old) == _covered(new), "other offsets")
        kept = [extent for extent in stream.extents if extent[2] not in sources]
        stream.extents = sorted(kept + new)
    for key in sources:
        cluster.objects[key] = "headers"


def _covered(extents: list[tuple[int, int, str]]) -> set[int]:
    return {offset for start, end, _ in extents for offset in range(start, end)}


def _commit(cluster: Cluster, record: dict[str, Any]) -> None:
    number, epoch = record["node_id"], record["node_epoch"]
    if record.get("taker_id", -1) < 0:
        demand(cluster.live(number, epoch), "not live")
    else:
        demand(cluster.live(record["taker_id"], record["taker_epoch"]), "taker not live")
        known = cluster.nodes.get(number)
        demand(known is not None and known.epoch == epoch and known.is_fenced, "not fenced")
    node = cluster.nodes[number]
    if record.get("wal_epoch", -1) >= 0:
        floor = (record["wal_epoch"], record.get("wal_floor", 0))
        demand(node.floor <= floor, "the floor moves back")
        demand(floor[0] <= node.epoch + node.is_fenced, "the floor is in the future")
        node.floor = floor
    if node.log[0]:
        node.log = (*node.log[:2], max(node.log[2], record.get("wal_position", -1)))
    for key in record.get("removed_wal_objects", []):
        demand(cluster.objects.get(key) == "wal" and key not in cluster.held(), "in use")
        del cluster.objects[key]
    for item in record["objects"]:
        key = item["key"]
        demand(key.startswith(("data/", "wal/")) and key not in cluster.objects, "a new key")
        cluster.objects[key] = item["kind"]
        cluster.logs[key] = number
        for span in item["ranges"]:
            stream = cluster.streams.get(span["stream_id"])
            if stream is None:
                continue
            demand(stream.is_open and stream.node == number, "not its owner")
            demand(stream.epoch == span["epoch"], "an old epoch")
            demand(stream.end == span["start_offset"] < span["end_offset"], "a gap")
            stream.end = span["end_offset"]
            stream.extents.append((span["start_offset"], span["end_offset"], key))
            if span.get("state") == "whole":
                stream.state_from = span["start_offset"]
                stream.state_extents = []
            elif span.get("state") == "incremental":
                first = (stream.state_extents + stream.extents)[0][0]
                stream.state_from = max(stream.state_from, span["state_since"], first)
                stream.state_extents = [
                    one for one in stream.state_extents if one[1] > stream.state_from
                ]
            elif span.get("state") == "headers" and stream.state_from < 0:
                stream.state_from = span["start_offset"]
