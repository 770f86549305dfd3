"""The new objects of a merge: neighbours of a stream become one range of one object, large ones an
object of their own; what is small shares an object with other streams.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from storage.compaction.merge_sources import SourceObject, Sources
from storage.compaction.reading import StoredBatch
from storage.compaction.rewrite import Job
from storage.errors import CorruptObject
from storage.format.object_names import JobName
from storage.format.object_writer import ObjectWriter, WrittenObject
from storage.format.producer_headers import (
    producer_headers,
    raw_producer_headers,
)
from storage.format.record_batch import NO_TIMESTAMP, base_offset, max_timestamp, read_header
from storage.format.stream_object import StreamInfo
from storage.metadata.extents import Extent
from storage.metadata.records import HEADERS, WHOLE, CommittedObject, CommittedRange

OWN_OBJECT_BYTES = 8 * 1024 * 1024
"""As much of one stream gets an object of its own, as in uploads."""

Rebatch = Callable[[Iterable[StoredBatch]], Iterator[StoredBatch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePart:
    """What becomes one range: offsets [start_offset, end_offset) of a stream."""

    info: StreamInfo
    start_offset: int
    end_offset: int
    batches: list[StoredBatch] = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes of its batches."""
        return sum(len(batch.payload) for batch in self.batches)


def gathered_parts(
    stream_id: int, group: Sequence[Extent], sources: Sources, state_from: int, rebatch: Rebatch
) -> list[MergePart]:
    """Return neighbours of a stream as few parts: a whole state ends one, since it is true at its
    end. `state_from` is the stream's: states before it do not count any more.

    Raises CorruptObject.
    """
    parts, held = [], list[Extent]()
    for extent in group:
        held.append(extent)
        info = sources.index(extent.object_key).streams[stream_id]
        if extent.end_offset > state_from and info.state is not None:
            parts.append(_part(stream_id, held, sources, state_from, rebatch))
            held = []
    if held:
        parts.append(_part(stream_id, held, sources, state_from, rebatch))
    return parts


def _part(
    stream_id: int,
    held: Sequence[Extent],
    sources: Sources,
    state_from: int,
    rebatch: Rebatch,
) -> MergePart:
    infos = [sources.index(extent.object_key).streams[stream_id] for extent in held]
    last = infos[-1]
    is_whole = held[-1].end_offset > state_from and last.state is not None
    headers: list[bytes] = []

    def batches() -> Iterator[StoredBatch]:
        for extent, info in zip(held, infos, strict=True):
            found = _batches_of(stream_id, extent, sources.take(extent.object_key))
            if not is_whole and extent.end_offset > state_from:
                headers.append(_headers_of(info, found))
            yield from found

    merged = list(rebatch(batches()))
    return MergePart(
        info=msgspec.structs.replace(
            last,
            state=last.state if is_whole else None,
            headers=None if is_whole else _newest(headers),
            aborted=tuple(chain.from_iterable(info.aborted for info in infos)),
            epoch=-1,
        ),
        start_offset=held[0].start_offset,
        end_offset=held[-1].end_offset,
        batches=merged,
    )


def _batches_of(stream_id: int, extent: Extent, source: SourceObject) -> list[StoredBatch]:
    """Return the batches of an extent. Raises CorruptObject unless they are what it says."""
    batches = list(source.batches(stream_id))
    end = extent.start_offset
    for batch in batches:
        base = base_offset(batch.payload)
        if base < end:
            raise CorruptObject(extent.object_key, 0, f"offset {base} after {end - 1}")
        end = batch.end_offset
    if end != extent.end_offset:
        raise CorruptObject(
            extent.object_key, 0, f"stream {stream_id} ends at {end}, not {extent.end_offset}"
        )
    return batches


def _headers_of(info: StreamInfo, batches: Sequence[StoredBatch]) -> bytes:
    if info.headers is not None:
        return info.headers
    return producer_headers([batch.payload for batch in batches])


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
        for batch in part.batches:
            header = read_header(batch.payload)
            if header.base_offset > end:
                writer.skip(end, header.base_offset)
            newest = max_timestamp(batch.payload) if header.record_count else NO_TIMESTAMP
            count = batch.end_offset - header.base_offset
            writer.add(batch.epoch, header.base_offset, count, batch.payload, newest)
            end = batch.end_offset
    written = writer.finish()
    ranges = tuple(
        CommittedRange(
            stream_id=held.stream_id,
            epoch=part.batches[-1].epoch,
            start_offset=held.start_offset,
            end_offset=held.end_offset,
            max_timestamp=held.max_timestamp,
            size=held.size,
            state=_state_of(part.info),
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


def _state_of(info: StreamInfo) -> str:
    if info.state is not None:
        return WHOLE
    return HEADERS if info.headers else ""
