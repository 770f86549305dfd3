"""Who leads a partition, and which nodes count as its replicas, as the metadata says.

Storage is shared, so no node holds a copy of anything. A partition's replicas, as clients see them,
are its preferred leader, the node that is to lead it and the one that does: most of the time one
node. Those that live are in sync.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple

from lakehead.broker.partition.topic import Topic
from lakehead.broker.protocol.node_endpoints import NodeEndpoint
from lakehead.storage.metadata.state import ClusterState, NodeState, StreamState


class Leader(NamedTuple):
    """A node, and the leader epoch that is, or will be, its own."""

    node: NodeState
    epoch: int


class Replicas(NamedTuple):
    """Node ids as Kafka lists them: the preferred leader first."""

    every: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]


def leader_of(
    state: ClusterState, stream: StreamState, unreachable: Collection[int] = ()
) -> Leader | None:
    """Return who has the stream open; None when nobody does, or who does was fenced, or is
    `unreachable`: clients that are told so ask again soon, and do not wait for who is gone.
    """
    node = _live(state, stream.node_id) if stream.is_open else None
    if node is None or node.node_id in unreachable:
        return None
    return Leader(node, stream.epoch)


def leader_beside(state: ClusterState, stream: StreamState, node_id: int) -> Leader | None:
    """Return where a client should go that asked `node_id`, which does not serve it: the leader, or
    who is about to be; None when that is nobody else.
    """
    leader = leader_of(state, stream)
    if leader is None or leader.node.node_id == node_id:
        node = _live(state, stream.assigned)
        leader = None if node is None else Leader(node, stream.epoch + 1)
    return None if leader is None or leader.node.node_id == node_id else leader


def hint_for(
    state: ClusterState,
    topic: Topic | None,
    index: int,
    node_id: int,
    address_of: Callable[[NodeState], tuple[str, int]],
) -> tuple[tuple[int, int], NodeEndpoint] | None:
    """Return (leader, epoch) and where that is, for a client that asked `node_id` in vain and
    reaches nodes at their `address_of`.
    """
    stream_id = topic.stream_ids[index] if topic and 0 <= index < len(topic.stream_ids) else -1
    stream = state.streams.get(stream_id)
    leader = None if stream is None else leader_beside(state, stream, node_id)
    if leader is None:
        return None
    node = leader.node
    endpoint = NodeEndpoint(node.node_id, *address_of(node), node.rack)
    return (node.node_id, leader.epoch), endpoint


def replicas_of(state: ClusterState, stream: StreamState) -> Replicas:
    """Return the nodes that are listed as the stream's replicas."""
    named = (stream.preferred, stream.assigned, stream.node_id if stream.is_open else -1)
    every = tuple(dict.fromkeys(node_id for node_id in named if node_id >= 0))
    in_sync = tuple(node_id for node_id in every if _live(state, node_id) is not None)
    return Replicas(every, in_sync, tuple(n for n in every if n not in in_sync))


def live_nodes(state: ClusterState) -> list[NodeState]:
    """Return the nodes that serve, by id."""
    return [node for _, node in sorted(state.nodes.items()) if not node.is_fenced]


def controller_id(state: ClusterState, answering: int) -> int:
    """Return the controller as clients are told it: who holds the lease, or whoever answers, since
    any node can do what clients ask of a controller.
    """
    holder = _live(state, state.controller.node_id)
    return answering if holder is None else holder.node_id


def _live(state: ClusterState, node_id: int) -> NodeState | None:
    node = state.nodes.get(node_id)
    return None if node is None or node.is_fenced else node
