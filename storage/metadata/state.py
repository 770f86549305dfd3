"""The state of a cluster as a pure function of its metadata log.

`ClusterState.apply(entry)` returns the next state, or raises EntryRejected and changes nothing: the
same rules judge an entry before it is put and after it is read, so every reader refuses what any
reader refuses. Values are immutable; a snapshot stays what it was.
"""

from dataclasses import dataclass, field, replace

from immutables import Map

from storage.errors import EntryRejected
from storage.metadata.records import CommittedObject, Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node id, its current epoch and where it listens. `is_fenced` once that epoch has ended.

    Recovery needs no WAL object of this node with an (epoch, number) below (wal_epoch, wal_floor).
    """

    node_id: int
    epoch: int
    incarnation: str
    host: str
    port: int
    rack: str | None
    is_fenced: bool = False
    wal_epoch: int = 0
    wal_floor: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic. `topic_id` is 32 hex digits; `partitions[i]` is the stream id of partition i."""

    name: str
    topic_id: str
    partitions: tuple[int, ...] = ()
    configs: Map[str, str] = field(default_factory=Map)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Offsets [start_offset, end_offset) of a stream lie in an object, in `size` bytes."""

    start_offset: int
    end_offset: int
    object_key: str
    max_timestamp: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """A stream. `epoch` is -1 before its first open, `node_id` -1 while nobody owns it.

    `end_offset` is the end of what is in objects. `epochs` lists (epoch, first offset under
    it or later).
    """

    stream_id: int
    topic_id: str
    partition: int
    epoch: int = -1
    node_id: int = -1
    is_open: bool = False
    start_offset: int = 0
    end_offset: int = 0
    epochs: tuple[tuple[int, int], ...] = ()
    extents: tuple[Extent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectState:
    """A committed object and the streams that still refer to it; without any it can go.

    `unreferenced_ms` is the time of the entry that took the last reference, -1 while there is one.
    """

    key: str
    kind: str
    size: int
    node_id: int
    node_epoch: int
    created_ms: int
    stream_ids: frozenset[int]
    unreferenced_ms: int = -1

    def referred_by(self, stream_ids: frozenset[int], time_ms: int) -> "ObjectState":
        """Return the object as these streams refer to it since `time_ms`."""
        since = -1 if stream_ids else time_ms
        return replace(self, stream_ids=stream_ids, unreferenced_ms=since)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerState:
    """Who holds the controller lease, in which term."""

    node_id: int = -1
    node_epoch: int = -1
    term: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """Everything the log says, after the entries below `next_entry`."""

    next_entry: int = 0
    cluster_id: str = ""
    nodes: Map[int, NodeState] = field(default_factory=Map)
    topics: Map[str, TopicState] = field(default_factory=Map)
    topic_names: Map[str, str] = field(default_factory=Map)
    streams: Map[int, StreamState] = field(default_factory=Map)
    objects: Map[str, ObjectState] = field(default_factory=Map)
    broker_configs: Map[int, Map[str, str]] = field(default_factory=Map)
    controller: ControllerState = field(default_factory=ControllerState)
    next_stream_id: int = 0
    next_producer_id: int = 0

    def apply(self, entry: Entry) -> "ClusterState":
        """Return the state after `entry`. Raises EntryRejected, naming the record and the rule."""
        from storage.metadata.rules import apply_record

        state = self
        for record in entry.records:
            state = apply_record(state, record, entry.time_ms)
        return replace(state, next_entry=self.next_entry + 1)

    def skip(self) -> "ClusterState":
        """Return the state after an entry that the rules refuse: it takes a number and does
        nothing.
        """
        return replace(self, next_entry=self.next_entry + 1)

    def topic_by_id(self, topic_id: str) -> TopicState | None:
        """Return the topic of this id."""
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def stream(self, stream_id: int) -> StreamState:
        """Return a stream. Raises EntryRejected when there is none."""
        try:
            return self.streams[stream_id]
        except KeyError:
            raise EntryRejected(f"no stream {stream_id}") from None

    def unreferenced_objects(self) -> list[str]:
        """Return the keys of committed objects that no stream refers to any more."""
        return sorted(key for key, value in self.objects.items() if not value.stream_ids)


def object_state(
    committed: CommittedObject, node_id: int, node_epoch: int, time_ms: int
) -> ObjectState:
    """Return the state of a newly committed object."""
    return ObjectState(
        key=committed.key,
        kind=committed.kind,
        size=committed.size,
        node_id=node_id,
        node_epoch=node_epoch,
        created_ms=committed.created_ms,
        stream_ids=frozenset(span.stream_id for span in committed.ranges),
        unreferenced_ms=-1 if committed.ranges else time_ms,
    )
