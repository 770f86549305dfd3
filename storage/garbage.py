"""Garbage: objects of a bucket that nothing needs any more, and their deletion.

The verdict on an object is a pure function of its name and the metadata, which must be newer than
the listing that showed it. No verdict rests on a clock. An object that no entry names is garbage
once nothing can commit it: the node epoch in its name has ended, or the metadata log is too far
beyond the entry in its name (every reader refuses such a commit).

A sweep lists the bucket, reads the metadata, plans, deletes the objects, then drops them from the
metadata. A crash at any point leaves at most work for the next sweep: an object is deleted before
the entry that drops it, deleting an absent object is not an error, and the entry names only objects
that are still known and still unreferenced.

A running node collects its own garbage: an object without a reference is deleted after this process
has seen it so for the grace period, by its monotonic clock, so a jump of the wall clock hastens
nothing. That costs no request while there is nothing to delete. The node lists the bucket only now
and then, for objects that crashes left. The leak check compares a listing with the metadata.
"""

import asyncio
from collections.abc import AsyncIterator, Generator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from lakehead.storage.clock import Clock
from lakehead.storage.errors import LakeheadError
from lakehead.storage.event_logger import event_logger
from lakehead.storage.failpoints import failpoint
from lakehead.storage.format.object_names import PREFIX as DATA_PREFIX
from lakehead.storage.format.object_names import DataName, JobName
from lakehead.storage.metadata.layout import EARLIER, META
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.log_reader import in_steps
from lakehead.storage.metadata.records import DropObjects, Record
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store.pages import pages
from lakehead.storage.object_store.protocol import ObjectMeta, ObjectStore
from lakehead.storage.stream.settings import StorageSettings
from lakehead.storage.wal.object.names import PREFIX as WAL_PREFIX
from lakehead.storage.wal.object.names import WalName, is_seal_size

PREFIXES = (DATA_PREFIX, WAL_PREFIX)
"""The prefixes of objects with data."""


class Verdict(StrEnum):
    """The verdict on an object."""

    REFERENCED = "referenced"
    """A stream's data."""
    UNREFERENCED = "unreferenced"
    """Committed, and no stream refers to it any more: goes after the grace period."""
    ORPHAN = "orphan"
    """Never committed, and never will be: its writer's epoch has ended."""
    UPLOADING = "uploading"
    """Not committed yet; its writer may still be at it."""
    WAL = "wal"
    """Of a write-ahead log: recovery may need it."""
    OLD_WAL = "old wal"
    """Of a write-ahead log, below what recovery needs."""
    TOMBSTONE = "tombstone"
    """The seal of a write-ahead log: stays as long as its node id."""
    HELD = "held"
    """Garbage by the metadata of today, which a rebuild of the catalog has made: stays while what
    it kept of the metadata before is there.
    """
    STRANGE = "strange"
    """Not a name that Lakehead gives: left alone."""


GARBAGE = frozenset({Verdict.ORPHAN, Verdict.OLD_WAL})
"""Can go at once."""


def judge(state: MetadataImage, key: str, size: int) -> Verdict:
    """Return what a listed object is, by metadata that is newer than the listing."""
    if key in state.unreferenced:
        return Verdict.UNREFERENCED
    if key in state.objects:
        return Verdict.REFERENCED
    wal = WalName.parse(key)
    if wal is not None:
        return _judge_wal(state, wal, size)
    job = JobName.parse(key)
    if job is not None:
        return Verdict.UPLOADING if job.may_enter(state.next_entry) else Verdict.ORPHAN
    data = DataName.parse(key)
    if data is None:
        return Verdict.STRANGE
    if data.node_id not in state.nodes and data.node_id not in state.retired_nodes:
        return Verdict.STRANGE
    return Verdict.ORPHAN if _has_ended(state, data) else Verdict.UPLOADING


def is_own_name(key: str) -> bool:
    """Return true if a cluster gives this name to an object, of whatever node: a table that lies
    within its prefix, or another program, gives others.
    """
    if key.startswith(META):
        return True
    return any(name.parse(key) is not None for name in (WalName, JobName, DataName))


def _has_ended(state: MetadataImage, name: DataName) -> bool:
    """Return true if the epoch of a name has ended, so that it can never be committed."""
    node = state.nodes.get(name.node_id)
    if node is None:
        return name.epoch <= state.retired_nodes[name.node_id]
    return name.epoch < node.epoch or (name.epoch == node.epoch and node.is_fenced)


def _judge_wal(state: MetadataImage, name: WalName, size: int) -> Verdict:
    node = state.nodes.get(name.node_id)
    if node is None:
        last = state.retired_nodes.get(name.node_id)
        if last is None:
            return Verdict.STRANGE
        return Verdict.OLD_WAL if name.epoch <= last else Verdict.WAL
    if is_seal_size(size):
        return Verdict.TOMBSTONE
    below = (name.epoch, name.number) < (node.wal_epoch, node.wal_floor)
    return Verdict.OLD_WAL if below else Verdict.WAL


DELETED_AT_ONCE = 1000
_JUDGED_AT_ONCE = 250
GRACE_MS = 600_000
MARGIN_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTimes:
    """Times in milliseconds, by the wall clock: they are for readers' comfort and for caution, and
    nothing is lost when a clock is wrong.
    """

    grace_ms: int = GRACE_MS
    """Readers of an older view find an object for this long after its last reference went."""
    margin_ms: int = MARGIN_MS
    """The age at which an object that was never committed is deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doomed:
    """An object to delete."""

    key: str
    size: int
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """The objects that a sweep would delete."""

    doomed: tuple[Doomed, ...]
    uploads_before_ms: int = 0
    """Writes in parts that began before are given up; 0: none."""
    held_ms: int = -1
    """See `held_until_ms`, when this was planned."""

    @property
    def size(self) -> int:
        """Bytes to delete."""
        return sum(one.size for one in self.doomed)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """The result of a sweep."""

    deleted: int
    deleted_bytes: int
    dropped: int
    """Objects that the metadata has forgotten."""
    uploads: int
    """Abandoned writes in parts that were given up."""


async def listed(store: ObjectStore) -> list[ObjectMeta]:
    """Return every object with data in the bucket. Raises StoreUnavailable."""
    found: list[ObjectMeta] = []
    for prefix in PREFIXES:
        found += await store.list(prefix)
    return found


async def held_until_ms(store: ObjectStore) -> int:
    """Return up to when objects without a reference were left by metadata that a rebuild has
    replaced and kept a copy of, by the store's clock; -1: by none. No commit can name them any
    more, but that copy may. Raises StoreUnavailable.
    """
    return max((one.modified_ms for one in await store.list(EARLIER)), default=-1)


async def find_garbage(
    store: ObjectStore, metadata: MetadataLog, clock: Clock, settings: SweepTimes
) -> SweepPlan:
    """Look at the bucket and decide. Reads only. Raises StoreUnavailable."""
    held_ms = await held_until_ms(store)
    doomed = [
        one async for some in garbage_in_pages(store, metadata, clock, settings) for one in some
    ]
    state, now_ms = await metadata.refresh(surely=True), clock.now_ms()
    # Some are known to the metadata alone, if a sweep was killed between deleting and dropping.
    doomed += [
        Doomed(key=key, size=state.objects[key].size, verdict=Verdict.UNREFERENCED)
        for key, since_ms in sorted(state.unreferenced.items())
        if since_ms <= now_ms - settings.grace_ms
    ]
    return SweepPlan(
        doomed=tuple(doomed), uploads_before_ms=now_ms - settings.margin_ms, held_ms=held_ms
    )


async def garbage_in_pages(
    store: ObjectStore, metadata: MetadataLog, clock: Clock, settings: SweepTimes
) -> AsyncIterator[Sequence[Doomed]]:
    """Yield what can go at once, by pages of a listing, of which one is in memory at a time: it may
    be deleted before the next one. Reads only. Raises StoreUnavailable.
    """
    for prefix in PREFIXES:
        async for page in pages(store, prefix):
            state = await metadata.refresh(surely=True)
            found = await in_steps(_garbage(page, state))
            # Looked at after the metadata: a copy of older ones is there before newer ones are.
            held_ms = await held_until_ms(store) if found else -1
            before_ms = clock.now_ms() - settings.margin_ms
            yield [
                Doomed(key=one.key, size=one.size, verdict=verdict)
                for one, verdict in found
                if held_ms < one.modified_ms <= before_ms
            ]


def _garbage(
    page: Sequence[ObjectMeta], state: MetadataImage
) -> Generator[None, None, list[tuple[ObjectMeta, Verdict]]]:
    """Return the garbage among listed objects, by metadata that is newer than the listing. Others
    have a turn between any two steps.
    """
    found = []
    for number, item in enumerate(page, 1):
        if not number % _JUDGED_AT_ONCE:
            yield
        verdict = judge(state, item.key, item.size)
        if verdict in GARBAGE:
            found.append((item, verdict))
    return found


async def perform(plan: SweepPlan, store: ObjectStore, metadata: MetadataLog) -> SweepResult:
    """Delete what is planned. Raises StoreUnavailable: what is left is for the next sweep."""
    dropped = await delete(plan.doomed, store, metadata)
    before_ms = plan.uploads_before_ms
    uploads = 0
    if before_ms:
        uploads = await store.abort_uploads(before_ms=before_ms, owns=is_own_name)
    return SweepResult(
        deleted=len(plan.doomed), deleted_bytes=plan.size, dropped=dropped, uploads=uploads
    )


async def delete(doomed: Sequence[Doomed], store: ObjectStore, metadata: MetadataLog) -> int:
    """Delete objects, then drop those that the metadata knows; returns how many it knew."""
    dropped = 0
    for first in range(0, len(doomed), DELETED_AT_ONCE):
        batch = doomed[first : first + DELETED_AT_ONCE]
        await store.delete([one.key for one in batch])
        failpoint("garbage_deleted")
        dropped += await _drop([one.key for one in batch], metadata)
        failpoint("garbage_dropped")
    return dropped


async def _drop(keys: Sequence[str], metadata: MetadataLog) -> int:
    known: tuple[str, ...] = ()

    def plan(state: MetadataImage) -> Sequence[Record]:
        nonlocal known
        known = tuple(key for key in keys if key in state.unreferenced)
        return [DropObjects(keys=known)] if known else []

    await metadata.commit_with(plan)
    return len(known)


_log = event_logger("storage.garbage")


@dataclass(slots=True)
class GarbageStats:
    """Garbage collection by a node since its start."""

    waiting: int = 0
    """Objects without a reference that wait for the end of the grace period."""
    deleted_objects: int = 0
    deleted_bytes: int = 0
    sweeps: int = 0
    """Times the bucket was listed."""
    failures: int = 0
    """Times the store or the metadata log refused; the next turn tries again."""


class GarbageCollector:
    """The garbage of one node: of objects that it wrote, in this epoch or earlier ones; and, if its
    id is the lowest of the living, of those whose writers are gone.

    An object goes `garbage_grace_s` after its last reference, within `garbage_interval_s`; the
    bucket is listed every `garbage_sweep_s`.
    """

    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataLog,
        settings: StorageSettings,
        clock: Clock,
        *,
        node_id: int,
    ) -> None:
        self.stats = GarbageStats()
        self._store = store
        self._metadata = metadata
        self._clock = clock
        self._node_id = node_id
        self._settings = settings
        self._seen: dict[str, float] = {}
        self._swept_at = clock.monotonic()

    async def run(self) -> None:
        """Take a turn every interval, for ever."""
        while True:
            await asyncio.sleep(self._settings.garbage_interval_s)
            try:
                await self.turn()
            except LakeheadError as error:
                self.stats.failures += 1
                _log.warning("garbage_turn_failed", error=str(error))

    async def turn(self) -> None:
        """Delete what has had its grace; sweep the bucket if it is time to."""
        state, now = self._metadata.state, self._clock.monotonic()
        seen, doomed = self._seen, list[Doomed]()
        self._seen = {}
        for number, key in enumerate(sorted(state.unreferenced), 1):
            since = self._seen[key] = seen.get(key, now)
            if now - since >= self._settings.garbage_grace_s and self._is_ours(state, key):
                size = state.objects[key].size
                doomed.append(Doomed(key=key, size=size, verdict=Verdict.UNREFERENCED))
            if not number % _JUDGED_AT_ONCE:  # the topic that was deleted may have been large
                await asyncio.sleep(0)
        self.stats.waiting = len(self._seen) - len(doomed)
        if doomed:
            # A process that was paused may not know that other metadata were put in the place of
            # its own, by a promotion or a rebuild: they may name these objects.
            state = await self._metadata.refresh(surely=True)
            doomed = [one for one in doomed if one.key in state.unreferenced]
            await delete(doomed, self._store, self._metadata)
            self._count(len(doomed), sum(one.size for one in doomed))
        if now - self._swept_at >= self._settings.garbage_sweep_s:
            self._swept_at = now
            await self._sweep()

    async def _sweep(self) -> None:
        """Delete what can go at once, page by page: what the metadata know goes by `turn`."""
        if not self._metadata.state.is_lowest(self._node_id):
            return
        settings = SweepTimes()
        async for doomed in garbage_in_pages(self._store, self._metadata, self._clock, settings):
            await delete(doomed, self._store, self._metadata)
            self._count(len(doomed), sum(one.size for one in doomed))
        before_ms = self._clock.now_ms() - settings.margin_ms
        await self._store.abort_uploads(before_ms=before_ms, owns=is_own_name)
        self.stats.sweeps += 1

    def _count(self, objects: int, size: int) -> None:
        self.stats.deleted_objects += objects
        self.stats.deleted_bytes += size
        if objects:
            _log.info("garbage_deleted", objects=objects, bytes=size, node_id=self._node_id)

    def _is_ours(self, state: MetadataImage, key: str) -> bool:
        writer = state.objects[key].node_id
        if writer == self._node_id:
            return True
        node = state.nodes.get(writer)
        return (node is None or node.is_fenced) and state.is_lowest(self._node_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakReport:
    """Keys, sorted. Without leaks and losses all but `referenced` are empty after quiet: when
    nothing is produced any more, uploads are committed and grace periods are over.
    """

    referenced: int
    """Objects that hold streams' data and are there."""
    missing: tuple[str, ...]
    """Referred to, and not in the bucket: data is lost."""
    leaked: tuple[str, ...]
    """Garbage that the next sweep takes."""
    delayed: tuple[str, ...]
    """Without a reference, kept for readers of an older view."""
    uploading: tuple[str, ...]
    """Not committed yet, by a node that is alive."""
    wal: tuple[str, ...]
    """Write-ahead log objects that recovery would read."""
    tombstones: int
    held: tuple[str, ...]
    """Without a reference since the catalog was rebuilt, and kept as long as its copy is."""
    strange: tuple[str, ...]
    """Names that Lakehead does not give."""

    @property
    def is_clean(self) -> bool:
        """Return true if the bucket holds what is referred to, all of it and nothing else that
        could go.
        """
        return not (self.missing or self.leaked or self.delayed or self.strange)


async def check_leaks(store: ObjectStore, metadata: MetadataLog) -> LeakReport:
    """Compare bucket and metadata while the cluster runs. Raises StoreUnavailable."""
    before = await metadata.refresh()
    found = await listed(store)
    held_ms = await held_until_ms(store)
    after = await metadata.refresh()
    keys: dict[Verdict, list[str]] = {verdict: [] for verdict in Verdict}
    for item in found:
        verdict = judge(after, item.key, item.size)
        is_held = verdict in GARBAGE and item.modified_ms <= held_ms
        keys[Verdict.HELD if is_held else verdict].append(item.key)
    present = {item.key for item in found}
    # An object that was committed after the listing began need not be in it.
    missing = [
        key
        for key, known in after.objects.items()
        if known.stream_ids and key not in present and key in before.objects
    ]
    leaked = [key for verdict in GARBAGE for key in keys[verdict]]
    return LeakReport(
        referenced=len(keys[Verdict.REFERENCED]),
        missing=tuple(sorted(missing)),
        leaked=tuple(sorted(leaked)),
        delayed=tuple(sorted(keys[Verdict.UNREFERENCED])),
        uploading=tuple(sorted(keys[Verdict.UPLOADING])),
        wal=tuple(sorted(keys[Verdict.WAL])),
        tombstones=len(keys[Verdict.TOMBSTONE]),
        held=tuple(sorted(keys[Verdict.HELD])),
        strange=tuple(sorted(keys[Verdict.STRANGE])),
    )
