"""The state of a cluster from the objects found. Pure.

Objects do not hold everything, so these are absent: configs, access rules, quotas and credentials;
topics and partitions that never held a record; the offset to which a log was trimmed, so deleted
records reappear if their objects still exist; leadership, beyond the last writer.

*Ranges that count.* A bucket holds more than the metadata named: objects that were replaced and not
yet deleted, and objects that a job or a node wrote and never committed. They hold the same records
as others, or records that were never acknowledged. If a node was superseded without knowing it (a
later stream epoch begins at a lower offset), its records beyond that offset do not count. Of the
rest, the fewest ranges that together cover the most offsets are taken.

*The end of a stream.* A node has several uploads, and several groups of its write-ahead log, in
flight at once, and a crash may leave a later one without an earlier one. Data behind such a hole
was never committed: with an object WAL it was not acknowledged, with a block WAL the log still
holds it. So the stream ends at the hole, and a node that starts again continues there; bridging the
hole would take the place of records that the log still holds. A hole that is further from a node's
last object than its writes reach is a loss, not an end.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise

from immutables import Map

from lakehead.storage.errors import SettingsError
from lakehead.storage.format.feature_level import METADATA_VERSION, NEWEST_LEVEL
from lakehead.storage.format.object_names import JOB_ENTRIES_MAX, DataName, JobName
from lakehead.storage.metadata.extents import Extent, Extents
from lakehead.storage.metadata.records import COMPACTED, HEADERS, INCREMENTAL, WHOLE
from lakehead.storage.metadata.state import (
    MetadataImage,
    NodeState,
    ObjectState,
    StreamState,
    TopicState,
    topic_maps,
)
from lakehead.storage.metadata.table import Table
from lakehead.storage.rebuild.found import FoundObject, FoundRange
from lakehead.storage.wal.object.names import WalName

AT_ONCE_MAX = 128
"""Objects that a node may have on their way at once: of its log 32, of uploads those of three
snapshots.
"""


class _Series(Enum):
    WAL = 0
    DATA = 1


_Numbered = tuple[_Series, int, int]
"""Objects that are numbered in the order of their records: by a node in an epoch."""

LastNumbers = Mapping[_Numbered, int]


def last_numbers(keys: Iterable[str]) -> dict[_Numbered, int]:
    """Return the last number of each series of names, of nodes in their last epochs."""
    found: dict[_Numbered, int] = {}
    epochs: dict[int, int] = {}
    for key in keys:
        numbered = _numbered(key)
        if numbered is not None:
            series, number = numbered
            found[series] = max(number, found.get(series, number))
            epochs[series[1]] = max(series[2], epochs.get(series[1], 0))
    return {series: number for series, number in found.items() if series[2] == epochs[series[1]]}


def counted_until(ranges: Sequence[FoundRange], last: LastNumbers) -> int:
    """Return how many of a stream's ranges, in the order of offsets, count: those before the first
    hole behind which all is of the last writes of one node in its last epoch.
    """
    for number, (before, after) in enumerate(pairwise(ranges), 1):
        if before.end_offset < after.start_offset and _is_tail(ranges[number:], last):
            return number
    return len(ranges)


def _is_tail(ranges: Collection[FoundRange], last: LastNumbers) -> bool:
    nodes = set[int]()
    for one in ranges:
        series, number = _numbered(one.key) or (None, 0)
        if series is None or number + AT_ONCE_MAX <= last.get(series, number + AT_ONCE_MAX):
            return False
        nodes.add(series[1])
    return len(nodes) == 1


def _numbered(key: str) -> tuple[_Numbered, int] | None:
    wal = WalName.parse(key)
    if wal is not None:
        return (_Series.WAL, wal.node_id, wal.epoch), wal.number
    data = DataName.parse(key)
    if data is not None:
        return (_Series.DATA, data.node_id, data.epoch), data.number
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """The ranges that count, in the order of offsets, and the offsets between them that no object
    holds. `tail` are ranges that lie behind the end that a crash made (see `tail`).
    """

    ranges: tuple[FoundRange, ...]
    holes: tuple[tuple[int, int], ...]
    tail: tuple[FoundRange, ...]

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """(epoch, first offset known of it), as in `StreamState`."""
        found: dict[int, int] = {}
        for one in self.ranges:
            for epoch, start in one.epochs:
                found.setdefault(epoch, start)
        return tuple(sorted(found.items()))


def cover(ranges: Sequence[FoundRange], last: LastNumbers) -> Cover:
    """Return which of a stream's ranges count; `last` is as of `last_numbers`."""
    ordered = sorted(_undisputed(ranges), key=lambda one: (one.end_offset, one.start_offset))
    found = _most(ordered)
    count = counted_until(found, last)
    chosen = found[:count]
    holes = tuple(
        (before.end_offset, after.start_offset)
        for before, after in pairwise(chosen)
        if before.end_offset < after.start_offset
    )
    return Cover(ranges=chosen, holes=holes, tail=found[count:])


def _undisputed(ranges: Sequence[FoundRange]) -> list[FoundRange]:
    """Leave out what goes on beyond the beginning of a later epoch."""
    begins: dict[int, int] = {}
    for one in ranges:
        for epoch, start in one.epochs:
            begins[epoch] = min(start, begins.get(epoch, start))
    limits: dict[int, int] = {}
    lowest = 1 << 63
    for epoch in sorted(begins, reverse=True):
        limits[epoch] = lowest
        lowest = min(lowest, begins[epoch])
    return [one for one in ranges if one.end_offset <= limits[one.epochs[-1][0]]]


_Worth = tuple[int, int, int, int]
"""Offsets covered; objects, negative; of these compacted ones; and the sum of their ages."""


def _most(ordered: Sequence[FoundRange]) -> tuple[FoundRange, ...]:
    """Return the ranges without an overlap that are worth most (weighted interval scheduling)."""
    ends = [one.end_offset for one in ordered]
    best: list[_Worth] = [(0, 0, 0, 0)]
    taken: list[int] = []
    for number, one in enumerate(ordered):
        before = bisect_right(ends, one.start_offset, 0, number)
        length, count, compacted, created = best[before]
        worth = (
            length + one.end_offset - one.start_offset,
            count - 1,
            compacted + (one.kind == COMPACTED),
            created + one.created_ms,
        )
        if worth > best[number]:
            best.append(worth)
            taken.append(before)
        else:
            best.append(best[number])
            taken.append(-1)
    chosen: list[FoundRange] = []
    number = len(ordered)
    while number:
        number -= 1
        if taken[number] >= 0:
            chosen.append(ordered[number])
            number = taken[number]
    return tuple(reversed(chosen))


_PRODUCER_IDS_MARGIN = 1_000_000
"""Producer ids that were given out and left no trace in a state any more."""


_EPOCHS_MARGIN = 1000
"""Epochs of a node that left no object: they may have begun in its write-ahead log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """Offsets of a partition."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """The result of a rebuild. `lost` are offsets that were bridged; `set_aside` are offsets that
    objects hold behind the end that a crash made; `superseded_topics` are ids of topics whose name
    a newer topic has; `unused` objects do not count.
    """

    state: MetadataImage
    lost: tuple[Offsets, ...]
    set_aside: tuple[Offsets, ...]
    superseded_topics: tuple[tuple[str, str], ...]
    unused: int
    covers: Mapping[int, Cover] = field(repr=False)


Fill = Callable[[FoundRange, int, int], Extent]
Filler = Callable[[FoundRange, int, int], tuple[Extent, int]]
"""Makes the extent that stands for lost offsets [start, end) behind a range, and says how large its
object is.
"""


def rebuilt_catalog(
    objects: Sequence[FoundObject],
    keys: Sequence[str],
    *,
    entry: int,
    without: frozenset[str],
    filler: Filler,
) -> Rebuilt:
    """Return the state that these objects make. `keys` are all names that were listed; the log goes
    on at `entry` or later; topics named in `without` are left out.

    Raises SettingsError: there is nothing, or more than one cluster.
    """
    clusters = sorted({one.cluster_id for one in objects})
    if len(clusters) != 1:
        found = ", ".join(clusters) or "none"
        raise SettingsError(f"the objects must be of one cluster, and they are of: {found}")
    topics, superseded = _topics(objects, without)
    by_stream: dict[int, list[FoundRange]] = {}
    for one in objects:
        for held in one.ranges:
            if held.topic_id in topics:
                by_stream.setdefault(held.stream_id, []).append(held)
    last = last_numbers(keys)
    covers = {stream_id: cover(ranges, last) for stream_id, ranges in by_stream.items()}
    covers = {stream_id: one for stream_id, one in covers.items() if one.ranges}
    fillers: dict[str, int] = {}

    def fill(before: FoundRange, start: int, end: int) -> Extent:
        extent, size = filler(before, start, end)
        fillers[extent.object_key] = size
        return extent

    nodes = _nodes(keys)
    streams = {one: _stream(one, covers[one], nodes, fill) for one in sorted(covers)}
    next_stream_id = 1 + max((s for one in objects for s in _stream_ids(one)), default=-1)
    topic_states, next_stream_id = _with_partitions(topics, streams, next_stream_id)
    used = _objects(objects, streams, fillers)
    number = max(1, entry, *(_job_entry(key) for key in keys))
    state = MetadataImage(
        next_entry=number,
        cluster_id=clusters[0],
        nodes=Map(nodes),
        **topic_maps(topic_states),
        streams=Table(None, Map(streams), len(streams)),
        objects=Table(None, Map(used), len(used)),
        next_stream_id=next_stream_id,
        next_producer_id=1 + max(one.producer_id for one in objects) + _PRODUCER_IDS_MARGIN,
        forgotten_entry=number - 1,
    )
    state = _at_newest_level(state)
    return Rebuilt(
        state=state,
        lost=tuple(_offsets(one.ranges[0], *hole) for one in covers.values() for hole in one.holes),
        set_aside=tuple(
            _offsets(one.tail[0], one.tail[0].start_offset, one.tail[-1].end_offset)
            for one in covers.values()
            if one.tail
        ),
        superseded_topics=superseded,
        unused=sum(1 for one in objects if one.key not in state.objects),
        covers=covers,
    )


def _at_newest_level(state: MetadataImage) -> MetadataImage:
    """Return the state of a cluster that begins with it."""
    features = Map({METADATA_VERSION: NEWEST_LEVEL})
    return replace(state, features=features, features_epoch=state.next_entry)


def _offsets(of: FoundRange, start: int, end: int) -> Offsets:
    return Offsets(topic=of.topic, partition=of.partition, start_offset=start, end_offset=end)


def _stream_ids(one: FoundObject) -> tuple[int, ...]:
    return tuple(held.stream_id for held in one.ranges)


def _job_entry(key: str) -> int:
    """Return the entry from which on no node may commit this name any more; 0 for other names."""
    name = JobName.parse(key)
    return 0 if name is None else name.entry + JOB_ENTRIES_MAX + 1


def _topics(
    objects: Sequence[FoundObject], without: frozenset[str]
) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    """Return the names of topics by id: of two with one name the one that was written last."""
    newest: dict[str, tuple[int, str]] = {}
    for one in objects:
        for held in one.ranges:
            if held.topic_id and held.topic not in without:
                written = (one.created_ms, held.topic)
                newest[held.topic_id] = max(written, newest.get(held.topic_id, written))
    by_name: dict[str, list[tuple[int, str]]] = {}
    for topic_id, (created_ms, name) in newest.items():
        by_name.setdefault(name, []).append((created_ms, topic_id))
    kept = {max(ids)[1]: name for name, ids in by_name.items()}
    gone = [(name, id_) for name, ids in by_name.items() for _, id_ in sorted(ids)[:-1]]
    return kept, tuple(sorted(gone))


def _with_partitions(
    topics: Mapping[str, str], streams: dict[int, StreamState], next_stream_id: int
) -> tuple[list[TopicState], int]:
    """Return topics with all their partitions: those between others that never held a record are
    made again.
    """
    places: dict[str, dict[int, int]] = {topic_id: {} for topic_id in topics}
    for stream in list(streams.values()):
        places[stream.topic_id][stream.partition] = stream.stream_id
    made = []
    for topic_id, known in sorted(places.items()):
        for partition in range(max(known, default=-1) + 1):
            if partition not in known:
                known[partition] = next_stream_id
                streams[next_stream_id] = StreamState(
                    stream_id=next_stream_id, topic_id=topic_id, partition=partition
                )
                next_stream_id += 1
        partitions = tuple(known[partition] for partition in sorted(known))
        if partitions:
            made.append(TopicState(name=topics[topic_id], topic_id=topic_id, partitions=partitions))
    return made, next_stream_id


def _stream(
    stream_id: int, found: Cover, nodes: Mapping[int, NodeState], fill: Fill
) -> StreamState:
    extents: list[Extent] = []
    for before, one in zip((None, *found.ranges), found.ranges, strict=False):
        if before is not None and before.end_offset < one.start_offset:
            extents.append(fill(before, before.end_offset, one.start_offset))
        extents.append(
            Extent(
                start_offset=one.start_offset,
                end_offset=one.end_offset,
                object_key=one.key,
                max_timestamp=one.max_timestamp,
                size=one.size,
            )
        )
    first, last = found.ranges[0], found.ranges[-1]
    writer = next((one.node_id for one in reversed(found.ranges) if one.node_id >= 0), -1)
    return StreamState(
        stream_id=stream_id,
        topic_id=last.topic_id,
        partition=last.partition,
        epoch=found.epochs[-1][0],
        node_id=writer,
        is_open=writer in nodes,
        start_offset=first.start_offset,
        end_offset=last.end_offset,
        epochs=found.epochs,
        extents=Extents.of(extents),
        state_from=_state_from(found.ranges),
    )


def _state_from(ranges: Sequence[FoundRange]) -> int:
    for one in reversed(ranges):
        if one.state in {WHOLE, INCREMENTAL}:
            return one.start_offset if one.state == WHOLE else one.state_since
    return next((one.start_offset for one in ranges if one.state == HEADERS), -1)


def _objects(
    objects: Sequence[FoundObject], streams: Mapping[int, StreamState], fillers: Mapping[str, int]
) -> dict[str, ObjectState]:
    """Return the objects that streams refer to."""
    users: dict[str, set[int]] = {}
    for stream in streams.values():
        for extent in stream.extents:
            users.setdefault(extent.object_key, set()).add(stream.stream_id)
    known = {one.key: one for one in objects}
    found: dict[str, ObjectState] = {}
    for key, stream_ids in users.items():
        one = known.get(key)
        found[key] = ObjectState(
            key=key,
            kind=COMPACTED if one is None else one.kind,
            size=fillers[key] if one is None else one.size,
            node_id=-1 if one is None else one.node_id,
            node_epoch=-1 if one is None else one.node_epoch,
            created_ms=0 if one is None else one.created_ms,
            stream_ids=frozenset(stream_ids),
        )
    return found


def _nodes(keys: Sequence[str]) -> dict[int, NodeState]:
    """Return the nodes whose ids occur in names, in their last epochs: not fenced, so that each
    finds its own write-ahead log when it starts again.
    """
    epochs: dict[int, int] = {}
    floors: dict[int, tuple[int, int]] = {}
    for key in keys:
        wal, data = WalName.parse(key), DataName.parse(key)
        if wal is not None:
            epochs[wal.node_id] = max(wal.epoch, epochs.get(wal.node_id, 0))
            floor = (wal.epoch, wal.number)
            floors[wal.node_id] = max(floor, floors.get(wal.node_id, floor))
        elif data is not None:
            epochs[data.node_id] = max(data.epoch, epochs.get(data.node_id, 0))
    found = {}
    for node_id, epoch in epochs.items():
        wal_epoch, wal_floor = floors.get(node_id, (epoch, 0))
        found[node_id] = NodeState(
            node_id=node_id,
            epoch=epoch if node_id in floors else epoch + _EPOCHS_MARGIN,
            incarnation="",
            host="",
            port=0,
            rack=None,
            wal_epoch=wal_epoch,
            wal_floor=wal_floor,
            wal="object:" if node_id in floors else "",
        )
    return found
