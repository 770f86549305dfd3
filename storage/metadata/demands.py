"""What the rules of several records share."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from lakehead.storage.errors import EntryRejected
from lakehead.storage.metadata.state import ClusterState, NodeState, ObjectState, StreamState


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


def object_of(state: ClusterState, key: str) -> ObjectState:
    """Return an object. Raises EntryRejected when there is none."""
    known = state.objects.get(key)
    if known is None:
        raise EntryRejected(f"no object {key}")
    return known


def set_stream(state: ClusterState, stream: StreamState) -> ClusterState:
    """Return the state with this stream in it."""
    return replace(state, streams=state.streams.set(stream.stream_id, stream))


def set_objects(
    state: ClusterState, changed: Iterable[ObjectState], gone: Iterable[str] = ()
) -> ClusterState:
    """Return the state with these objects in it, and without those that are gone."""
    objects, unreferenced = state.objects, state.unreferenced
    for known in changed:
        objects = objects.set(known.key, known)
        if not known.stream_ids:
            unreferenced = unreferenced.set(known.key, known.unreferenced_ms)
        elif known.key in unreferenced:
            unreferenced = unreferenced.delete(known.key)
    for key in gone:
        objects, unreferenced = objects.delete(key), unreferenced.delete(key)
    return replace(state, objects=objects, unreferenced=unreferenced)


def unlink(state: ClusterState, stream_id: int, keys: Iterable[str], time_ms: int) -> ClusterState:
    """Return the state after a stream gave up its references to objects."""
    return unlink_all(state, {key: {stream_id} for key in keys}, time_ms)


def unlink_all(
    state: ClusterState, referring: Mapping[str, Set[int]], time_ms: int
) -> ClusterState:
    """Return the state after streams gave up their references to objects: by key, the streams."""
    return set_objects(
        state,
        [
            known.referred_by(known.stream_ids - referring[key], time_ms)
            for key in sorted(referring)
            for known in (object_of(state, key),)
        ],
    )
