"""One rule per record: what it demands of the state, and what it does to it.

Every function takes a state, a record and its entry's time (milliseconds, for what is shown and for
grace periods: no rule decides by it) and returns the next state, or raises EntryRejected.
"""

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

from immutables import Map

from lakehead.storage.errors import TopicExists, UnknownTopic
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.demands import live_node, require, set_stream, unlink, unlink_all
from lakehead.storage.metadata.extents import Extents
from lakehead.storage.metadata.feature_rules import feature_level, node_secret
from lakehead.storage.metadata.object_rules import commit_objects, drop_objects, replace_objects
from lakehead.storage.metadata.security_rules import (
    client_quota,
    create_acls,
    delete_acls,
    delete_scram,
    upsert_scram,
)
from lakehead.storage.metadata.state import (
    ClusterState,
    ControllerState,
    KnownLog,
    LostLog,
    NodeState,
    StreamState,
    TopicState,
)
from lakehead.storage.metadata.table_rules import table_progress, take_table
from lakehead.storage.metadata.topic_names import may_collide, unified_name

_STREAMS_AT_ONCE = 500
"""Streams that change in one step: a few milliseconds' work."""
_RECORDS_AT_ONCE = 100


def apply_records(
    state: ClusterState, records: Sequence[r.Record], time_ms: int
) -> Generator[None, None, ClusterState]:
    """Return the state after these records, as if one came after the other; others may have a turn
    between any two steps. Raises EntryRejected.
    """
    small = 0
    for run in _runs(records):
        match run[0]:
            case r.CreateStream():
                state = _create_streams(state, run)
                yield
            case r.AssignStreams() as record:
                for stream_ids in _batches(record.stream_ids):
                    state = _assign_streams(state, record, stream_ids)
                    yield
            case r.DeleteTopic() as record:
                state = yield from _delete_topic(state, record, time_ms)
            case record:
                state = _RULES[type(record)](state, record, time_ms)
                small += 1
                if not small % _RECORDS_AT_ONCE:
                    yield
    return state


def _batches(stream_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for first in range(0, max(1, len(stream_ids)), _STREAMS_AT_ONCE):  # one is judged without any
        yield stream_ids[first : first + _STREAMS_AT_ONCE]


def _runs(records: Sequence[r.Record]) -> Iterator[list[Any]]:
    """Yield each record by itself, but those together that make streams of one topic."""
    run: list[r.CreateStream] = []
    for record in records:
        is_of_run = (
            isinstance(record, r.CreateStream)
            and len(run) < _STREAMS_AT_ONCE
            and (not run or record.topic_id == run[0].topic_id)
        )
        if run and not is_of_run:
            yield run
            run = []
        if isinstance(record, r.CreateStream):
            run.append(record)
        else:
            yield [record]
    if run:
        yield run


def _cluster_created(state: ClusterState, record: r.ClusterCreated, _: int) -> ClusterState:
    require(not state.cluster_id, f"the cluster {state.cluster_id} exists")
    return replace(state, cluster_id=record.cluster_id)


def _register_node(state: ClusterState, record: r.RegisterNode, _: int) -> ClusterState:
    known = state.nodes.get(record.node_id)
    last = state.retired_nodes.get(record.node_id, -1) if known is None else known.epoch
    expected = last + 1
    require(
        record.epoch == expected, f"node {record.node_id}: epoch {record.epoch}, not {expected}"
    )
    level = state.metadata_version
    require(
        not record.max_level or record.min_level <= level <= record.max_level,
        f"node {record.node_id} supports metadata.version {record.min_level} to "
        f"{record.max_level}, and the cluster is at {level}",
    )
    node = NodeState(
        node_id=record.node_id,
        epoch=record.epoch,
        incarnation=record.incarnation,
        host=record.host,
        port=record.port,
        rack=record.rack or None,
        host_id=record.host_id,
        wal=record.wal,
        process=record.process,
        min_level=record.min_level,
        max_level=record.max_level,
        tables=record.tables,
        wal_epoch=expected if known is None else known.wal_epoch,
        wal_floor=0 if known is None else known.wal_floor,
        log=KnownLog() if known is None else known.log,
        lost_log=None if known is None else known.lost_log,
    )
    retired = state.retired_nodes
    if record.node_id in retired:
        retired = retired.delete(record.node_id)
    nodes = state.nodes.set(record.node_id, node)
    return replace(state, nodes=nodes, retired_nodes=retired)


def _start_log(state: ClusterState, record: r.StartLog, _: int) -> ClusterState:
    node = live_node(state, record.node_id, record.node_epoch)
    log = KnownLog(log_id=record.log_id, epoch=record.node_epoch, position=record.position)
    return replace(state, nodes=state.nodes.set(record.node_id, replace(node, log=log)))


def _accept_log_loss(state: ClusterState, record: r.AcceptLogLoss, time_ms: int) -> ClusterState:
    node = live_node(state, record.node_id, record.node_epoch)
    require(bool(node.log.log_id), f"node {record.node_id} has no log to lose")
    lost = LostLog(
        log_id=node.log.log_id, epoch=node.log.epoch, time_ms=time_ms, streams=record.streams
    )
    node = replace(node, log=KnownLog(log_id=record.log_id), lost_log=lost)
    return replace(state, nodes=state.nodes.set(record.node_id, node))


def _fence_node(state: ClusterState, record: r.FenceNode, _: int) -> ClusterState:
    _require_term(state, record.term)
    node = live_node(state, record.node_id, record.epoch)
    return replace(state, nodes=state.nodes.set(record.node_id, replace(node, is_fenced=True)))


def _drain_node(state: ClusterState, record: r.DrainNode, _: int) -> ClusterState:
    node = live_node(state, record.node_id, record.epoch)
    node = replace(node, is_draining=record.is_draining)
    return replace(state, nodes=state.nodes.set(record.node_id, node))


def _require_term(state: ClusterState, term: int) -> None:
    """A controller that was superseded while it slept decides nothing any more."""
    now = state.controller.term
    require(term in (-1, now), f"controller term {term} has passed: it is {now}")


def _retire_node(state: ClusterState, record: r.RetireNode, _: int) -> ClusterState:
    require(record.node_id in state.nodes, f"no node {record.node_id}")
    owned = [
        s.stream_id for s in state.streams.values() if s.is_open and s.node_id == record.node_id
    ]
    require(not owned, f"node {record.node_id} owns {len(owned)} streams")
    epoch = state.nodes[record.node_id].epoch
    return replace(
        state,
        nodes=state.nodes.delete(record.node_id),
        retired_nodes=state.retired_nodes.set(record.node_id, epoch),
    )


def _create_topic(state: ClusterState, record: r.CreateTopic, _: int) -> ClusterState:
    if record.name in state.topics:
        raise TopicExists(f"topic {record.name} exists")
    require(record.topic_id not in state.topic_names, f"topic id {record.topic_id} exists")
    topic = TopicState(name=record.name, topic_id=record.topic_id, configs=Map(record.configs))
    unified = state.unified_names
    if may_collide(record.name):
        same = unified_name(record.name)
        unified = unified.set(same, unified.get(same, frozenset()) | {record.name})
    return replace(
        state,
        topics=state.topics.set(record.name, topic),
        topic_names=state.topic_names.set(record.topic_id, record.name),
        unified_names=unified,
    )


def _topic(state: ClusterState, topic_id: str) -> TopicState:
    topic = state.topic_by_id(topic_id)
    if topic is None:
        raise UnknownTopic(f"no topic with id {topic_id}")
    return topic


def _delete_topic(
    state: ClusterState, record: r.DeleteTopic, time_ms: int
) -> Generator[None, None, ClusterState]:
    topic = _topic(state, record.topic_id)
    for stream_ids in _batches(topic.partitions):
        found = [state.streams.get(stream_id) for stream_id in stream_ids]
        streams = [stream for stream in found if stream is not None]
        referring: dict[str, set[int]] = defaultdict(set)
        for stream in streams:
            for extent in stream.state_sources:
                referring[extent.object_key].add(stream.stream_id)
        left = state.streams.without(stream.stream_id for stream in streams)
        state = unlink_all(replace(state, streams=left), referring, time_ms)
        yield
    unified = state.unified_names
    if may_collide(topic.name):
        same = unified_name(topic.name)
        others = unified[same] - {topic.name}
        unified = unified.set(same, others) if others else unified.delete(same)
    return replace(
        state,
        topics=state.topics.delete(topic.name),
        topic_names=state.topic_names.delete(topic.topic_id),
        unified_names=unified,
        tables=state.tables.delete(topic.topic_id)
        if topic.topic_id in state.tables
        else state.tables,
    )


def _merged(configs: Map[str, str], changes: dict[str, str | None]) -> Map[str, str]:
    for name, value in changes.items():
        if value is not None:
            configs = configs.set(name, value)
        elif name in configs:
            configs = configs.delete(name)
    return configs


def _topic_config(state: ClusterState, record: r.TopicConfig, _: int) -> ClusterState:
    topic = _topic(state, record.topic_id)
    topic = replace(topic, configs=_merged(topic.configs, record.configs))
    return replace(state, topics=state.topics.set(topic.name, topic))


def _broker_config(state: ClusterState, record: r.BrokerConfig, _: int) -> ClusterState:
    configs = _merged(state.broker_configs.get(record.node_id, Map()), record.configs)
    if configs:
        return replace(state, broker_configs=state.broker_configs.set(record.node_id, configs))
    if record.node_id in state.broker_configs:
        return replace(state, broker_configs=state.broker_configs.delete(record.node_id))
    return state


def _group_config(state: ClusterState, record: r.GroupConfig, _: int) -> ClusterState:
    require(bool(record.group), "configs of a group without a name")
    configs = _merged(state.group_configs.get(record.group, Map()), record.configs)
    if configs:
        return replace(state, group_configs=state.group_configs.set(record.group, configs))
    if record.group in state.group_configs:
        return replace(state, group_configs=state.group_configs.delete(record.group))
    return state


def _create_streams(state: ClusterState, run: Sequence[r.CreateStream]) -> ClusterState:
    """Apply records that make streams of one topic."""
    topic = _topic(state, run[0].topic_id)
    count = len(topic.partitions)
    for number, record in enumerate(run):
        require(
            record.stream_id == state.next_stream_id + number,
            f"stream {record.stream_id} where {state.next_stream_id + number} is next",
        )
        require(
            record.partition == count + number,
            f"partition {record.partition} of topic {topic.name} out of order",
        )
    made = [
        StreamState(stream_id=one.stream_id, topic_id=one.topic_id, partition=one.partition)
        for one in run
    ]
    stream_ids = tuple(stream.stream_id for stream in made)
    topic = replace(topic, partitions=topic.partitions + stream_ids)
    return replace(
        state,
        topics=state.topics.set(topic.name, topic),
        streams=state.streams.update(zip(stream_ids, made, strict=True)),
        next_stream_id=stream_ids[-1] + 1,
    )


def _assign_streams(
    state: ClusterState, record: r.AssignStreams, stream_ids: Sequence[int]
) -> ClusterState:
    """Apply what a record says of some of its streams."""
    _require_term(state, record.term)
    node = state.nodes.get(record.node_id)
    require(
        node is not None and not node.is_fenced,
        f"node {record.node_id} is not registered, or was fenced",
    )
    assigned = []
    for stream_id in stream_ids:
        stream = state.stream(stream_id)
        is_preferred = record.is_preferred or stream.preferred < 0
        preferred = record.node_id if is_preferred else stream.preferred
        assigned.append((stream_id, replace(stream, assigned=record.node_id, preferred=preferred)))
    return replace(state, streams=state.streams.update(assigned))


def _open_stream(state: ClusterState, record: r.OpenStream, _: int) -> ClusterState:
    stream = state.stream(record.stream_id)
    live_node(state, record.node_id, record.node_epoch)
    require(
        stream.assigned in (-1, record.node_id),
        f"stream {record.stream_id} is assigned to node {stream.assigned}",
    )
    require(
        record.epoch == stream.epoch + 1,
        f"stream {record.stream_id}: epoch {record.epoch} after {stream.epoch}",
    )
    if stream.is_open and stream.node_id != record.node_id:
        owner = state.nodes.get(stream.node_id)
        # What a fenced owner acknowledged may lie in its WAL alone: that is committed first.
        require(
            owner is None or owner.is_recovered,
            f"stream {record.stream_id} is open on node {stream.node_id}, or its WAL there is not "
            "recovered",
        )
    return set_stream(
        state,
        replace(
            stream,
            epoch=record.epoch,
            node_id=record.node_id,
            is_open=True,
            epochs=(*stream.epochs, (record.epoch, stream.end_offset)),
        ),
    )


def _close_stream(state: ClusterState, record: r.CloseStream, _: int) -> ClusterState:
    stream = state.stream(record.stream_id)
    require(
        stream.is_open and stream.epoch == record.epoch,
        f"stream {record.stream_id} is not open under epoch {record.epoch}",
    )
    return set_stream(state, replace(stream, is_open=False))


def _trim_stream(state: ClusterState, record: r.TrimStream, time_ms: int) -> ClusterState:
    stream = state.stream(record.stream_id)
    require(
        stream.start_offset <= record.start_offset <= stream.end_offset,
        f"stream {record.stream_id}: start offset {record.start_offset} outside "
        f"[{stream.start_offset}, {stream.end_offset}]",
    )
    kept, dropped = stream.extents.trim(record.start_offset)
    state_from, for_state = stream.state_from, stream.state_extents
    if dropped:
        for_state = for_state.extend(dropped).trim(state_from)[0] if state_from >= 0 else Extents()
    if record.drops_state:
        for_state = Extents()
        state_from = max(state_from, kept[0].start_offset) if kept and state_from >= 0 else -1
    trimmed = replace(
        stream,
        start_offset=record.start_offset,
        extents=kept,
        state_from=state_from,
        state_extents=for_state,
    )
    keys = {extent.object_key for extent in (*stream.state_extents, *dropped)}
    if keys:  # an object may hold several extents of a stream
        keys -= {extent.object_key for extent in trimmed.state_sources}
    return unlink(set_stream(state, trimmed), stream.stream_id, keys, time_ms)


def _delete_stream(state: ClusterState, record: r.DeleteStream, time_ms: int) -> ClusterState:
    return _remove_stream(state, state.stream(record.stream_id), time_ms)


def _remove_stream(state: ClusterState, stream: StreamState, time_ms: int) -> ClusterState:
    state = replace(state, streams=state.streams.delete(stream.stream_id))
    keys = {extent.object_key for extent in stream.state_sources}
    return unlink(state, stream.stream_id, keys, time_ms)


def _producer_id_block(state: ClusterState, record: r.ProducerIdBlock, _: int) -> ClusterState:
    require(
        record.start == state.next_producer_id and 0 < record.count < 2**63 - record.start,
        f"producer ids from {record.start} where {state.next_producer_id} is next",
    )
    return replace(state, next_producer_id=record.start + record.count)


def _controller_lease(state: ClusterState, record: r.ControllerLease, _: int) -> ClusterState:
    live_node(state, record.node_id, record.node_epoch)
    require(
        record.term == state.controller.term + 1,
        f"controller term {record.term} after {state.controller.term}",
    )
    return replace(
        state,
        controller=ControllerState(
            node_id=record.node_id, node_epoch=record.node_epoch, term=record.term
        ),
    )


_RULES: dict[type, Callable[[ClusterState, Any, int], ClusterState]] = {
    r.ClusterCreated: _cluster_created,
    r.FeatureLevel: feature_level,
    r.NodeSecret: node_secret,
    r.RegisterNode: _register_node,
    r.StartLog: _start_log,
    r.AcceptLogLoss: _accept_log_loss,
    r.FenceNode: _fence_node,
    r.DrainNode: _drain_node,
    r.RetireNode: _retire_node,
    r.CreateTopic: _create_topic,
    r.TopicConfig: _topic_config,
    r.BrokerConfig: _broker_config,
    r.GroupConfig: _group_config,
    r.OpenStream: _open_stream,
    r.CloseStream: _close_stream,
    r.TrimStream: _trim_stream,
    r.DeleteStream: _delete_stream,
    r.CommitObjects: commit_objects,
    r.ReplaceObjects: replace_objects,
    r.DropObjects: drop_objects,
    r.ClientQuota: client_quota,
    r.AclCreate: create_acls,
    r.AclDelete: delete_acls,
    r.ScramUpsert: upsert_scram,
    r.ScramDelete: delete_scram,
    r.ProducerIdBlock: _producer_id_block,
    r.ControllerLease: _controller_lease,
    r.TakeTable: take_table,
    r.TableProgress: table_progress,
}
