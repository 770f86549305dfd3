"""What the rules of several records share."""

from collections.abc import Iterable
from dataclasses import replace

from storage.errors import EntryRejected
from storage.metadata.state import ClusterState, NodeState, StreamState


def require(condition: bool, reason: str) -> None:
    """Raise EntryRejected with `reason` unless `condition` holds."""
    if not condition:
        raise EntryRejected(reason)


def live_node(state: ClusterState, node_id: int, epoch: int) -> NodeState:
    """Return the node if `epoch` is its current one and was not fenced. Raises EntryRejected."""
    node = state.nodes.get(node_id)
    if node is None or node.epoch != epoch or node.is_fenced:
        raise EntryRejected(f"node {node_id} epoch {epoch} is not registered, or was fenced")
    return node


def set_stream(state: ClusterState, stream: StreamState) -> ClusterState:
    """Return the state with this stream in it."""
    return replace(state, streams=state.streams.set(stream.stream_id, stream))


def unlink(state: ClusterState, stream_id: int, keys: Iterable[str], time_ms: int) -> ClusterState:
    """Return the state after a stream gave up its references to objects."""
    objects = state.objects
    for key in keys:
        known = objects[key]
        objects = objects.set(key, known.referred_by(known.stream_ids - {stream_id}, time_ms))
    return replace(state, objects=objects)
