"""One sweep over a bucket: list, read the metadata, plan; then delete, and then tell the metadata.

Every order of crashes leaves at most work for the next sweep: an object is deleted before the entry
that drops it, deleting what is gone is no error, and the entry names only what is still known and
still without a reference.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from lakehead.storage.clock import Clock
from lakehead.storage.failpoints import failpoint
from lakehead.storage.garbage.judgement import GARBAGE, PREFIXES, Verdict, is_own_name, judge
from lakehead.storage.metadata.layout import EARLIER
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import DropObjects, Record
from lakehead.storage.metadata.state import ClusterState
from lakehead.storage.object_store.protocol import ObjectMeta, ObjectStore

DELETED_AT_ONCE = 1000
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
    """What was never committed is deleted when it is this old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doomed:
    """An object to delete."""

    key: str
    size: int
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """What a sweep would delete, and how many objects of each kind there are."""

    doomed: tuple[Doomed, ...]
    counts: dict[Verdict, int] = field(default_factory=dict)
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
    """What a sweep has done."""

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
    found = await listed(store)
    held_ms = await held_until_ms(store)
    return planned(found, await metadata.refresh(), clock.now_ms(), settings, held_ms=held_ms)


def planned(
    found: Sequence[ObjectMeta],
    state: ClusterState,
    now_ms: int,
    settings: SweepTimes,
    *,
    held_ms: int = -1,
) -> SweepPlan:
    """Decide about listed objects, by metadata that is newer than the listing. Of those that are
    not newer than `held_ms` only what was committed since goes (see `held_until_ms`).
    """
    doomed: list[Doomed] = []
    counts: Counter[Verdict] = Counter()
    sizes = {}
    for item in found:
        verdict = judge(state, item.key, item.size)
        if verdict in GARBAGE and item.modified_ms <= held_ms:
            verdict = Verdict.HELD
        counts[verdict] += 1
        if verdict is Verdict.UNREFERENCED:
            sizes[item.key] = item.size
        elif verdict in GARBAGE and item.modified_ms <= now_ms - settings.margin_ms:
            doomed.append(Doomed(key=item.key, size=item.size, verdict=verdict))
    # Known to the metadata alone when a sweep was killed between deleting and dropping.
    doomed += [
        Doomed(key=key, size=sizes.get(key, 0), verdict=Verdict.UNREFERENCED)
        for key, since_ms in sorted(state.unreferenced.items())
        if since_ms <= now_ms - settings.grace_ms
    ]
    return SweepPlan(
        doomed=tuple(doomed),
        counts=dict(counts),
        uploads_before_ms=now_ms - settings.margin_ms,
        held_ms=held_ms,
    )


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

    def plan(state: ClusterState) -> Sequence[Record]:
        nonlocal known
        known = tuple(key for key in keys if key in state.unreferenced)
        return [DropObjects(keys=known)] if known else []

    await metadata.commit_with(plan)
    return len(known)
