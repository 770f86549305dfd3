"""The new objects of a merge: neighbours of a stream become one range of one object, large ones an
object of their own; what is small shares an object with other streams.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from lakehead.storage.compaction.merge_batches import Rebatching
from lakehead.storage.compaction.merge_runs import Span
from lakehead.storage.compaction.merge_sources import SourceObject, Sources
from lakehead.storage.compaction.rewrite import STATES_BYTES, Job
from lakehead.storage.errors import CorruptObject
from lakehead.storage.format.object_names import JobName
from lakehead.storage.format.object_writer import ObjectWriter, WrittenObject
from lakehead.storage.format.partition_state import StateSnapshot, put_together
from lakehead.storage.format.producer_headers import (
    producer_headers,
    raw_producer_headers,
)
from lakehead.storage.format.stream_object import StreamInfo, iter_records
from lakehead.storage.metadata.extents import Extent
from lakehead.storage.metadata.records import CommittedObject, CommittedRange, state_kind

OWN_OBJECT_BYTES = 8 * 1024 * 1024
"""As much of one stream gets an object of its own, as in uploads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePart:
    """What becomes one range: offsets [start_offset, end_offset) of a stream."""

    info: StreamInfo
    start_offset: int
    end_offset: int
    spans: list[Span] = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes of its batches, as they are stored."""
        return sum(len(span.data) for span in self.spans)


def gathered_parts(
    stream_id: int,
    group: Sequence[Extent],
    sources: Sources,
    state_from: int,
    rebatching: Callable[[int], Rebatching],
) -> list[MergePart]:
    """Return neighbours of a stream as few parts: a state ends one, since it is true at its end;
    incremental ones that follow each other are put together first, to `STATES_BYTES` at most.
    `state_from` is the stream's: states before it do not count any more.

    Raises CorruptObject.
    """
    parts, place = [], 0
    for end in _state_ends(stream_id, group, sources, state_from):
        held = group[place:end]
        parts.append(_part(held, sources, state_from, rebatching(stream_id), stream_id))
        place = end
    return parts


def _state_ends(
    stream_id: int, group: Sequence[Extent], sources: Sources, state_from: int
) -> list[int]:
    """Return where parts are to end."""
    ends: list[int] = []
    last = size = 0
    for place, extent in enumerate(group):
        info = sources.index(extent.object_key).streams[stream_id]
        if extent.end_offset <= state_from or info.state is None:
            continue
        if last and size + len(info.state) > STATES_BYTES:
            ends.append(last)
            size = 0
        size += len(info.state)
        last = place + 1
    if last:
        ends.append(last)
    if last < len(group):
        ends.append(len(group))
    return ends


def _part(
    held: Sequence[Extent],
    sources: Sources,
    state_from: int,
    rebatching: Rebatching,
    stream_id: int,
) -> MergePart:
    infos = [sources.index(extent.object_key).streams[stream_id] for extent in held]
    last = infos[-1]
    has_state = held[-1].end_offset > state_from and last.state is not None
    headers: list[bytes] = []
    states: list[StateSnapshot] = []
    for extent, info in zip(held, infos, strict=True):
        source = sources.take(extent.object_key)
        _add_extent(rebatching, stream_id, extent, source)
        if extent.end_offset <= state_from:
            continue
        if not has_state:
            headers.append(_headers_of(info, stream_id, source))
        elif info.state is not None:
            states.append(StateSnapshot(info.state, info.state_since))
    state = _put_together(held[-1], states) if has_state else None
    return MergePart(
        info=msgspec.structs.replace(
            last,
            state=None if state is None else state.data,
            state_since=-1 if state is None else state.since,
            headers=None if has_state else _newest(headers),
            aborted=tuple(chain.from_iterable(info.aborted for info in infos)),
            epoch=-1,
        ),
        start_offset=held[0].start_offset,
        end_offset=held[-1].end_offset,
        spans=rebatching.finish(),
    )


def _put_together(extent: Extent, states: Sequence[StateSnapshot]) -> StateSnapshot:
    try:
        return put_together(states)
    except ValueError as error:
        raise CorruptObject(extent.object_key, 0, f"a partition's state: {error}") from error


def _add_extent(
    rebatching: Rebatching, stream_id: int, extent: Extent, source: SourceObject
) -> None:
    """Take the batches of an extent. Raises CorruptObject unless they are what it says."""
    key, rebatching.end_offset = extent.object_key, extent.start_offset
    for item, data in source.items(stream_id):
        try:
            rebatching.add(data)
        except ValueError as error:
            raise CorruptObject(key, item.position, str(error)) from error
    end = rebatching.end_offset
    if end != extent.end_offset:
        raise CorruptObject(key, 0, f"stream {stream_id} ends at {end}, not {extent.end_offset}")


def _headers_of(info: StreamInfo, stream_id: int, source: SourceObject) -> bytes:
    if info.headers is not None:
        return info.headers
    batches = [one.payload for _, data in source.items(stream_id) for one in iter_records(data)]
    return producer_headers(batches)


def _newest(headers: Sequence[bytes]) -> bytes:
    """Return what counts of the headers of several objects, as if they had been one."""
    if len(headers) == 1:
        return headers[0]
    return producer_headers([one for data in headers for one in raw_producer_headers(data)])


def written_objects(
    parts: Sequence[MergePart], job: Job, *, created_ms: int
) -> list[tuple[CommittedObject, WrittenObject]]:
    """Return the objects that hold these parts, not written yet."""
    shared: list[list[MergePart]] = []
    made = []
    seen: dict[int, int] = {}
    for part in sorted(parts, key=lambda one: (one.info.stream_id, one.start_offset)):
        if part.size >= OWN_OBJECT_BYTES:
            made.append(_object([part], job, created_ms))
            continue
        place = seen.get(part.info.stream_id, 0)
        seen[part.info.stream_id] = place + 1
        if place == len(shared):
            shared.append([])
        shared[place].append(part)
    return made + [_object(some, job, created_ms) for some in shared]


def _object(
    parts: Sequence[MergePart], job: Job, created_ms: int
) -> tuple[CommittedObject, WrittenObject]:
    kind = "so" if len(parts) == 1 else "sso"
    writer = ObjectWriter(
        kind=kind,
        cluster_id=job.cluster_id,
        node_id=-1,
        node_epoch=-1,
        writer_id=job.job_id,
        created_ms=job.now_ms,
    )
    for part in parts:
        writer.begin_stream(part.info)
        end = part.start_offset
        for span in part.spans:
            if span.start_offset > end:
                writer.skip(end, span.start_offset)
            writer.add_stored(*span[1:])
            end = span.end_offset
    written = writer.finish()
    ranges = tuple(
        CommittedRange(
            stream_id=held.stream_id,
            epoch=part.spans[-1].epoch,
            start_offset=held.start_offset,
            end_offset=held.end_offset,
            max_timestamp=held.max_timestamp,
            size=held.size,
            state=state_kind(part.info),
            state_since=part.info.state_since,
        )
        for part, held in zip(parts, written.ranges, strict=True)
    )
    committed = CommittedObject(
        key=JobName(job.entry, job.rng.getrandbits(64)).key,
        kind=kind,
        size=written.size,
        created_ms=created_ms,
        ranges=ranges,
    )
    return committed, written
