"""The metadata image: the state of a cluster as a pure function of its metadata log.

`rules.apply_entry` returns the image after an entry. Values are immutable: an image that was taken
stays as it was.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypedDict

from immutables import Map

from lakehead.storage.errors import EntryRejected
from lakehead.storage.format.feature_level import BASE_LEVEL, METADATA_VERSION
from lakehead.storage.format.stream_object import StreamInfo
from lakehead.storage.metadata.extents import Extents
from lakehead.storage.metadata.records import TAIL, AclBinding, CommittedObject, Entry
from lakehead.storage.metadata.table import Table

WRITERS_MAX = 1000
"""Of this many writers the last entry is known."""
TABLE_ENABLE = "lakehead.table.enable"
TABLE_RETENTION_WAIT = "lakehead.table.retention.wait.ms"
TABLE_RETENTION_WAIT_MS = 30 * 86_400_000
"""Its default."""
"""The config by which a topic is kept as a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLog:
    """The log that a node's next start has to find: its id, the last node epoch that was begun on
    it, and the position below which nothing of it is needed; it reaches there at least.

    Empty: none has to be found. -1: no epoch, no position.
    """

    log_id: str = ""
    epoch: int = -1
    position: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LostLog:
    """A log that a node went on without, since an operator accepted the loss: its id, the last
    epoch that was begun on it, when (milliseconds), and how many streams were open then.
    """

    log_id: str
    epoch: int
    time_ms: int
    streams: int


class TablesKeeping(StrEnum):
    """The state of a node's process for declared tables. Of the live nodes that have one, the one
    with the lowest id maintains the tables.
    """

    KEPT = "kept"
    OFF = "off"
    """`maintain` or `maintain.tables` is false there."""
    NOT_INSTALLED = "not installed"
    """The packages of the lake are missing there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node id, its current epoch and where it listens. `is_fenced` once that epoch has ended.

    Recovery needs no WAL object of this node with an (epoch, number) below (wal_epoch, wal_floor).
    `host_id` is its machine, `wal` where others find its log, `process` what it is called there
    (see `RegisterNode`). A node that `is_draining` is to lead nothing. Its release supports feature
    levels from `min_level` to `max_level`; 0: it registered at a level that has no field for that.
    `log` is where its acknowledgements lie, `lost_log` the last one that was given up.
    `tables` says whether it keeps the tables that topics declare: a `TablesKeeping`, empty if it
    did not say. `host` and `port` are its address for other nodes, `endpoints` those of its
    listeners; empty if it did not say.
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
    host_id: str = ""
    wal: str = ""
    is_draining: bool = False
    process: str = ""
    min_level: int = 0
    max_level: int = 0
    tables: str = ""
    endpoints: str = ""
    log: KnownLog = KnownLog()
    lost_log: LostLog | None = None

    def supports(self, level: int) -> bool:
        """Return true if it has registered with a range of feature levels that includes this
        one.
        """
        return self.min_level <= level <= self.max_level

    @property
    def is_recovered(self) -> bool:
        """Return true if it was fenced and all that its log held counts: its streams may be opened
        by others. Some of it may lie in that log still (`MetadataImage.tails`).
        """
        return self.is_fenced and self.wal_epoch > self.epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic. `topic_id` is 32 hex digits; `partitions[i]` is the stream id of partition i."""

    name: str
    topic_id: str
    partitions: tuple[int, ...] = ()
    configs: Map[str, str] = field(default_factory=Map)

    @property
    def declares_table(self) -> bool:
        """Return true if the topic is kept as a table, of which retention waits for its records.
        The other configs of the declaration may be invalid.
        """
        return self.configs.get(TABLE_ENABLE, "").strip().lower() == "true"

    @property
    def table_retention_wait_ms(self) -> int:
        """For how long retention waits for the topic's tables, in ms. A value that is not a number
        is as good as none: retention waits.
        """
        text = self.configs.get(TABLE_RETENTION_WAIT, str(TABLE_RETENTION_WAIT_MS)).strip()
        return int(text) if text.isdecimal() else (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """A stream. `epoch` is -1 before its first open, `node_id` (the node that opened it last) -1 as
    well.

    `end_offset` is the end of what is in objects, inherited tails included. `epochs` lists (epoch,
    first offset under it or later). `assigned` is the node that is to lead it, and the only one
    that may open it; -1: anyone. `preferred` is its preferred leader, or -1.

    The partition's state lies in the objects of extents that reach beyond `state_from` (-1: in none
    that is known). Those of them that were trimmed are kept as `state_extents`: a state outlives
    the records that it came from.
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
    extents: Extents = field(default_factory=Extents)
    assigned: int = -1
    preferred: int = -1
    state_from: int = -1
    state_extents: Extents = field(default_factory=Extents)

    @property
    def state_sources(self) -> Extents:
        """Extents in whose objects the partition's state is to be looked for, in offset order."""
        return self.state_extents.then(self.extents)


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

    @property
    def is_tail(self) -> bool:
        """Return true if streams have records in its ranges that lie in a log yet."""
        return self.kind == TAIL and bool(self.stream_ids)

    def referred_by(self, stream_ids: frozenset[int], time_ms: int) -> "ObjectState":
        """Return the object as these streams refer to it since `time_ms`."""
        since = -1 if stream_ids else time_ms
        return replace(self, stream_ids=stream_ids, unreferenced_ms=since)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerState:
    """The node that holds the controller lease, and its term; -1: none yet."""

    node_id: int = -1
    node_epoch: int = -1
    term: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """The table of a topic: its writer, in which term (-1: never written), until when
    (milliseconds; 0: given back). The table holds the records below `offsets[i]` of partition i.
    `problem` is the error of the last turn at it, empty if there was none. `requester` waits for
    the lease until `requested_until_ms` (0: no process does).
    """

    holder: str = ""
    term: int = -1
    until_ms: int = 0
    offsets: tuple[int, ...] = ()
    problem: str = ""
    requester: str = ""
    requested_until_ms: int = 0

    def end_offset(self, partition: int) -> int:
        """Return the offset after the last one of a partition that the table is known to hold."""
        return self.offsets[partition] if partition < len(self.offsets) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """The data by which SCRAM checks a password. The bytes are secret: never shown."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationToken:
    """A delegation token; see `DelegationTokenUpsert`."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_ms: int
    expiry_ms: int
    max_ms: int

    def has_expired(self, now_ms: int) -> bool:
        """Return true if it is not accepted any more."""
        return min(self.expiry_ms, self.max_ms) < now_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterState:
    """The last entry of a writer: by it the writer knows what became of an entry that is gone."""

    entry: int
    nonce: str


QuotaEntity = tuple[tuple[str, str | None], ...]
"""Pairs of entity type (`user`, `client-id`, `ip`) and name, sorted; no name: the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    """Everything the log says, after the entries below `next_entry`: KRaft's `MetadataImage`."""

    next_entry: int = 0
    cluster_id: str = ""
    nodes: Map[int, NodeState] = field(default_factory=Map)
    retired_nodes: Map[int, int] = field(default_factory=Map)
    """The last epoch of node ids that are not in use any more."""
    topics: Map[str, TopicState] = field(default_factory=Map)
    topic_names: Map[str, str] = field(default_factory=Map)
    unified_names: Map[str, frozenset[str]] = field(default_factory=Map)
    """Topics that have '.' or '_' in their name, by the name in which both are the same."""
    streams: Table[int, StreamState] = field(default_factory=Table)
    objects: Table[str, ObjectState] = field(default_factory=Table)
    unreferenced: Map[str, int] = field(default_factory=Map)
    """Keys of objects that nothing refers to any more, and since when (milliseconds)."""
    tails: Map[str, int] = field(default_factory=Map)
    """Keys of tail objects that streams refer to, and the node in whose log their records lie."""
    broker_configs: Map[int, Map[str, str]] = field(default_factory=Map)
    group_configs: Map[str, Map[str, str]] = field(default_factory=Map)
    client_metrics_configs: Map[str, Map[str, str]] = field(default_factory=Map)
    """By the name of the subscription."""
    controller: ControllerState = field(default_factory=ControllerState)
    tables: Map[str, TableState] = field(default_factory=Map)
    """By topic id: the tables whose lease a process has taken."""
    quotas: Map[QuotaEntity, Map[str, float]] = field(default_factory=Map)
    acls: Map[AclBinding, bool] = field(default_factory=Map)
    """The bindings there are; every value is True."""
    scram_credentials: Map[tuple[str, str], ScramCredential] = field(default_factory=Map)
    """By user and mechanism."""
    delegation_tokens: Map[str, DelegationToken] = field(default_factory=Map)
    """By id."""
    next_stream_id: int = 0
    next_producer_id: int = 0
    writers: Map[str, WriterState] = field(default_factory=Map)
    forgotten_entry: int = -1
    """The newest last entry of the writers that are not known any more."""
    features: Map[str, int] = field(default_factory=Map)
    """Levels of features that were set, by name."""
    node_secret: str = field(default="", repr=False)
    """By it nodes prove that they are of the cluster; empty below level 2."""
    features_epoch: int = 0
    """The entry that changed one last."""

    @property
    def metadata_version(self) -> int:
        """The feature level in force."""
        return self.features.get(METADATA_VERSION, BASE_LEVEL)

    @property
    def live_node_ids(self) -> set[int]:
        """The nodes that are not fenced."""
        return {node_id for node_id, node in self.nodes.items() if not node.is_fenced}

    def is_lowest(self, node_id: int) -> bool:
        """Return true if no live node has a lower id: that one does what one node has to do."""
        return node_id == min(self.live_node_ids, default=node_id)

    def refuse(self, entry: Entry) -> "MetadataImage":
        """Return the state after an entry of which the rules refuse every record: it takes a number
        and does nothing else.
        """
        last = WriterState(entry=self.next_entry, nonce=entry.nonce)
        writers, forgotten = self.writers.set(entry.writer, last), self.forgotten_entry
        if len(writers) > WRITERS_MAX:
            oldest = min(writers, key=lambda writer: writers[writer].entry)
            forgotten = max(forgotten, writers[oldest].entry)
            writers = writers.delete(oldest)
        return replace(
            self, next_entry=self.next_entry + 1, writers=writers, forgotten_entry=forgotten
        )

    def wrote(self, writer: str, nonce: str) -> bool:
        """Return true if this is the last entry of that writer."""
        last = self.writers.get(writer)
        return last is not None and last.nonce == nonce

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

    def is_open(self, stream_id: int, epoch: int) -> bool:
        """Return true if a stream is there and open under an epoch."""
        stream = self.streams.get(stream_id)
        return stream is not None and stream.is_open and stream.epoch == epoch

    def stream_info(self, stream_id: int, blob: bytes | None) -> StreamInfo:
        """Describe a stream for an object's extension block; `blob` is its partition's state."""
        stream = self.streams.get(stream_id)
        if stream is None:
            return StreamInfo(stream_id=stream_id, state=blob)
        return StreamInfo(
            stream_id=stream_id,
            topic_id=stream.topic_id,
            topic=self.topic_names[stream.topic_id],
            partition=stream.partition,
            state=blob,
        )

    def tails_of(self, node_id: int) -> list[str]:
        """Return the keys of the tail objects whose records lie in the log of a node, sorted."""
        return sorted(key for key, owner in self.tails.items() if owner == node_id)

    def places_in(self, keys: Collection[str]) -> dict[int, list[int]]:
        """Return which extents of which streams lie in these objects, by stream."""
        stream_ids = sorted(frozenset[int]().union(*(self.objects[key].stream_ids for key in keys)))
        found = {one: self.stream(one).extents.among(keys) for one in stream_ids}
        return {stream_id: places for stream_id, places in found.items() if places}

    def is_settled(self, node: NodeState) -> bool:
        """Return true if a fenced node's log holds nothing that is needed."""
        return node.is_recovered and node.node_id not in self.tails.values()

    def uploaded_extents(self, stream: StreamState) -> Extents:
        """Return the extents of a stream whose records are in objects, up to the first tail."""
        if not self.tails:
            return stream.extents
        places = stream.extents.among(self.tails)
        return stream.extents.until(places[0]) if places else stream.extents

    def uploaded_end(self, stream: StreamState) -> int:
        """Return the end of what is in objects of a stream, up to the first tail."""
        uploaded = self.uploaded_extents(stream)
        if len(uploaded) == len(stream.extents):
            return stream.end_offset
        return uploaded[-1].end_offset if uploaded else stream.extents[0].start_offset

    def unreferenced_objects(self) -> list[str]:
        """Return the keys of committed objects that no stream refers to any more."""
        return sorted(self.unreferenced)


class TopicMaps(TypedDict):
    """The fields of a state that its topics decide."""

    topics: Map[str, TopicState]
    topic_names: Map[str, str]
    unified_names: Map[str, frozenset[str]]


def topic_maps(topics: Iterable[TopicState]) -> TopicMaps:
    """Return what these topics make of a state."""
    by_name = {topic.name: topic for topic in topics}
    unified: dict[str, frozenset[str]] = {}
    for name in filter(may_collide, by_name):
        same = unified_name(name)
        unified[same] = unified.get(same, frozenset()) | {name}
    return TopicMaps(
        topics=Map(by_name),
        topic_names=Map({topic.topic_id: name for name, topic in by_name.items()}),
        unified_names=Map(unified),
    )


def object_state(
    committed: CommittedObject,
    node_id: int,
    node_epoch: int,
    stream_ids: frozenset[int],
    time_ms: int,
) -> ObjectState:
    """Return the state of a newly committed object."""
    return ObjectState(
        key=committed.key,
        kind=committed.kind,
        size=committed.size,
        node_id=node_id,
        node_epoch=node_epoch,
        created_ms=committed.created_ms,
        stream_ids=stream_ids,
        unreferenced_ms=-1 if stream_ids else time_ms,
    )


INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Only brokers write to them; their coordinators keep them short themselves."""


def unified_name(name: str) -> str:
    """Return a topic's name as metrics have it, where '.' and '_' are the same (as Kafka's
    `Topic.unifyCollisionChars`).
    """
    return name.replace(".", "_")


def may_collide(name: str) -> bool:
    """Return true if another name can be the same to metrics (as Kafka's
    `Topic.hasCollisionChars`).
    """
    return "." in name or "_" in name
