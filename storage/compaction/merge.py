"""The job `compact`, one item of it: small objects are replaced by larger ones.

All that readers and partitions can learn from the old objects is in the new ones: each record with
its offset, timestamp and producer; each partition's state (a whole one at the end of a range, or
the headers that it is made of); aborted transactions. One entry of the metadata log puts the new
objects in the place of the old ones, for those streams that still refer to them as they did: what
was trimmed, deleted or compacted by keys meanwhile is left out of it, and so is what another run of
this job was quicker with. A merge may be killed anywhere; what it wrote and did not commit is
garbage after a while (`JobName`).
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from lakehead.storage.clock import Clock
from lakehead.storage.compaction.arena import Arena
from lakehead.storage.compaction.merge_batches import RebatchFigures, Rebatching
from lakehead.storage.compaction.merge_parts import MergePart, gathered_parts, written_objects
from lakehead.storage.compaction.merge_plan import MergeItem, RebatchSettings
from lakehead.storage.compaction.merge_sources import Sources, read_sources
from lakehead.storage.compaction.object_put import put_object
from lakehead.storage.compaction.rewrite import Job
from lakehead.storage.errors import EntryRejected, ObjectNotFound
from lakehead.storage.failpoints import failpoint
from lakehead.storage.metadata.extents import Extent
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import COMPACTED, CommittedObject, Record, ReplaceObjects
from lakehead.storage.metadata.state import ClusterState, StreamState
from lakehead.storage.object_store.protocol import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """What a merge has done. Without `is_done` it came too late and changed nothing. Bytes are of
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
class Merge:
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
            if _runs(await self.metadata.refresh(), self.item) == runs:
                raise
            return MergeResult()  # another was quicker, and the sources were deleted
        figures, arena = RebatchFigures(), Arena()
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
        made = written_objects(parts, self._job(state), created_ms=newest)
        for committed, written in made:
            await put_object(self.store, committed.key, written, self.rng)
        failpoint("compact_objects_written")
        record = await self._commit(runs, [committed for committed, _ in made])
        failpoint("compact_committed")
        return _result(runs, record, figures)

    async def _read(self, state: ClusterState, runs: Runs) -> Sources:
        wanted: dict[str, list[int]] = {key: [] for key in self.item.sources}
        sizes: dict[str, int] = dict.fromkeys(wanted, 0)
        for stream_id, groups in runs.items():
            for group in groups:
                for extent in group:
                    wanted[extent.object_key].append(stream_id)
                    sizes[extent.object_key] += extent.size
        asked = {key: streams for key, streams in wanted.items() if streams}
        both = {key: (state.objects[key].size, sizes[key]) for key in asked}
        return await read_sources(self.store, asked, both)

    def _job(self, state: ClusterState) -> Job:
        return Job(
            cluster_id=state.cluster_id,
            job_id=self.metadata.writer_id,
            entry=state.next_entry,
            now_ms=self.clock.now_ms(),
            rng=self.rng,
        )

    async def _commit(
        self, runs: Runs, objects: Sequence[CommittedObject]
    ) -> ReplaceObjects | None:
        """Replace what is still as it was; return the record that did, if there is one."""
        record: ReplaceObjects | None = None

        def plan(state: ClusterState) -> Sequence[Record]:
            nonlocal record
            now = _runs(state, self.item)
            kept = frozenset(one for one, groups in runs.items() if now.get(one) == groups)
            record = _replacement(runs, objects, kept)
            return [] if record is None else [record]

        try:
            await self.metadata.commit_with(plan)
        except EntryRejected:
            record = None  # it took so long that nobody may commit these names any more
        named = () if record is None else {one.key for one in record.objects}
        if unused := [one.key for one in objects if one.key not in named]:
            await self.store.delete(unused)  # nobody has ever named them
        return record


def _result(runs: Runs, record: ReplaceObjects | None, figures: RebatchFigures) -> MergeResult:
    if record is None:
        return MergeResult()
    old = [extent for one in record.streams for group in runs[one] for extent in group]
    return MergeResult(
        is_done=True,
        objects_before=len(record.sources),
        objects_after=len(record.objects),
        bytes_before=sum(extent.size for extent in old),
        bytes_after=sum(span.size for one in record.objects for span in one.ranges),
        batches_before=figures.before,
        batches_after=figures.after,
    )


def _runs(state: ClusterState, item: MergeItem) -> Runs:
    """Return which extents of an item's streams lie in its sources now."""
    sources = frozenset(key for key in item.sources if key in state.objects)
    mergeable = frozenset(key for key in sources if state.objects[key].kind != COMPACTED)
    found: Runs = {}
    for stream_id in item.streams:
        stream = state.streams.get(stream_id)
        if stream is None:
            continue
        runs = _neighbours(stream, mergeable)
        if runs:
            found[stream_id] = runs
    return found


def _neighbours(stream: StreamState, keys: frozenset[str]) -> list[tuple[Extent, ...]]:
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
    left = [(one, tuple(span for span in one.ranges if span.stream_id in kept)) for one in objects]
    return ReplaceObjects(
        sources=tuple(keys),
        objects=tuple(
            CommittedObject(
                key=one.key,
                kind=one.kind,
                size=one.size,
                created_ms=one.created_ms,
                ranges=ranges,
            )
            for one, ranges in left
            if ranges
        ),
        streams=tuple(sorted(kept)),
    )
