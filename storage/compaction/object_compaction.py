"""Object compaction: replace small objects by larger ones, one item of the job at a time.

The new objects hold all that readers and partitions can learn from the old ones: each record with
its offset, timestamp and producer; the state of each partition (a whole state at the end of a
range, or the headers to build it from); aborted transactions. Adjacent ranges of a stream become
one range of one object. Large ranges get an object of their own, small ones share an object with
other streams. Each source object is read once, several at a time.

One entry of the metadata log puts the new objects in the place of the old ones, for those streams
that still refer to them as before. It leaves out what was trimmed, deleted, compacted or rewritten
by another job meanwhile. An object that has records of such a stream is not committed at all: what
it has in common with others is written again without it. So an object has at its commit just what
its streams refer to, and no copy of a record that `forget` has removed. The job may be killed at
any time; objects that it wrote and did not commit become garbage (`JobName`).
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from lakehead.storage.clock import Clock
from lakehead.storage.compaction.batch_merging import Rebatching, RebatchStatistics, Span
from lakehead.storage.compaction.batches import Arena
from lakehead.storage.compaction.object_compaction_plan import (
    UNMERGED_KINDS,
    MergeItem,
    RebatchSettings,
)
from lakehead.storage.compaction.rewrite import STATES_BYTES, Job, put_object
from lakehead.storage.errors import CorruptObject, EntryRejected, ObjectNotFound
from lakehead.storage.failpoints import failpoint
from lakehead.storage.format.object_names import JobName
from lakehead.storage.format.object_writer import ObjectWriter, WrittenObject
from lakehead.storage.format.partition_state import StateSnapshot, put_together
from lakehead.storage.format.producer_headers import producer_headers, raw_producer_headers
from lakehead.storage.format.stream_object import (
    IndexItem,
    ObjectIndex,
    StreamInfo,
    check_item,
    iter_records,
    parse_index,
    read_index,
)
from lakehead.storage.metadata.extents import Extent
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import (
    COMPACTED,
    CommittedObject,
    CommittedRange,
    Record,
    ReplaceObjects,
    state_kind,
)
from lakehead.storage.metadata.state import MetadataImage, StreamState
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.tasks import task_group

_READS_AT_ONCE = 8
_TRIES = 5
"""Commits, each but the first for streams that were in an object with others that had changed."""
_WHOLE_SHARE = 2
"""An object of which at least this part is wanted is read whole."""
_NEAR = 64 * 1024
"""Bytes between two items that are rather read than left out by a second request."""


class BatchTransform(Protocol):
    """Makes new batches of those of one stream: data blocks in the order of offsets go in."""

    end_offset: int
    """The end of what came in; what comes next begins there or above."""

    def add(self, data: memoryview) -> None:
        """Take the data blocks of one item. Raises ValueError where they hold no batches, or others
        than are to come.
        """

    def finish(self) -> list[Span]:
        """Return what became of all that came in."""


class Piece(NamedTuple):
    """Bytes of an object from `start` on."""

    start: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class SourceObject:
    """An object's index, and the bytes of its wanted streams."""

    index: ObjectIndex
    pieces: tuple[Piece, ...]

    def items(self, stream_id: int) -> Iterator[tuple[IndexItem, memoryview]]:
        """Yield the items of a stream with their bytes, checked. Raises CorruptObject."""
        for item in self.index.items_of(stream_id):
            data = self._bytes(item)
            check_item(self.index.key, item, data)
            yield item, data

    def _bytes(self, item: IndexItem) -> memoryview:
        for piece in self.pieces:
            at = item.position - piece.start
            if at >= 0 and at + item.size <= len(piece.data):
                return piece.data[at : at + item.size]
        raise CorruptObject(self.index.key, item.position, "the index points outside the object")


class Sources:
    """Objects that were read, each until it has been used by every stream that wants it: what is
    merged then takes its place in memory.
    """

    def __init__(
        self, objects: dict[str, SourceObject], wanted: Mapping[str, Sequence[int]]
    ) -> None:
        self._objects = objects
        self._uses = {key: len(streams) for key, streams in wanted.items()}

    def index(self, key: str) -> ObjectIndex:
        """Return the index of an object that is still to be used."""
        return self._objects[key].index

    def take(self, key: str) -> SourceObject:
        """Return an object, for one of the streams that want it."""
        self._uses[key] -= 1
        return self._objects[key] if self._uses[key] else self._objects.pop(key)


async def read_sources(
    store: ObjectStore, wanted: Mapping[str, Sequence[int]], sizes: Mapping[str, tuple[int, int]]
) -> Sources:
    """Return objects with what they hold of the streams that are wanted of each. `sizes` are of
    the object, and of what is wanted.

    Raises ObjectNotFound, StoreUnavailable, CorruptObject, UnsupportedFormat.
    """
    found: dict[str, SourceObject] = {}
    keys = list(wanted)
    for first in range(0, len(keys), _READS_AT_ONCE):
        some = keys[first : first + _READS_AT_ONCE]
        memory = _memory(some, sizes)
        async with task_group() as group:
            tasks = {
                key: group.create_task(_read(store, key, wanted[key], memory.get(key)))
                for key in some
            }
        found |= {key: task.result() for key, task in tasks.items()}
    return Sources(found, wanted)


def _memory(keys: Sequence[str], sizes: Mapping[str, tuple[int, int]]) -> dict[str, memoryview]:
    """Return memory for objects that are read whole: one piece for all, since large pages come with
    megabytes.
    """
    whole = [key for key in keys if sizes[key][1] * _WHOLE_SHARE >= sizes[key][0]]
    ends = list(accumulate(sizes[key][0] for key in whole))
    piece = np.empty(ends[-1] if ends else 0, np.uint8).data
    return {key: piece[end - sizes[key][0] : end] for key, end in zip(whole, ends, strict=True)}


async def _read(
    store: ObjectStore, key: str, streams: Sequence[int], whole: memoryview | None
) -> SourceObject:
    if whole is not None:
        await store.get_range_into(key, 0, whole)
        return SourceObject(parse_index(key, whole, len(whole)), (Piece(0, whole),))
    index = await read_index(store, key)
    items = [item for stream_id in streams for item in index.items_of(stream_id)]
    items.sort(key=lambda item: item.position)
    pieces = []
    for start, end in _ranges(items):
        pieces.append(Piece(start, memoryview(await store.get_range(key, start, end - start))))
    return SourceObject(index, tuple(pieces))


def _ranges(items: Sequence[IndexItem]) -> list[tuple[int, int]]:
    """Return what to read, (start, end), for items in the order of their positions."""
    found: list[tuple[int, int]] = []
    for item in items:
        end = item.position + item.size
        if found and item.position - found[-1][1] <= _NEAR:
            found[-1] = (found[-1][0], end)
        else:
            found.append((item.position, end))
    return found


OWN_OBJECT_BYTES = 8 * 1024 * 1024
"""As much of one stream gets an object of its own, as in uploads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePart:
    """A part that becomes one range: offsets [start_offset, end_offset) of a stream."""

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
    rebatching: Callable[[int], BatchTransform],
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
    rebatching: BatchTransform,
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
    rebatching: BatchTransform, stream_id: int, extent: Extent, source: SourceObject
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
    parts: Sequence[MergePart], job: Job, *, created_ms: int, is_compacted: bool = False
) -> list[tuple[CommittedObject, WrittenObject]]:
    """Return the objects that hold these parts, not written yet. With `is_compacted` they are of
    that kind, which has one stream.
    """
    shared: list[list[MergePart]] = []
    made = []
    seen: dict[int, int] = {}
    for part in sorted(parts, key=lambda one: (one.info.stream_id, one.start_offset)):
        if part.size >= OWN_OBJECT_BYTES:
            made.append(_object([part], job, created_ms, is_compacted=is_compacted))
            continue
        place = seen.get(part.info.stream_id, 0)
        seen[part.info.stream_id] = place + 1
        if place == len(shared):
            shared.append([])
        shared[place].append(part)
    return made + [_object(some, job, created_ms, is_compacted=is_compacted) for some in shared]


def _object(
    parts: Sequence[MergePart], job: Job, created_ms: int, *, is_compacted: bool
) -> tuple[CommittedObject, WrittenObject]:
    kind = "so" if len(parts) == 1 else "sso"
    if is_compacted:
        assert len(parts) == 1, "log compaction writes an object for one stream"
        kind = COMPACTED
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """The result of a merge. Without `is_done` it came too late and changed nothing. Bytes are of
    batches.
    """

    is_done: bool = False
    objects_before: int = 0
    objects_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    batches_before: int = 0
    batches_after: int = 0


Runs = dict[int, list[tuple[Extent, ...]]]
"""Of each stream the extents to merge, in runs of neighbours."""


@dataclass(slots=True)
class ObjectCompaction:
    """One run of one item."""

    store: ObjectStore
    metadata: MetadataLog
    clock: Clock
    rng: random.Random
    item: MergeItem
    rebatch: RebatchSettings = field(default_factory=RebatchSettings)

    async def run(self) -> MergeResult:
        """Merge what the item's sources hold now. Raises StoreUnavailable, CorruptObject,
        UnsupportedFormat, OutcomeUnknown; ObjectNotFound when data is lost.
        """
        state = await self.metadata.refresh()
        runs = _runs(state, self.item)
        if not runs:
            return MergeResult()
        try:
            sources = await self._read(state, runs)
        except ObjectNotFound:
            if _runs(await self.metadata.refresh(surely=True), self.item) == runs:
                raise
            return MergeResult()  # another was quicker, and the sources were deleted
        figures, arena = RebatchStatistics(), Arena()
        parts: list[MergePart] = []
        for stream_id, groups in sorted(runs.items()):
            state_from = state.stream(stream_id).state_from
            for group in groups:
                parts += gathered_parts(
                    stream_id,
                    group,
                    sources,
                    state_from,
                    lambda stream: Rebatching(stream, self.rebatch, figures, arena),
                )
                await asyncio.sleep(0)
        keys = {one.object_key for groups in runs.values() for group in groups for one in group}
        newest = max(state.objects[key].created_ms for key in keys)
        records = await self._replace(runs, parts, newest)
        return _result(runs, records, figures)

    async def _replace(
        self, runs: Runs, parts: Sequence[MergePart], created_ms: int
    ) -> list[ReplaceObjects]:
        """Write objects of these parts and commit them; return what was committed. Parts that were
        in an object with what changed meanwhile are written again.
        """
        records: list[ReplaceObjects] = []
        left = frozenset(part.info.stream_id for part in parts)
        for _ in range(_TRIES):
            some = [part for part in parts if part.info.stream_id in left]
            made = written_objects(some, self._job(), created_ms=created_ms)
            for committed, written in made:
                await put_object(self.store, committed.key, written, self.rng)
            failpoint("compact_objects_written")
            one = await self._commit(runs, left, [committed for committed, _ in made])
            failpoint("compact_committed")
            if one.record is not None:
                records.append(one.record)
            left = one.left
            if not left:
                break
        return records

    async def _read(self, state: MetadataImage, runs: Runs) -> Sources:
        wanted: dict[str, list[int]] = {key: [] for key in self.item.sources}
        sizes: dict[str, int] = dict.fromkeys(wanted, 0)
        for stream_id, groups in runs.items():
            for group in groups:
                for extent in group:
                    wanted[extent.object_key].append(stream_id)
                    sizes[extent.object_key] += extent.size
        requested = {key: streams for key, streams in wanted.items() if streams}
        both = {key: (state.objects[key].size, sizes[key]) for key in requested}
        return await read_sources(self.store, requested, both)

    def _job(self) -> Job:
        state = self.metadata.state
        return Job(
            cluster_id=state.cluster_id,
            job_id=self.metadata.writer_id,
            entry=state.next_entry,
            now_ms=self.clock.now_ms(),
            rng=self.rng,
        )

    async def _commit(
        self, runs: Runs, streams: frozenset[int], objects: Sequence[CommittedObject]
    ) -> "_Commit":
        """Replace what is still as it was of these streams, by those of the objects that have
        nothing else.
        """
        done = _Commit(None, frozenset())

        def plan(state: MetadataImage) -> Sequence[Record]:
            nonlocal done
            now = _runs(state, self.item)
            changed = frozenset(one for one in streams if now.get(one) != runs[one])
            beside = _beside(changed, objects)
            record = _replacement(runs, objects, streams - beside)
            done = _Commit(record, beside - changed)
            return [] if record is None else [record]

        try:
            await self.metadata.commit_with(plan)
        except EntryRejected:
            # It took so long that no node may commit these names any more.
            done = _Commit(None, frozenset())
        named = () if done.record is None else {one.key for one in done.record.objects}
        if unused := [one.key for one in objects if one.key not in named]:
            await self.store.delete(unused)  # no entry has ever named them
        return done


class _Commit(NamedTuple):
    """The record that was committed, if there is one, and the streams that are as they were and
    were left out for others.
    """

    record: ReplaceObjects | None
    left: frozenset[int]


def _result(
    runs: Runs, records: Sequence[ReplaceObjects], figures: RebatchStatistics
) -> MergeResult:
    if not records:
        return MergeResult()
    streams = [stream_id for record in records for stream_id in record.streams]
    old = [extent for one in streams for group in runs[one] for extent in group]
    objects = [one for record in records for one in record.objects]
    return MergeResult(
        is_done=True,
        objects_before=len({key for record in records for key in record.sources}),
        objects_after=len(objects),
        bytes_before=sum(extent.size for extent in old),
        bytes_after=sum(span.size for one in objects for span in one.ranges),
        batches_before=figures.before,
        batches_after=figures.after,
    )


def _runs(state: MetadataImage, item: MergeItem) -> Runs:
    """Return which extents of an item's streams lie in its sources now."""
    sources = frozenset(key for key in item.sources if key in state.objects)
    mergeable = frozenset(key for key in sources if state.objects[key].kind not in UNMERGED_KINDS)
    found: Runs = {}
    for stream_id in item.streams:
        stream = state.streams.get(stream_id)
        if stream is None:
            continue
        runs = neighbours(stream, mergeable)
        if runs:
            found[stream_id] = runs
    return found


def _beside(stream_ids: frozenset[int], objects: Sequence[CommittedObject]) -> frozenset[int]:
    """Return these streams and all that share an object with one of them, or with one that does."""
    found = stream_ids
    held = [frozenset(span.stream_id for span in one.ranges) for one in objects]
    while more := frozenset[int]().union(*(some for some in held if some & found)) - found:
        found |= more
    return found


def neighbours(stream: StreamState, keys: frozenset[str]) -> list[tuple[Extent, ...]]:
    """Return the extents of a stream that lie in these objects, in runs of neighbours."""
    places = stream.extents.among(keys)
    runs: list[tuple[Extent, ...]] = []
    first = 0
    for number, place in enumerate(places):
        is_last = number + 1 == len(places) or places[number + 1] != place + 1
        if is_last:
            runs.append(stream.extents[places[first] : place + 1])
            first = number + 1
    return runs


def _replacement(
    runs: Runs, objects: Sequence[CommittedObject], kept: frozenset[int]
) -> ReplaceObjects | None:
    """Return the record that replaces extents of these streams; None without any."""
    keys = {
        extent.object_key: None
        for stream_id in sorted(kept)
        for group in runs[stream_id]
        for extent in group
    }
    if not keys:
        return None
    return ReplaceObjects(
        sources=tuple(keys),
        objects=tuple(one for one in objects if all(span.stream_id in kept for span in one.ranges)),
        streams=tuple(sorted(kept)),
    )
