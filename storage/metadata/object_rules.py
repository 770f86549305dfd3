"""The rules of the records that say which objects hold which offsets."""

from collections import defaultdict
from collections.abc import Collection, Container, Sequence
from dataclasses import replace

from lakehead.storage.errors import EntryRejected
from lakehead.storage.format.object_names import JobName
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.demands import (
    live_node,
    object_of,
    require,
    set_objects,
    set_stream,
    unlink_all,
)
from lakehead.storage.metadata.extents import Extent, Extents
from lakehead.storage.metadata.state import (
    ClusterState,
    NodeState,
    ObjectState,
    StreamState,
    object_state,
)


def commit_objects(state: ClusterState, record: r.CommitObjects, time_ms: int) -> ClusterState:
    """Let a node's streams grow by what its new objects hold."""
    state = _move_wal_floor(state, _committing_node(state, record), record)
    state = _move_wal_position(state, record)
    state = _remove_wal_objects(state, record.removed_wal_objects)
    growths, added = dict[int, _Growth | None](), dict[str, ObjectState]()
    for committed in record.objects:
        _require_new(state, committed.key, added)
        require(JobName.parse(committed.key) is None, f"{committed.key} is a job's, no upload")
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
    state = set_objects(replace(state, streams=streams), added.values())
    outdated: dict[str, set[int]] = defaultdict(set)
    for growth in grown:
        for key in growth.outdated():
            outdated[key].add(growth.stream.stream_id)
    return unlink_all(state, outdated, time_ms)


def _require_new(state: ClusterState, key: str, added: Container[str]) -> None:
    # What is committed will be deleted some day: a name outside of the data must not get in.
    require(key.startswith(("data/", "wal/")), f"{key!r} is no name of an object with data")
    require(key not in added and key not in state.objects, f"object {key} is committed")


def _committing_node(state: ClusterState, record: r.CommitObjects) -> NodeState:
    """Return the node whose data is committed: live, or fenced and its taker live."""
    if record.taker_id < 0:
        return live_node(state, record.node_id, record.node_epoch)
    live_node(state, record.taker_id, record.taker_epoch)
    node = state.nodes.get(record.node_id)
    if node is None or node.epoch != record.node_epoch or not node.is_fenced:
        raise EntryRejected(f"node {record.node_id} epoch {record.node_epoch} is not a fenced one")
    return node


def _move_wal_floor(state: ClusterState, node: NodeState, record: r.CommitObjects) -> ClusterState:
    if record.wal_epoch < 0:
        return state
    now, floor = (node.wal_epoch, node.wal_floor), (record.wal_epoch, record.wal_floor)
    # A fenced node's next life starts with its next epoch.
    last = node.epoch + 1 if node.is_fenced else node.epoch
    require(
        now <= floor and record.wal_epoch <= last,
        f"node {node.node_id}: WAL floor {floor} after {now}",
    )
    node = replace(node, wal_epoch=record.wal_epoch, wal_floor=record.wal_floor)
    return replace(state, nodes=state.nodes.set(node.node_id, node))


def _move_wal_position(state: ClusterState, record: r.CommitObjects) -> ClusterState:
    node = state.nodes[record.node_id]
    if record.wal_position <= node.log.position or not node.log.log_id:
        return state
    node = replace(node, log=replace(node.log, position=record.wal_position))
    return replace(state, nodes=state.nodes.set(node.node_id, node))


class _Growth:
    """What a commit adds to one stream: a recovery commits tens of thousands of ranges at once."""

    __slots__ = ("end", "extents", "state_from", "stream")

    def __init__(self, stream: StreamState) -> None:
        self.stream = stream
        self.end = stream.end_offset
        self.extents: list[Extent] = []
        self.state_from = stream.state_from

    def add(self, key: str, span: r.CommittedRange) -> None:
        if span.epoch != self.stream.epoch:
            require(False, f"stream {span.stream_id}: epoch {span.epoch}, now {self.stream.epoch}")
        if span.start_offset != self.end or span.end_offset <= span.start_offset:
            require(
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
                require(False, f"stream {span.stream_id}: a state since {span.state_since}, beyond")
            self.state_from = max(self.state_from, span.state_since)
        elif span.state == r.HEADERS and self.state_from < 0:
            self.state_from = span.start_offset

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
    require(
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


def _remove_wal_objects(state: ClusterState, keys: Sequence[str]) -> ClusterState:
    for key in keys:
        known = object_of(state, key)
        require(known.kind == "wal", f"object {key} is not a WAL object")
        require(not known.stream_ids, f"WAL object {key} still holds data")
    require(len(set(keys)) == len(keys), "an object is removed twice")
    return set_objects(state, (), keys)


def replace_objects(state: ClusterState, record: r.ReplaceObjects, time_ms: int) -> ClusterState:
    """Let new objects stand for others: every offset stays where it was for readers."""
    require(bool(record.sources), "nothing is replaced")
    sources = {key: object_of(state, key) for key in record.sources}
    new: dict[int, list[Extent]] = {}
    added: dict[str, r.CommittedObject] = {}
    for committed in record.objects:
        _require_new(state, committed.key, added)
        name = JobName.parse(committed.key)
        require(
            name is None or (name.entry <= state.next_entry and name.may_enter(state.next_entry)),
            f"{committed.key} was written too long before entry {state.next_entry}, or after it",
        )
        added[committed.key] = committed
        for span in committed.ranges:
            require(span.start_offset < span.end_offset, f"stream {span.stream_id}: empty range")
            new.setdefault(span.stream_id, []).append(_extent(committed.key, span))
    touched = set[int](record.streams)
    if not touched:
        touched = touched.union(*(known.stream_ids for known in sources.values()))
    require(set(new) <= touched, "the new objects hold streams that the sources do not")
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
    return set_objects(state, [*objects, *replaced])


def _still_needed(
    state: ClusterState, known: ObjectState, replaced: Container[int]
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
    state: ClusterState, stream: StreamState, sources: Collection[str], new: list[Extent]
) -> ClusterState:
    places = stream.extents.among(sources)
    old = [stream.extents[place] for place in places]
    new = sorted(new, key=lambda extent: extent.start_offset)
    require(
        _spans(old) == _spans(new),
        f"stream {stream.stream_id}: the new objects cover {_spans(new)}, not {_spans(old)}",
    )
    if places and places[-1] - places[0] + 1 == len(places):
        extents = stream.extents.splice(places[0], places[-1] + 1, new)
    else:
        kept = [extent for extent in stream.extents if extent.object_key not in sources]
        extents = Extents.of(sorted([*kept, *new], key=lambda extent: extent.start_offset))
    return set_stream(state, replace(stream, extents=extents))


def _spans(extents: list[Extent]) -> list[tuple[int, int]]:
    """Merge adjacent extents into (start, end) pairs."""
    spans: list[tuple[int, int]] = []
    for extent in extents:
        if spans and spans[-1][1] == extent.start_offset:
            spans[-1] = (spans[-1][0], extent.end_offset)
        else:
            spans.append((extent.start_offset, extent.end_offset))
    return spans


def drop_objects(state: ClusterState, record: r.DropObjects, _: int) -> ClusterState:
    """Forget objects that were deleted."""
    for key in record.keys:
        require(not object_of(state, key).stream_ids, f"object {key} still holds data")
    require(len(set(record.keys)) == len(record.keys), "an object is dropped twice")
    return set_objects(state, (), record.keys)
