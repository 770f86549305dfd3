"""Read the metadata image: leaders, replicas and nodes, and the delta that an entry makes.

`lakehead.storage.metadata.state.MetadataImage` is what the metadata log says, the same on every
node. Storage is shared, so a node holds no copy of a partition. The replicas of a partition, as
clients see them, are its preferred leader, the node that it is assigned to and the node that has it
open: most of the time one node. The live ones are in sync. All of this is pure.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple, TypeAlias

from lakehead.broker.cluster.described_topics import DescribedTopics
from lakehead.broker.partition.partition import Topic
from lakehead.broker.protocol.node_endpoints import NodeEndpoint
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.records import Entry
from lakehead.storage.metadata.state import MetadataImage, NodeState, StreamState

TopicPartition: TypeAlias = tuple[str, int]
"""A topic's name and the index of a partition of it."""


class MetadataDelta(NamedTuple):
    """The topics and streams that an entry changes. `is_everything`: any of them may have
    changed.
    """

    topic_ids: frozenset[str]
    stream_ids: frozenset[int]
    has_nodes: bool
    """True if a node was registered, fenced, retired or recovered."""
    is_everything: bool


EVERYTHING = MetadataDelta(frozenset(), frozenset(), has_nodes=True, is_everything=True)


def delta_of(entry: Entry | None) -> MetadataDelta:
    """Return the delta that an entry makes; None: the image was read from a checkpoint."""
    if entry is None:
        return EVERYTHING
    topic_ids: set[str] = set()
    stream_ids: set[int] = set()
    has_nodes = False
    for record in entry.records:
        match record:
            case r.CreateTopic() | r.DeleteTopic() | r.TopicConfig():
                topic_ids.add(record.topic_id)
            case r.BrokerConfig():
                return EVERYTHING  # defaults of every topic
            case r.CreateStream():
                topic_ids.add(record.topic_id)
                stream_ids.add(record.stream_id)
            case r.AssignStreams():
                stream_ids.update(record.stream_ids)
            case r.OpenStream() | r.CloseStream() | r.DeleteStream():
                stream_ids.add(record.stream_id)
            case r.RegisterNode() | r.FenceNode() | r.RetireNode():
                has_nodes = True
            case r.CommitObjects():
                has_nodes = has_nodes or record.taker_id >= 0
            case r.InheritTail():
                has_nodes = True
            case _:
                pass
    return MetadataDelta(
        frozenset(topic_ids), frozenset(stream_ids), has_nodes, is_everything=False
    )


def topics_delta(before: MetadataImage, after: MetadataImage) -> MetadataDelta:
    """Return the delta between two states of one node that leads every stream: the topics that
    differ, with their streams.
    """
    if after.broker_configs != before.broker_configs:
        return EVERYTHING  # defaults of every topic
    changed: set[str] = set()
    if after.topics is not before.topics:
        for name, topic in after.topics.items():
            former = before.topics.get(name)
            if former is not topic and former != topic:
                changed.add(topic.topic_id)
        changed |= {one for one in before.topic_names if one not in after.topic_names}
    streams = {
        stream_id
        for image in (before, after)
        for topic_id in changed
        if (known := image.topic_by_id(topic_id)) is not None
        for stream_id in known.partitions
    }
    return MetadataDelta(
        frozenset(changed), frozenset(streams), has_nodes=False, is_everything=False
    )


class Leader(NamedTuple):
    """A node, and the leader epoch that is, or will be, its own."""

    node: NodeState
    epoch: int


class Replicas(NamedTuple):
    """The ids of a partition's replicas in Kafka's order: the preferred leader first."""

    every: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]


def leader_of(
    state: MetadataImage, stream: StreamState, unreachable: Collection[int] = ()
) -> Leader | None:
    """Return the node that has the stream open, or None if that node is fenced, `unreachable` or
    absent. A client that reads "no leader" retries soon instead of waiting for a dead node.
    """
    node = _live(state, stream.node_id) if stream.is_open else None
    if node is None or node.node_id in unreachable:
        return None
    return Leader(node, stream.epoch)


def other_leader(state: MetadataImage, stream: StreamState, node_id: int) -> Leader | None:
    """Return the present or next leader of a stream for a client of `node_id`, or None if only
    `node_id` itself leads it.
    """
    leader = leader_of(state, stream)
    if leader is None or leader.node.node_id == node_id:
        node = _live(state, stream.assigned)
        leader = None if node is None else Leader(node, stream.epoch + 1)
    return None if leader is None or leader.node.node_id == node_id else leader


def hint_for(
    state: MetadataImage,
    topic: Topic | None,
    index: int,
    node_id: int,
    address_of: Callable[[NodeState], tuple[str, int] | None],
) -> tuple[tuple[int, int], NodeEndpoint] | None:
    """Return the current leader for a response with NOT_LEADER_OR_FOLLOWER (KIP-951): its id and
    epoch, and its endpoint as `address_of` gives it. None if `node_id`, which responds, knows none
    that the client can reach.
    """
    stream_id = topic.stream_ids[index] if topic and 0 <= index < len(topic.stream_ids) else -1
    stream = state.streams.get(stream_id)
    leader = None if stream is None else other_leader(state, stream, node_id)
    if leader is None:
        return None
    node = leader.node
    address = address_of(node)
    if address is None:
        return None
    endpoint = NodeEndpoint(node.node_id, *address, node.rack)
    return (node.node_id, leader.epoch), endpoint


def replicas_of(state: MetadataImage, stream: StreamState) -> Replicas:
    """Return the replicas of a stream's partition."""
    named = (stream.preferred, stream.assigned, stream.node_id if stream.is_open else -1)
    every = tuple(dict.fromkeys(node_id for node_id in named if node_id >= 0))
    in_sync = tuple(node_id for node_id in every if _live(state, node_id) is not None)
    return Replicas(every, in_sync, tuple(n for n in every if n not in in_sync))


def live_nodes(state: MetadataImage) -> list[NodeState]:
    """Return the nodes that are not fenced, ordered by id."""
    return [node for _, node in sorted(state.nodes.items()) if not node.is_fenced]


def controller_id(state: MetadataImage, responding: int) -> int:
    """Return the controller for clients: the holder of the lease, else the `responding` node, since
    any node can do what clients request of a controller.
    """
    holder = _live(state, state.controller.node_id)
    return responding if holder is None else holder.node_id


def _live(state: MetadataImage, node_id: int) -> NodeState | None:
    node = state.nodes.get(node_id)
    return None if node is None or node.is_fenced else node


class MetadataCache:
    """Looks up partitions by topic name and index in the newest image.

    `unreachable` returns the nodes that refuse connections or lost theirs.
    """

    def __init__(
        self, state: Callable[[], MetadataImage], unreachable: Callable[[], Collection[int]]
    ) -> None:
        self._state = state
        self._unreachable = unreachable
        self._described = DescribedTopics()

    @property
    def described(self) -> DescribedTopics:
        """Topics as responses of Metadata describe them."""
        return self._described

    def exists(self, where: TopicPartition) -> bool:
        """Return true if the partition exists."""
        return self._stream(where) is not None

    def leader(self, where: TopicPartition) -> int | None:
        """Return the id of the node that leads a partition, or None without a leader."""
        node = self.node(where)
        return None if node is None else node.node_id

    def node(self, where: TopicPartition) -> NodeState | None:
        """Return the node that leads a partition, or None without a leader."""
        stream = self._stream(where)
        if stream is None:
            return None
        leader = leader_of(self._state(), stream, self._unreachable())
        return None if leader is None else leader.node

    def _stream(self, where: TopicPartition) -> StreamState | None:
        name, index = where
        state = self._state()
        topic = state.topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return state.streams.get(topic.partitions[index])
