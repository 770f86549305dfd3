"""Compact one stream: scan the dirty part, then rewrite from the start, group after group.

One entry of the metadata log replaces each group of objects. It is refused if the stream no longer
refers to those objects: it was trimmed, deleted, or compacted by another run. A job may be killed
at any time; objects that it wrote and did not commit become garbage (`JobName`).

Rewriting begins at the start of the stream, so the compacted part is always the beginning of the
stream. After a kill, the next run continues at the first object that was not replaced.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from lakehead.storage.clock import Clock
from lakehead.storage.compaction.batches import BatchRows, Scratch, stored_items
from lakehead.storage.compaction.dirtiness import MAP_MEMORY, Dirtiness, dirtiness, groups
from lakehead.storage.compaction.log_cleaner import OFFSET_MAX, Cleaner, CleaningRules, DirtyScan
from lakehead.storage.compaction.rewrite import Job, Rewrite, put_object
from lakehead.storage.errors import CorruptObject, EntryRejected, LakeheadError, ObjectNotFound
from lakehead.storage.failpoints import failpoint
from lakehead.storage.format.stream_object import read_index
from lakehead.storage.metadata.extents import Extent
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import CommittedObject, Record, ReplaceObjects
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store.protocol import ObjectStore


class Superseded(LakeheadError):
    """The stream changed while it was compacted. Replaced extents stay replaced; the rest is for
    the next run.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCompactionSettings:
    """Settings of one compaction. `map_memory` bounds the map of keys and `group_size` the objects
    replaced at once, both in bytes; objects with a timestamp above `until_ms` stay as they are.
    """

    until_ms: int
    delete_retention_ms: int
    map_memory: int = MAP_MEMORY
    group_size: int = 32 * 1024 * 1024


@dataclass(slots=True)
class LogCompactionResult:
    """The result of a compaction."""

    passes: int = 0
    """The number of rewrites of the stream: more than one if the keys outgrow the map."""
    objects: int = 0
    """Objects written."""
    bytes_before: int = 0
    """Bytes of batches in the objects that were replaced."""
    bytes_after: int = 0
    unreadable: int = 0
    """Batches that cannot be read, and stay."""


class LogCompaction:
    """One run over one stream."""

    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataLog,
        clock: Clock,
        rng: random.Random,
        *,
        stream_id: int,
        settings: LogCompactionSettings,
    ) -> None:
        self.result = LogCompactionResult()
        self._store = store
        self._metadata = metadata
        self._clock = clock
        self._rng = rng
        self._stream_id = stream_id
        self._settings = settings

    async def run(self) -> LogCompactionResult:
        """Compact all that can be. Raises Superseded, StoreUnavailable, CorruptObject,
        UnsupportedFormat, OutcomeUnknown, and ObjectNotFound when data is lost; what was committed
        by then counts.
        """
        try:
            return await self._run()
        except ObjectNotFound:
            known = self._extents()
            await self._metadata.refresh(surely=True)
            if self._extents()[: len(known)] == known:
                raise
            raise Superseded(f"stream {self._stream_id} changed while it was compacted") from None

    def _extents(self) -> tuple[Extent, ...]:
        stream = self._metadata.state.streams.get(self._stream_id)
        return () if stream is None else tuple(stream.extents)

    async def _run(self) -> LogCompactionResult:
        while True:
            stream = self._metadata.state.streams.get(self._stream_id)
            if stream is None:
                return self.result
            found = dirtiness(self._metadata.state, stream, until_ms=self._settings.until_ms)
            if not found.dirty:
                return self.result
            memory, offsets = self._settings.map_memory, found.dirty_offsets
            scan = DirtyScan(memory, self._rng, offsets=offsets)
            await self._scan(found.dirty, scan)
            clean_end = _clean_end(found, scan)
            if clean_end is None:
                return self.result
            if clean_end < scan.end_offset:
                # Records beyond supersede nothing yet, and the ends of transactions are known now.
                scan_end = scan.end_offset
                scan = DirtyScan(memory, self._rng, offsets=offsets, keys_until=clean_end)
                await self._scan(found.dirty, scan, scan_end)
            await self._rewrite(found, scan, clean_end)
            self.result.passes += 1
            self.result.unreadable += scan.unreadable

    async def _scan(
        self, extents: Sequence[Extent], scan: DirtyScan, end_offset: int = OFFSET_MAX
    ) -> None:
        """Scan up to an offset, or as far as the map goes."""
        scratch, batches = Scratch(), BatchRows()
        for extent in extents:
            index = await read_index(self._store, extent.object_key)
            items = stored_items(self._store, index, self._stream_id, extent, scratch)
            async for item, data in items:
                try:
                    batches.read(self._stream_id, data)
                except ValueError as error:
                    raise CorruptObject(extent.object_key, item.position, str(error)) from error
                if not scan.add_all(batches, end_offset):
                    return
                await asyncio.sleep(0)

    async def _rewrite(self, found: Dirtiness, scan: DirtyScan, clean_end: int) -> None:
        stream = self._metadata.state.stream(self._stream_id)
        rules = CleaningRules(
            start_offset=stream.start_offset,
            clean_end=clean_end,
            now_ms=self._clock.now_ms(),
            delete_retention_ms=self._settings.delete_retention_ms,
        )
        cleaner, clean = Cleaner(scan, rules), frozenset(found.clean)
        extents = [one for one in (*found.clean, *found.dirty) if one.start_offset < clean_end]
        for group in groups(extents, self._settings.group_size):
            rewrite = Rewrite(
                self._store,
                cleaner,
                self._job(),
                stream_id=self._stream_id,
                clean_end=clean_end,
                state_from=stream.state_from,
            )
            made = await rewrite.group(group)
            if len(group) == 1 and group[0] in clean and not rewrite.is_changed:
                continue  # as it was: nothing is gained by writing it again
            for committed, written in made:
                await put_object(self._store, committed.key, written, self._rng)
                self.result.objects += 1
                self.result.bytes_after += sum(span.size for span in committed.ranges)
            self.result.bytes_before += sum(extent.size for extent in group)
            failpoint("compaction_objects_written")
            await self._commit(group, [committed for committed, _ in made])
            failpoint("compaction_committed")

    def _job(self) -> Job:
        state = self._metadata.state
        return Job(
            cluster_id=state.cluster_id,
            job_id=self._metadata.writer_id,
            entry=state.next_entry,
            now_ms=self._clock.now_ms(),
            rng=self._rng,
        )

    async def _commit(self, group: Sequence[Extent], objects: Sequence[CommittedObject]) -> None:
        keys = dict.fromkeys(extent.object_key for extent in group)
        replacement = ReplaceObjects(
            sources=tuple(keys), objects=tuple(objects), streams=(self._stream_id,)
        )

        def plan(state: MetadataImage) -> Sequence[Record]:
            stream = state.streams.get(self._stream_id)
            at = -1 if stream is None else stream.extents.index_of(group[0].start_offset)
            if stream is None or at < 0 or stream.extents[at : at + len(group)] != tuple(group):
                raise Superseded(f"stream {self._stream_id} changed while it was compacted")
            return [replacement]

        try:
            await self._metadata.commit_with(plan)
        except (Superseded, EntryRejected) as error:
            await self._store.delete([one.key for one in objects])  # no entry has ever named them
            if isinstance(error, Superseded):
                raise
            raise Superseded(f"stream {self._stream_id}: {error}") from error


def _clean_end(found: Dirtiness, scan: DirtyScan) -> int | None:
    """Return where cleaning ends: with an object; or, where the map was full, wherever that was.
    None: nothing can be cleaned, since transactions are open.
    """
    if scan.is_full:
        return scan.stable_offset if scan.stable_offset > found.first_dirty else None
    ends = [one.end_offset for one in found.dirty if one.end_offset <= scan.stable_offset]
    return ends[-1] if ends else None
