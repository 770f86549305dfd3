"""One rule per record: what it demands of the state, and what it does to it.

Every function takes a state and a record and returns the next state, or raises EntryRejected.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from immutables import Map

from storage.errors import EntryRejected, TopicExists, UnknownTopic
from storage.metadata import records as r
from storage.metadata.state import (
    ClusterState,
    ControllerState,
    Extent,
    NodeState,
    ObjectState,
    StreamState,
    TopicState,
    object_state,
)


def apply_record(state: ClusterState, record: r.Record) -> ClusterState:
    """Return the state after one record. Raises EntryRejected."""
    return _RULES[type(record)](state, record)


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise EntryRejected(reason)


def _cluster_created(state: ClusterState, record: r.ClusterCreated) -> ClusterState:
    _require(not state.cluster_id, f"the cluster {state.cluster_id} exists")
    return replace(state, cluster_id=record.cluster_id)


def _register_node(state: ClusterState, record: r.RegisterNode) -> ClusterState:
    known = state.nodes.get(record.node_id)
    expected = 0 if known is None else known.epoch + 1
    _require(
        record.epoch == expected, f"node {record.node_id}: epoch {record.epoch}, not {expected}"
    )
    node = NodeState(
        node_id=record.node_id,
        epoch=record.epoch,
        incarnation=record.incarnation,
        host=record.host,
        port=record.port,
        rack=record.rack,
    )
    return replace(state, nodes=state.nodes.set(record.node_id, node))


def _live_node(state: ClusterState, node_id: int, epoch: int) -> NodeState:
    node = state.nodes.get(node_id)
    if node is None or node.epoch != epoch or node.is_fenced:
        raise EntryRejected(f"node {node_id} epoch {epoch} is not registered, or was fenced")
    return node


def _fence_node(state: ClusterState, record: r.FenceNode) -> ClusterState:
    node = _live_node(state, record.node_id, record.epoch)
    return replace(state, nodes=state.nodes.set(record.node_id, replace(node, is_fenced=True)))


def _retire_node(state: ClusterState, record: r.RetireNode) -> ClusterState:
    _require(record.node_id in state.nodes, f"no node {record.node_id}")
    owned = [
        s.stream_id for s in state.streams.values() if s.is_open and s.node_id == record.node_id
    ]
    _require(not owned, f"node {record.node_id} owns {len(owned)} streams")
    return replace(state, nodes=state.nodes.delete(record.node_id))


def _create_topic(state: ClusterState, record: r.CreateTopic) -> ClusterState:
    if record.name in state.topics:
        raise TopicExists(f"topic {record.name} exists")
    _require(record.topic_id not in state.topic_names, f"topic id {record.topic_id} exists")
    topic = TopicState(name=record.name, topic_id=record.topic_id, configs=Map(record.configs))
    return replace(
        state,
        topics=state.topics.set(record.name, topic),
        topic_names=state.topic_names.set(record.topic_id, record.name),
    )


def _topic(state: ClusterState, topic_id: str) -> TopicState:
    topic = state.topic_by_id(topic_id)
    if topic is None:
        raise UnknownTopic(f"no topic with id {topic_id}")
    return topic


def _delete_topic(state: ClusterState, record: r.DeleteTopic) -> ClusterState:
    topic = _topic(state, record.topic_id)
    for stream_id in topic.partitions:
        state = _remove_stream(state, state.stream(stream_id))
    return replace(
        state,
        topics=state.topics.delete(topic.name),
        topic_names=state.topic_names.delete(topic.topic_id),
    )


def _merged(configs: Map[str, str], changes: dict[str, str | None]) -> Map[str, str]:
    for name, value in changes.items():
        if value is not None:
            configs = configs.set(name, value)
        elif name in configs:
            configs = configs.delete(name)
    return configs


def _topic_config(state: ClusterState, record: r.TopicConfig) -> ClusterState:
    topic = _topic(state, record.topic_id)
    topic = replace(topic, configs=_merged(topic.configs, record.configs))
    return replace(state, topics=state.topics.set(topic.name, topic))


def _broker_config(state: ClusterState, record: r.BrokerConfig) -> ClusterState:
    configs = _merged(state.broker_configs.get(record.node_id, Map()), record.configs)
    return replace(state, broker_configs=state.broker_configs.set(record.node_id, configs))


def _create_stream(state: ClusterState, record: r.CreateStream) -> ClusterState:
    _require(
        record.stream_id == state.next_stream_id,
        f"stream {record.stream_id} where {state.next_stream_id} is next",
    )
    topic = _topic(state, record.topic_id)
    _require(
        record.partition == len(topic.partitions),
        f"partition {record.partition} of topic {topic.name} out of order",
    )
    topic = replace(topic, partitions=(*topic.partitions, record.stream_id))
    stream = StreamState(
        stream_id=record.stream_id, topic_id=record.topic_id, partition=record.partition
    )
    return replace(
        state,
        topics=state.topics.set(topic.name, topic),
        streams=state.streams.set(record.stream_id, stream),
        next_stream_id=record.stream_id + 1,
    )


def _set_stream(state: ClusterState, stream: StreamState) -> ClusterState:
    return replace(state, streams=state.streams.set(stream.stream_id, stream))


def _open_stream(state: ClusterState, record: r.OpenStream) -> ClusterState:
    stream = state.stream(record.stream_id)
    _live_node(state, record.node_id, record.node_epoch)
    _require(
        record.epoch == stream.epoch + 1,
        f"stream {record.stream_id}: epoch {record.epoch} after {stream.epoch}",
    )
    if stream.is_open and stream.node_id != record.node_id:
        owner = state.nodes.get(stream.node_id)
        _require(
            owner is None or owner.is_fenced,
            f"stream {record.stream_id} is open on node {stream.node_id}",
        )
    return _set_stream(
        state,
        replace(
            stream,
            epoch=record.epoch,
            node_id=record.node_id,
            is_open=True,
            epochs=(*stream.epochs, (record.epoch, stream.end_offset)),
        ),
    )


def _close_stream(state: ClusterState, record: r.CloseStream) -> ClusterState:
    stream = state.stream(record.stream_id)
    _require(
        stream.is_open and stream.epoch == record.epoch,
        f"stream {record.stream_id} is not open under epoch {record.epoch}",
    )
    return _set_stream(state, replace(stream, is_open=False))


def _trim_stream(state: ClusterState, record: r.TrimStream) -> ClusterState:
    stream = state.stream(record.stream_id)
    _require(
        stream.start_offset <= record.start_offset <= stream.end_offset,
        f"stream {record.stream_id}: start offset {record.start_offset} outside "
        f"[{stream.start_offset}, {stream.end_offset}]",
    )
    kept = tuple(e for e in stream.extents if e.end_offset > record.start_offset)
    dropped = {e.object_key for e in stream.extents} - {e.object_key for e in kept}
    state = _set_stream(state, replace(stream, start_offset=record.start_offset, extents=kept))
    return _unlink(state, stream.stream_id, dropped)


def _delete_stream(state: ClusterState, record: r.DeleteStream) -> ClusterState:
    return _remove_stream(state, state.stream(record.stream_id))


def _remove_stream(state: ClusterState, stream: StreamState) -> ClusterState:
    state = replace(state, streams=state.streams.delete(stream.stream_id))
    return _unlink(state, stream.stream_id, {extent.object_key for extent in stream.extents})


def _unlink(state: ClusterState, stream_id: int, keys: Iterable[str]) -> ClusterState:
    objects = state.objects
    for key in keys:
        known = objects[key]
        objects = objects.set(key, replace(known, stream_ids=known.stream_ids - {stream_id}))
    return replace(state, objects=objects)


def _commit_objects(state: ClusterState, record: r.CommitObjects) -> ClusterState:
    _live_node(state, record.node_id, record.node_epoch)
    for key in record.removed_wal_objects:
        state = _remove_wal_object(state, key)
    for committed in record.objects:
        _require(committed.key not in state.objects, f"object {committed.key} is committed")
        new = object_state(committed, record.node_id, record.node_epoch)
        gone: set[int] = set()
        for span in committed.ranges:
            if span.stream_id not in state.streams:
                gone.add(span.stream_id)  # deleted while its data was on the way
                continue
            state = _extend(state, record, committed.key, span)
        new = replace(new, stream_ids=new.stream_ids - gone)
        state = replace(state, objects=state.objects.set(committed.key, new))
    return state


def _extend(
    state: ClusterState, record: r.CommitObjects, key: str, span: r.CommittedRange
) -> ClusterState:
    stream = state.stream(span.stream_id)
    _require(
        stream.is_open and stream.node_id == record.node_id,
        f"stream {span.stream_id} is not open on node {record.node_id}",
    )
    _require(
        span.epoch == stream.epoch,
        f"stream {span.stream_id}: epoch {span.epoch}, now {stream.epoch}",
    )
    _require(
        span.start_offset == stream.end_offset and span.end_offset > span.start_offset,
        f"stream {span.stream_id}: [{span.start_offset}, {span.end_offset}) does not continue "
        f"{stream.end_offset}",
    )
    return _set_stream(
        state,
        replace(
            stream,
            end_offset=span.end_offset,
            extents=(*stream.extents, _extent(key, span)),
        ),
    )


def _extent(key: str, span: r.CommittedRange) -> Extent:
    return Extent(
        start_offset=span.start_offset,
        end_offset=span.end_offset,
        object_key=key,
        max_timestamp=span.max_timestamp,
        size=span.size,
    )


def _remove_wal_object(state: ClusterState, key: str) -> ClusterState:
    known = _object(state, key)
    _require(known.kind == "wal", f"object {key} is not a WAL object")
    _require(not known.stream_ids, f"WAL object {key} still holds data")
    return replace(state, objects=state.objects.delete(key))


def _object(state: ClusterState, key: str) -> ObjectState:
    try:
        return state.objects[key]
    except KeyError:
        raise EntryRejected(f"no object {key}") from None


def _replace_objects(state: ClusterState, record: r.ReplaceObjects) -> ClusterState:
    sources = set(record.sources)
    first = {_object(state, key).key: _object(state, key) for key in record.sources}
    new: dict[int, list[Extent]] = {}
    for committed in record.objects:
        _require(committed.key not in state.objects, f"object {committed.key} is committed")
        for span in committed.ranges:
            new.setdefault(span.stream_id, []).append(_extent(committed.key, span))
    touched = set[int]().union(*(known.stream_ids for known in first.values()))
    _require(set(new) <= touched, "the new objects hold streams that the sources do not")
    for stream_id in touched:
        state = _replace_extents(state, state.stream(stream_id), sources, new.get(stream_id, []))
    objects = state.objects
    for key, known in first.items():
        objects = objects.set(key, replace(known, stream_ids=frozenset()))
    for committed in record.objects:
        source = next(iter(first.values()))
        objects = objects.set(
            committed.key, object_state(committed, source.node_id, source.node_epoch)
        )
    return replace(state, objects=objects)


def _replace_extents(
    state: ClusterState, stream: StreamState, sources: set[str], new: list[Extent]
) -> ClusterState:
    old = [extent for extent in stream.extents if extent.object_key in sources]
    new = sorted(new, key=lambda extent: extent.start_offset)
    _require(
        _spans(old) == _spans(new),
        f"stream {stream.stream_id}: the new objects cover {_spans(new)}, not {_spans(old)}",
    )
    kept = [extent for extent in stream.extents if extent.object_key not in sources]
    extents = tuple(sorted([*kept, *new], key=lambda extent: extent.start_offset))
    return _set_stream(state, replace(stream, extents=extents))


def _spans(extents: list[Extent]) -> list[tuple[int, int]]:
    """Merge adjacent extents into (start, end) pairs."""
    spans: list[tuple[int, int]] = []
    for extent in extents:
        if spans and spans[-1][1] == extent.start_offset:
            spans[-1] = (spans[-1][0], extent.end_offset)
        else:
            spans.append((extent.start_offset, extent.end_offset))
    return spans


def _drop_objects(state: ClusterState, record: r.DropObjects) -> ClusterState:
    objects = state.objects
    for key in record.keys:
        _require(not _object(state, key).stream_ids, f"object {key} still holds data")
        objects = objects.delete(key)
    return replace(state, objects=objects)


def _producer_id_block(state: ClusterState, record: r.ProducerIdBlock) -> ClusterState:
    _require(
        record.start == state.next_producer_id and record.count > 0,
        f"producer ids from {record.start} where {state.next_producer_id} is next",
    )
    return replace(state, next_producer_id=record.start + record.count)


def _controller_lease(state: ClusterState, record: r.ControllerLease) -> ClusterState:
    _live_node(state, record.node_id, record.node_epoch)
    _require(
        record.term == state.controller.term + 1,
        f"controller term {record.term} after {state.controller.term}",
    )
    return replace(
        state,
        controller=ControllerState(
            node_id=record.node_id, node_epoch=record.node_epoch, term=record.term
        ),
    )


_RULES: dict[type, Callable[[ClusterState, Any], ClusterState]] = {
    r.ClusterCreated: _cluster_created,
    r.RegisterNode: _register_node,
    r.FenceNode: _fence_node,
    r.RetireNode: _retire_node,
    r.CreateTopic: _create_topic,
    r.DeleteTopic: _delete_topic,
    r.TopicConfig: _topic_config,
    r.BrokerConfig: _broker_config,
    r.CreateStream: _create_stream,
    r.OpenStream: _open_stream,
    r.CloseStream: _close_stream,
    r.TrimStream: _trim_stream,
    r.DeleteStream: _delete_stream,
    r.CommitObjects: _commit_objects,
    r.ReplaceObjects: _replace_objects,
    r.DropObjects: _drop_objects,
    r.ProducerIdBlock: _producer_id_block,
    r.ControllerLease: _controller_lease,
}
