"""One rule per record of the metadata log: its conditions on the state, and its effect.

A rule takes a state, a record and the time of its entry, and returns the next state, or raises
EntryRejected. The same rules judge an entry before it is put and after it is read, so all readers
agree. Time is in milliseconds and decides nothing: it is for display and for grace periods. The
next holder of a lease judges if it has expired; a lease holder that was paused is rejected by its
term.

Access rules, quotas and credentials are stored as given: only their shape is checked. Kafka's names
(operations, quota names, mechanisms) are checked by the broker before it commits. If a rule knew
them, two releases with different names would disagree about one entry.
"""

import math
import re
from collections import defaultdict
from collections.abc import (
    Callable,
    Collection,
    Container,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from dataclasses import replace
from typing import Any

from immutables import Map

from lakehead.storage.errors import EntryRejected, TopicExists, UnknownTopic
from lakehead.storage.format.feature_level import BASE_LEVEL, METADATA_VERSION
from lakehead.storage.format.object_names import JobName
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.extents import Extent, Extents
from lakehead.storage.metadata.state import (
    ControllerState,
    DelegationToken,
    KnownLog,
    LostLog,
    MetadataImage,
    NodeState,
    ObjectState,
    ScramCredential,
    StreamState,
    TableState,
    TopicState,
    may_collide,
    object_state,
    unified_name,
)

_STREAMS_AT_ONCE = 500
"""Streams that change in one step: a few milliseconds' work."""
_RECORDS_AT_ONCE = 100


def apply_entry(state: MetadataImage, entry: r.Entry) -> MetadataImage:
    """Return the state after `entry`. Raises EntryRejected, which names the record and the rule;
    the state that was given is unchanged.
    """
    return apply_records(state, entry.records, entry.time_ms).refuse(entry)


def apply_records(state: MetadataImage, records: Sequence[r.Record], time_ms: int) -> MetadataImage:
    """Return the state after these records, as if an entry carried them. Raises EntryRejected."""
    steps = apply_in_steps(state, records, time_ms)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            after: MetadataImage = end.value
            return after


def apply_in_steps(
    state: MetadataImage, records: Sequence[r.Record], time_ms: int
) -> Generator[None, None, MetadataImage]:
    """Return the same as `apply_records`, in steps of a few milliseconds, between which other tasks
    may run. Raises EntryRejected.
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
            case r.RetireNode() as record:
                state = yield from _retire_node(state, record)
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


def _cluster_created(state: MetadataImage, record: r.ClusterCreated, _: int) -> MetadataImage:
    _require(not state.cluster_id, f"the cluster {state.cluster_id} exists")
    return replace(state, cluster_id=record.cluster_id)


def _register_node(state: MetadataImage, record: r.RegisterNode, _: int) -> MetadataImage:
    known = state.nodes.get(record.node_id)
    last = state.retired_nodes.get(record.node_id, -1) if known is None else known.epoch
    expected = last + 1
    _require(
        record.epoch == expected, f"node {record.node_id}: epoch {record.epoch}, not {expected}"
    )
    level = state.metadata_version
    _require(
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
        endpoints=record.endpoints,
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


def _start_log(state: MetadataImage, record: r.StartLog, _: int) -> MetadataImage:
    node = _live_node(state, record.node_id, record.node_epoch)
    log = KnownLog(log_id=record.log_id, epoch=record.node_epoch, position=record.position)
    return replace(state, nodes=state.nodes.set(record.node_id, replace(node, log=log)))


def _accept_log_loss(state: MetadataImage, record: r.AcceptLogLoss, time_ms: int) -> MetadataImage:
    node = _live_node(state, record.node_id, record.node_epoch)
    _require(bool(node.log.log_id), f"node {record.node_id} has no log to lose")
    lost = LostLog(
        log_id=node.log.log_id, epoch=node.log.epoch, time_ms=time_ms, streams=record.streams
    )
    node = replace(node, log=KnownLog(log_id=record.log_id), lost_log=lost)
    state = replace(state, nodes=state.nodes.set(record.node_id, node))
    return end_tails(state, state.tails_of(record.node_id))


def end_tails(state: MetadataImage, keys: Iterable[str]) -> MetadataImage:
    """Return the state in which no record of these tail objects is waited for: of the objects only
    the headers count.
    """
    ended = [replace(_object_of(state, key), kind=r.HEADERS) for key in keys]
    return _set_objects(state, ended)


def _fence_node(state: MetadataImage, record: r.FenceNode, _: int) -> MetadataImage:
    _require_term(state, record.term)
    node = _live_node(state, record.node_id, record.epoch)
    return replace(state, nodes=state.nodes.set(record.node_id, replace(node, is_fenced=True)))


def _drain_node(state: MetadataImage, record: r.DrainNode, _: int) -> MetadataImage:
    node = _live_node(state, record.node_id, record.epoch)
    node = replace(node, is_draining=record.is_draining)
    return replace(state, nodes=state.nodes.set(record.node_id, node))


def _require_term(state: MetadataImage, term: int) -> None:
    """A controller that was superseded while it slept decides nothing any more."""
    now = state.controller.term
    _require(term in (-1, now), f"controller term {term} has passed: it is {now}")


def _retire_node(
    state: MetadataImage, record: r.RetireNode
) -> Generator[None, None, MetadataImage]:
    _require(record.node_id in state.nodes, f"no node {record.node_id}")
    owned = yield from open_streams(state, record.node_id)
    _require(not owned, f"node {record.node_id} owns {owned} streams")
    tails = state.tails_of(record.node_id)
    _require(not tails, f"the log of node {record.node_id} has records that are in no object yet")
    epoch = state.nodes[record.node_id].epoch
    return replace(
        state,
        nodes=state.nodes.delete(record.node_id),
        retired_nodes=state.retired_nodes.set(record.node_id, epoch),
    )


def open_streams(state: MetadataImage, node_id: int) -> Generator[None, None, int]:
    """Return how many streams are open on a node, in steps of a few milliseconds."""
    count = 0
    for number, stream in enumerate(state.streams.values(), 1):
        count += stream.is_open and stream.node_id == node_id
        if not number % _STREAMS_AT_ONCE:
            yield
    return count


def _create_topic(state: MetadataImage, record: r.CreateTopic, _: int) -> MetadataImage:
    if record.name in state.topics:
        raise TopicExists(f"topic {record.name} exists")
    _require(record.topic_id not in state.topic_names, f"topic id {record.topic_id} exists")
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


def _topic(state: MetadataImage, topic_id: str) -> TopicState:
    topic = state.topic_by_id(topic_id)
    if topic is None:
        raise UnknownTopic(f"no topic with id {topic_id}")
    return topic


def _delete_topic(
    state: MetadataImage, record: r.DeleteTopic, time_ms: int
) -> Generator[None, None, MetadataImage]:
    topic = _topic(state, record.topic_id)
    for stream_ids in _batches(topic.partitions):
        found = [state.streams.get(stream_id) for stream_id in stream_ids]
        streams = [stream for stream in found if stream is not None]
        referring: dict[str, set[int]] = defaultdict(set)
        for stream in streams:
            for extent in stream.state_sources:
                referring[extent.object_key].add(stream.stream_id)
        left = state.streams.without(stream.stream_id for stream in streams)
        state = _unlink_all(replace(state, streams=left), referring, time_ms)
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


def _topic_config(state: MetadataImage, record: r.TopicConfig, _: int) -> MetadataImage:
    topic = _topic(state, record.topic_id)
    topic = replace(topic, configs=_merged(topic.configs, record.configs))
    return replace(state, topics=state.topics.set(topic.name, topic))


def _broker_config(state: MetadataImage, record: r.BrokerConfig, _: int) -> MetadataImage:
    configs = _merged(state.broker_configs.get(record.node_id, Map()), record.configs)
    if configs:
        return replace(state, broker_configs=state.broker_configs.set(record.node_id, configs))
    if record.node_id in state.broker_configs:
        return replace(state, broker_configs=state.broker_configs.delete(record.node_id))
    return state


def _group_config(state: MetadataImage, record: r.GroupConfig, _: int) -> MetadataImage:
    _require(bool(record.group), "configs of a group without a name")
    configs = _merged(state.group_configs.get(record.group, Map()), record.configs)
    if configs:
        return replace(state, group_configs=state.group_configs.set(record.group, configs))
    if record.group in state.group_configs:
        return replace(state, group_configs=state.group_configs.delete(record.group))
    return state


def _client_metrics_config(
    state: MetadataImage, record: r.ClientMetricsConfig, _: int
) -> MetadataImage:
    name, known = record.subscription, state.client_metrics_configs
    _require(bool(name), "configs of a subscription without a name")
    configs = _merged(known.get(name, Map()), record.configs)
    if configs:
        return replace(state, client_metrics_configs=known.set(name, configs))
    return replace(state, client_metrics_configs=known.delete(name)) if name in known else state


def _create_streams(state: MetadataImage, run: Sequence[r.CreateStream]) -> MetadataImage:
    """Apply records that make streams of one topic."""
    topic = _topic(state, run[0].topic_id)
    count = len(topic.partitions)
    for number, record in enumerate(run):
        _require(
            record.stream_id == state.next_stream_id + number,
            f"stream {record.stream_id} where {state.next_stream_id + number} is next",
        )
        _require(
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
    state: MetadataImage, record: r.AssignStreams, stream_ids: Sequence[int]
) -> MetadataImage:
    """Apply what a record says of some of its streams."""
    _require_term(state, record.term)
    node = state.nodes.get(record.node_id)
    _require(
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


def _open_stream(state: MetadataImage, record: r.OpenStream, _: int) -> MetadataImage:
    stream = state.stream(record.stream_id)
    _live_node(state, record.node_id, record.node_epoch)
    _require(
        stream.assigned in (-1, record.node_id),
        f"stream {record.stream_id} is assigned to node {stream.assigned}",
    )
    _require(
        record.epoch == stream.epoch + 1,
        f"stream {record.stream_id}: epoch {record.epoch} after {stream.epoch}",
    )
    if stream.is_open and stream.node_id != record.node_id:
        owner = state.nodes.get(stream.node_id)
        # Records that a fenced owner acknowledged may lie in its WAL alone: that is committed
        # first.
        _require(
            owner is None or owner.is_recovered,
            f"stream {record.stream_id} is open on node {stream.node_id}, or its WAL there is not "
            "recovered",
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


def _close_stream(state: MetadataImage, record: r.CloseStream, _: int) -> MetadataImage:
    stream = state.stream(record.stream_id)
    _require(
        stream.is_open and stream.epoch == record.epoch,
        f"stream {record.stream_id} is not open under epoch {record.epoch}",
    )
    return _set_stream(state, replace(stream, is_open=False))


def _trim_stream(state: MetadataImage, record: r.TrimStream, time_ms: int) -> MetadataImage:
    stream = state.stream(record.stream_id)
    _require(
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
    return _unlink(_set_stream(state, trimmed), stream.stream_id, keys, time_ms)


def _delete_stream(state: MetadataImage, record: r.DeleteStream, time_ms: int) -> MetadataImage:
    return _remove_stream(state, state.stream(record.stream_id), time_ms)


def _remove_stream(state: MetadataImage, stream: StreamState, time_ms: int) -> MetadataImage:
    state = replace(state, streams=state.streams.delete(stream.stream_id))
    keys = {extent.object_key for extent in stream.state_sources}
    return _unlink(state, stream.stream_id, keys, time_ms)


def _producer_id_block(state: MetadataImage, record: r.ProducerIdBlock, _: int) -> MetadataImage:
    _require(
        record.start == state.next_producer_id and 0 < record.count < 2**63 - record.start,
        f"producer ids from {record.start} where {state.next_producer_id} is next",
    )
    return replace(state, next_producer_id=record.start + record.count)


def _controller_lease(state: MetadataImage, record: r.ControllerLease, _: int) -> MetadataImage:
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


def _commit_objects(state: MetadataImage, record: r.CommitObjects, time_ms: int) -> MetadataImage:
    """Let a node's streams grow by what its new objects hold."""
    _require_data(record.objects)
    return _grow(state, record, time_ms)


def _inherit_tail(state: MetadataImage, record: r.InheritTail, time_ms: int) -> MetadataImage:
    """Let the streams of a fenced node grow by what its log holds, and count it as recovered."""
    _require(bool(record.objects), "a tail without an object")
    for one in record.objects:
        _require(one.kind == r.TAIL, f"{one.key} is of kind {one.kind}, not {r.TAIL}")
    inherited = r.CommitObjects(
        node_id=record.node_id,
        node_epoch=record.node_epoch,
        objects=record.objects,
        wal_epoch=record.node_epoch + 1,
        taker_id=record.taker_id,
        taker_epoch=record.taker_epoch,
    )
    return _grow(state, inherited, time_ms)


def _require_data(objects: Sequence[r.CommittedObject]) -> None:
    for one in objects:
        _require(one.kind != r.TAIL, f"{one.key} has no records: it is of kind {r.TAIL}")


def _grow(state: MetadataImage, record: r.CommitObjects, time_ms: int) -> MetadataImage:
    state = _move_wal_floor(state, _committing_node(state, record), record)
    state = _move_wal_position(state, record)
    state = _remove_wal_objects(state, record.removed_wal_objects)
    growths, added = dict[int, _Growth | None](), dict[str, ObjectState]()
    for committed in record.objects:
        _require_new(state, committed.key, added)
        _require(JobName.parse(committed.key) is None, f"{committed.key} is a job's, no upload")
        held: set[int] = set()
        for span in committed.ranges:
            stream_id = span.stream_id
            if stream_id not in growths:
                growths[stream_id] = _growth(state.streams.get(stream_id), record)
            growth = growths[stream_id]
            if growth is not None:
                growth.add(committed.key, span)
                held.add(stream_id)
        added[committed.key] = object_state(
            committed, record.node_id, record.node_epoch, frozenset(held), time_ms
        )
    streams = state.streams
    grown = [growth for growth in growths.values() if growth is not None]
    for growth in grown:
        streams = streams.set(growth.stream.stream_id, growth.grown())
    state = _set_objects(replace(state, streams=streams), added.values())
    outdated: dict[str, set[int]] = defaultdict(set)
    for growth in grown:
        for key in growth.outdated():
            outdated[key].add(growth.stream.stream_id)
    return _unlink_all(state, outdated, time_ms)


def _require_new(state: MetadataImage, key: str, added: Container[str]) -> None:
    # A committed object will be deleted some day: a name outside of the data must not get in.
    _require(key.startswith(("data/", "wal/")), f"{key!r} is not the name of a data object")
    _require(key not in added and key not in state.objects, f"object {key} is committed")


def _committing_node(state: MetadataImage, record: r.CommitObjects) -> NodeState:
    """Return the node whose data is committed: live, or fenced and its taker live."""
    if record.taker_id < 0:
        return _live_node(state, record.node_id, record.node_epoch)
    _live_node(state, record.taker_id, record.taker_epoch)
    node = state.nodes.get(record.node_id)
    if node is None or node.epoch != record.node_epoch or not node.is_fenced:
        raise EntryRejected(f"node {record.node_id} epoch {record.node_epoch} is not a fenced one")
    return node


def _move_wal_floor(
    state: MetadataImage, node: NodeState, record: r.CommitObjects
) -> MetadataImage:
    if record.wal_epoch < 0:
        return state
    now, floor = (node.wal_epoch, node.wal_floor), (record.wal_epoch, record.wal_floor)
    # A fenced node's next life starts with its next epoch.
    last = node.epoch + 1 if node.is_fenced else node.epoch
    _require(
        now <= floor and record.wal_epoch <= last,
        f"node {node.node_id}: WAL floor {floor} after {now}",
    )
    node = replace(node, wal_epoch=record.wal_epoch, wal_floor=record.wal_floor)
    return replace(state, nodes=state.nodes.set(node.node_id, node))


def _move_wal_position(state: MetadataImage, record: r.CommitObjects) -> MetadataImage:
    node = state.nodes[record.node_id]
    if record.wal_position <= node.log.position or not node.log.log_id:
        return state
    node = replace(node, log=replace(node.log, position=record.wal_position))
    return replace(state, nodes=state.nodes.set(node.node_id, node))


class _Growth:
    """The extents that a commit adds to one stream: a recovery commits tens of thousands of ranges
    at once.
    """

    __slots__ = ("end", "extents", "state_from", "stream")

    def __init__(self, stream: StreamState) -> None:
        self.stream = stream
        self.end = stream.end_offset
        self.extents: list[Extent] = []
        self.state_from = stream.state_from

    def add(self, key: str, span: r.CommittedRange) -> None:
        if span.epoch != self.stream.epoch:
            _require(False, f"stream {span.stream_id}: epoch {span.epoch}, now {self.stream.epoch}")
        if span.start_offset != self.end or span.end_offset <= span.start_offset:
            _require(
                False,
                f"stream {span.stream_id}: [{span.start_offset}, {span.end_offset}) does not "
                f"continue {self.end}",
            )
        self.end = span.end_offset
        self.extents.append(_extent(key, span))
        if span.state == r.WHOLE:
            self.state_from = span.start_offset
        elif span.state == r.INCREMENTAL:
            if span.state_since > span.start_offset:
                _require(
                    False, f"stream {span.stream_id}: a state since {span.state_since}, beyond"
                )
            self.state_from = max(self.state_from, span.state_since, self._first_source())
        elif span.state == r.HEADERS and self.state_from < 0:
            self.state_from = span.start_offset

    def _first_source(self) -> int:
        """Return the first offset that a state can still come from: the owner may have dropped what
        was before it while the state was on its way.
        """
        stream = self.stream
        for extents in (stream.state_extents, stream.extents, self.extents):
            if extents:
                return extents[0].start_offset
        return self.end

    def grown(self) -> StreamState:
        stream = self.stream
        return replace(
            stream,
            end_offset=self.end,
            extents=stream.extents.extend(self.extents),
            state_from=self.state_from,
            state_extents=stream.state_extents.trim(self.state_from)[0],
        )

    def outdated(self) -> set[str]:
        """Return the objects that were kept for the state alone, and hold none that counts now."""
        for_state, dropped = self.stream.state_extents.trim(self.state_from)
        if not dropped:
            return set()
        kept = {extent.object_key for extent in (*self.stream.extents, *for_state)}
        return {extent.object_key for extent in dropped} - kept


def _growth(stream: StreamState | None, record: r.CommitObjects) -> _Growth | None:
    """None: the stream was deleted while its data was on the way."""
    if stream is None:
        return None
    _require(
        stream.is_open and stream.node_id == record.node_id,
        f"stream {stream.stream_id} is not open on node {record.node_id}",
    )
    return _Growth(stream)


def _extent(key: str, span: r.CommittedRange) -> Extent:
    return Extent(
        start_offset=span.start_offset,
        end_offset=span.end_offset,
        object_key=key,
        max_timestamp=span.max_timestamp,
        size=span.size,
    )


def _remove_wal_objects(state: MetadataImage, keys: Sequence[str]) -> MetadataImage:
    for key in keys:
        known = _object_of(state, key)
        _require(known.kind == "wal", f"object {key} is not a WAL object")
        _require(not known.stream_ids, f"WAL object {key} still holds data")
    _require(len(set(keys)) == len(keys), "an object is removed twice")
    return _set_objects(state, (), keys)


def _replace_objects(state: MetadataImage, record: r.ReplaceObjects, time_ms: int) -> MetadataImage:
    """Let new objects stand for others: every offset stays where it was for readers."""
    for key in record.sources:
        known = _object_of(state, key)
        _require(known.kind != r.TAIL, f"the records of {key} are in no object yet")
    return _substitute(state, record, time_ms)


def _commit_tail(state: MetadataImage, record: r.CommitTail, time_ms: int) -> MetadataImage:
    """Let objects stand for a tail, which is in them now; of the tail objects the headers stay."""
    _live_node(state, record.taker_id, record.taker_epoch)
    for key in record.sources:
        known = _object_of(state, key)
        is_tail = known.kind == r.TAIL and known.node_id == record.node_id
        _require(is_tail, f"{key} is not a tail of node {record.node_id}")
    replacement = r.ReplaceObjects(
        sources=record.sources, objects=record.objects, streams=record.streams
    )
    state = _substitute(state, replacement, time_ms)
    for key in record.sources:
        for stream_id in _object_of(state, key).stream_ids:
            left = state.stream(stream_id).extents.among((key,))
            _require(not left, f"stream {stream_id} has records in {key} still")
    return end_tails(state, record.sources)


def _substitute(state: MetadataImage, record: r.ReplaceObjects, time_ms: int) -> MetadataImage:
    _require_data(record.objects)
    _require(bool(record.sources), "nothing is replaced")
    sources = {key: _object_of(state, key) for key in record.sources}
    new: dict[int, list[Extent]] = {}
    added: dict[str, r.CommittedObject] = {}
    for committed in record.objects:
        _require_new(state, committed.key, added)
        name = JobName.parse(committed.key)
        _require(
            name is None or (name.entry <= state.next_entry and name.may_enter(state.next_entry)),
            f"{committed.key} was written too long before entry {state.next_entry}, or after it",
        )
        added[committed.key] = committed
        for span in committed.ranges:
            _require(span.start_offset < span.end_offset, f"stream {span.stream_id}: empty range")
            new.setdefault(span.stream_id, []).append(_extent(committed.key, span))
    touched = set[int](record.streams)
    if not touched:
        touched = touched.union(*(known.stream_ids for known in sources.values()))
    _require(set(new) <= touched, "the new objects hold streams that the sources do not")
    for stream_id in sorted(touched):
        state = _replace_extents(state, state.stream(stream_id), sources, new.get(stream_id, []))
    first = sources[record.sources[0]]
    objects = [
        object_state(
            committed,
            first.node_id,
            first.node_epoch,
            frozenset(span.stream_id for span in committed.ranges),
            time_ms,
        )
        for committed in added.values()
    ]
    replaced = [
        known.referred_by(_still_needed(state, known, touched), time_ms)
        for known in sources.values()
        if known.stream_ids
    ]
    return _set_objects(state, [*objects, *replaced])


def _still_needed(
    state: MetadataImage, known: ObjectState, replaced: Container[int]
) -> frozenset[int]:
    """Return the streams that need an object after it was replaced for some: the others, and those
    whose partition's state lies in it.
    """
    return frozenset(
        stream_id
        for stream_id in known.stream_ids
        if stream_id not in replaced
        or any(one.object_key == known.key for one in state.stream(stream_id).state_extents)
    )


def _replace_extents(
    state: MetadataImage, stream: StreamState, sources: Collection[str], new: list[Extent]
) -> MetadataImage:
    places = stream.extents.among(sources)
    old = [stream.extents[place] for place in places]
    new = sorted(new, key=lambda extent: extent.start_offset)
    _require(
        _spans(old) == _spans(new),
        f"stream {stream.stream_id}: the new objects cover {_spans(new)}, not {_spans(old)}",
    )
    if places and places[-1] - places[0] + 1 == len(places):
        extents = stream.extents.splice(places[0], places[-1] + 1, new)
    else:
        kept = [extent for extent in stream.extents if extent.object_key not in sources]
        extents = Extents.of(sorted([*kept, *new], key=lambda extent: extent.start_offset))
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


def _drop_objects(state: MetadataImage, record: r.DropObjects, _: int) -> MetadataImage:
    """Forget objects that were deleted."""
    for key in record.keys:
        _require(not _object_of(state, key).stream_ids, f"object {key} still holds data")
    _require(len(set(record.keys)) == len(record.keys), "an object is dropped twice")
    return _set_objects(state, (), record.keys)


def _take_table(state: MetadataImage, record: r.TakeTable, _: int) -> MetadataImage:
    """Give a table's lease to a holder, the same as before or another."""
    _topic(state, record.topic_id)
    held = state.tables.get(record.topic_id, TableState())
    _require(record.term == held.term + 1, f"table term {record.term} after {held.term}")
    _require(bool(record.holder) and record.until_ms >= 0, "a table's lease without a holder")
    taken = replace(held, holder=record.holder, term=record.term, until_ms=record.until_ms)
    if record.holder == held.requester:
        taken = replace(taken, requester="", requested_until_ms=0)
    return replace(state, tables=state.tables.set(record.topic_id, taken))


def _request_table(state: MetadataImage, record: r.RequestTable, _: int) -> MetadataImage:
    """Note the process that waits for a table's lease."""
    topic = _topic(state, record.topic_id)
    held = state.tables.get(record.topic_id)
    _require(held is not None, f"the table of topic {topic.name} never had a lease")
    assert held is not None
    _require(bool(record.requester) and record.until_ms >= 0, "a request without a requester")
    requester = record.requester if record.until_ms else ""
    held = replace(held, requester=requester, requested_until_ms=record.until_ms)
    return replace(state, tables=state.tables.set(record.topic_id, held))


def _table_progress(state: MetadataImage, record: r.TableProgress, _: int) -> MetadataImage:
    """Set the progress of a table; only the holder of its lease knows it."""
    topic = _topic(state, record.topic_id)
    held = state.tables.get(record.topic_id)
    _require(
        held is not None and held.term == record.term and held.until_ms > 0,
        f"term {record.term} of the table of topic {topic.name} has passed, or never was",
    )
    assert held is not None
    _require(
        len(record.offsets) <= len(topic.partitions) and all(n >= 0 for n in record.offsets),
        f"progress of {len(record.offsets)} partitions of topic {topic.name}, or below offset 0",
    )
    held = replace(held, offsets=record.offsets, problem=record.problem)
    return replace(state, tables=state.tables.set(record.topic_id, held))


_SECRET = re.compile("[0-9a-f]{64}")


def _node_secret(state: MetadataImage, record: r.NodeSecret, _: int) -> MetadataImage:
    """Give the cluster a secret of its nodes, instead of any that it had."""
    is_secret = _SECRET.fullmatch(record.secret) is not None
    _require(is_secret, "a secret of nodes is 64 hexadecimal digits")
    return replace(state, node_secret=record.secret)


def _feature_level(state: MetadataImage, record: r.FeatureLevel, _: int) -> MetadataImage:
    """Raise the level of a feature. No live node may be registered as not supporting it."""
    _require(record.name == METADATA_VERSION, f"no feature {record.name}")
    now = state.features.get(record.name, BASE_LEVEL)
    _require(record.level > now, f"{record.name} is at level {now}: it is not to be {record.level}")
    for node in state.nodes.values():
        _require(
            node.is_fenced or not node.max_level or node.supports(record.level),
            f"node {node.node_id} supports levels {node.min_level} to {node.max_level} of "
            f"{record.name}, not {record.level}",
        )
    return replace(
        state,
        features=state.features.set(record.name, record.level),
        features_epoch=state.next_entry,
    )


def _client_quota(state: MetadataImage, record: r.ClientQuota, _: int) -> MetadataImage:
    """Set or remove quotas of an entity."""
    _require(bool(record.entity), "a quota without an entity")
    entity = tuple(sorted(record.entity.items()))
    values = state.quotas.get(entity, Map())
    for name, value in record.values.items():
        if value is None:
            values = values.delete(name) if name in values else values
            continue
        _require(math.isfinite(value) and value > 0, f"quota {name} of {value}")
        values = values.set(name, float(value))
    if values:
        return replace(state, quotas=state.quotas.set(entity, values))
    return replace(state, quotas=state.quotas.delete(entity)) if entity in state.quotas else state


def _create_acls(state: MetadataImage, record: r.AclCreate, _: int) -> MetadataImage:
    """Add access rules."""
    acls = state.acls
    for acl in record.acls:
        _require(acl not in acls, f"{acl} exists")
        acls = acls.set(acl, True)
    return replace(state, acls=acls)


def _delete_acls(state: MetadataImage, record: r.AclDelete, _: int) -> MetadataImage:
    """Remove access rules."""
    acls = state.acls
    for acl in record.acls:
        _require(acl in acls, f"no {acl}")
        acls = acls.delete(acl)
    return replace(state, acls=acls)


def _upsert_scram(state: MetadataImage, record: r.ScramUpsert, _: int) -> MetadataImage:
    """Set a credential."""
    whole = record.salt and record.stored_key and record.server_key and record.iterations > 0
    _require(bool(whole and record.user), f"an incomplete credential of user {record.user!r}")
    credential = ScramCredential(
        salt=record.salt,
        stored_key=record.stored_key,
        server_key=record.server_key,
        iterations=record.iterations,
    )
    name = (record.user, record.mechanism)
    return replace(state, scram_credentials=state.scram_credentials.set(name, credential))


def _delete_scram(state: MetadataImage, record: r.ScramDelete, _: int) -> MetadataImage:
    """Remove a credential."""
    name = (record.user, record.mechanism)
    _require(name in state.scram_credentials, f"user {record.user!r} has no {record.mechanism}")
    return replace(state, scram_credentials=state.scram_credentials.delete(name))


def _upsert_token(state: MetadataImage, record: r.DelegationTokenUpsert, _: int) -> MetadataImage:
    """Set a delegation token."""
    _require(bool(record.token_id and record.owner), "an incomplete delegation token")
    token = DelegationToken(
        token_id=record.token_id,
        owner=record.owner,
        requester=record.requester,
        renewers=record.renewers,
        issue_ms=record.issue_ms,
        expiry_ms=record.expiry_ms,
        max_ms=record.max_ms,
    )
    tokens = state.delegation_tokens.set(record.token_id, token)
    return replace(state, delegation_tokens=tokens)


def _delete_token(state: MetadataImage, record: r.DelegationTokenDelete, _: int) -> MetadataImage:
    """Remove a delegation token."""
    known = record.token_id in state.delegation_tokens
    _require(known, f"no delegation token {record.token_id!r}")
    return replace(state, delegation_tokens=state.delegation_tokens.delete(record.token_id))


def _require(condition: bool, reason: str) -> None:
    """Raise EntryRejected with `reason` unless `condition` holds."""
    if not condition:
        raise EntryRejected(reason)


def _live_node(state: MetadataImage, node_id: int, epoch: int) -> NodeState:
    """Return the node if `epoch` is its current one and was not fenced. Raises EntryRejected."""
    node = state.nodes.get(node_id)
    if node is None or node.epoch != epoch or node.is_fenced:
        raise EntryRejected(f"node {node_id} epoch {epoch} is not registered, or was fenced")
    return node


def _object_of(state: MetadataImage, key: str) -> ObjectState:
    """Return an object. Raises EntryRejected when there is none."""
    known = state.objects.get(key)
    if known is None:
        raise EntryRejected(f"no object {key}")
    return known


def _set_stream(state: MetadataImage, stream: StreamState) -> MetadataImage:
    """Return the state with this stream in it."""
    return replace(state, streams=state.streams.set(stream.stream_id, stream))


def _set_objects(
    state: MetadataImage, changed: Iterable[ObjectState], gone: Iterable[str] = ()
) -> MetadataImage:
    """Return the state with these objects in it, and without those that are gone."""
    objects, unreferenced, tails = state.objects, state.unreferenced, state.tails
    for known in changed:
        objects = objects.set(known.key, known)
        if known.is_tail:
            tails = tails.set(known.key, known.node_id)
        elif known.key in tails:
            tails = tails.delete(known.key)
        if not known.stream_ids:
            unreferenced = unreferenced.set(known.key, known.unreferenced_ms)
        elif known.key in unreferenced:
            unreferenced = unreferenced.delete(known.key)
    for key in gone:
        objects, unreferenced = objects.delete(key), unreferenced.delete(key)
    return replace(state, objects=objects, unreferenced=unreferenced, tails=tails)


def _unlink(
    state: MetadataImage, stream_id: int, keys: Iterable[str], time_ms: int
) -> MetadataImage:
    """Return the state after a stream gave up its references to objects."""
    return _unlink_all(state, {key: {stream_id} for key in keys}, time_ms)


def _unlink_all(
    state: MetadataImage, referring: Mapping[str, Set[int]], time_ms: int
) -> MetadataImage:
    """Return the state after streams gave up their references to objects: by key, the streams."""
    return _set_objects(
        state,
        [
            known.referred_by(known.stream_ids - referring[key], time_ms)
            for key in sorted(referring)
            for known in (_object_of(state, key),)
        ],
    )


_RULES: dict[type, Callable[[MetadataImage, Any, int], MetadataImage]] = {
    r.ClusterCreated: _cluster_created,
    r.FeatureLevel: _feature_level,
    r.NodeSecret: _node_secret,
    r.RegisterNode: _register_node,
    r.StartLog: _start_log,
    r.AcceptLogLoss: _accept_log_loss,
    r.FenceNode: _fence_node,
    r.DrainNode: _drain_node,
    r.CreateTopic: _create_topic,
    r.TopicConfig: _topic_config,
    r.BrokerConfig: _broker_config,
    r.GroupConfig: _group_config,
    r.ClientMetricsConfig: _client_metrics_config,
    r.OpenStream: _open_stream,
    r.CloseStream: _close_stream,
    r.TrimStream: _trim_stream,
    r.DeleteStream: _delete_stream,
    r.CommitObjects: _commit_objects,
    r.ReplaceObjects: _replace_objects,
    r.InheritTail: _inherit_tail,
    r.CommitTail: _commit_tail,
    r.DropObjects: _drop_objects,
    r.ClientQuota: _client_quota,
    r.AclCreate: _create_acls,
    r.AclDelete: _delete_acls,
    r.ScramUpsert: _upsert_scram,
    r.ScramDelete: _delete_scram,
    r.DelegationTokenUpsert: _upsert_token,
    r.DelegationTokenDelete: _delete_token,
    r.ProducerIdBlock: _producer_id_block,
    r.ControllerLease: _controller_lease,
    r.TakeTable: _take_table,
    r.RequestTable: _request_table,
    r.TableProgress: _table_progress,
}
