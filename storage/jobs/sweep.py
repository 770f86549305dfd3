"""The job `sweep`: what nothing needs any more is deleted.

Plan: a listing of the bucket against the metadata (`storage.garbage.sweep`). Work: each item
deletes some objects, of which it is looked at anew what they are; the first one also gives up
writes in parts that somebody began and never ended.
"""

from dataclasses import dataclass, field

from storage.clock import SystemClock
from storage.garbage.judgement import GARBAGE, judge
from storage.garbage.leak_check import LeakReport, check_leaks
from storage.garbage.sweep import (
    DELETED_AT_ONCE,
    Doomed,
    SweepPlan,
    SweepResult,
    SweepTimes,
    find_garbage,
    held_until_ms,
    perform,
)
from storage.jobs.cluster import in_cluster
from storage.jobs.frame import Figures, Progress, Runner, here, tallied, untold, worked_through
from storage.metadata.log import MetadataLog
from storage.object_store import ObjectStore

_WRITER = "sweep"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings:
    """What to sweep: the bucket of the cluster at `path`, a store's URI."""

    path: str
    times: SweepTimes = field(default_factory=SweepTimes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepItem:
    """Objects that one process deletes. Writes in parts that began before `uploads_before_ms` are
    given up; 0: none. `held_ms` is as in `SweepPlan`.
    """

    path: str
    doomed: tuple[Doomed, ...]
    uploads_before_ms: int = 0
    held_ms: int = -1

    @property
    def size(self) -> int:
        """Bytes to delete."""
        return sum(one.size for one in self.doomed)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFigures(Figures):
    """What a run has done: objects deleted and their bytes, how many of them the metadata have
    `dropped`, and how many abandoned `uploads` were given up. Of two runs at once, both may count
    an object.
    """

    objects: int = 0
    bytes: int = 0
    dropped: int = 0
    uploads: int = 0

    @classmethod
    def of(cls, result: SweepResult) -> "SweepFigures":
        """Return the figures of one item."""
        return cls(
            objects=result.deleted,
            bytes=result.deleted_bytes,
            dropped=result.dropped,
            uploads=result.uploads,
        )


def plan_sweep(settings: SweepSettings) -> tuple[SweepItem, ...]:
    """Look at the bucket, and return what would be deleted: at least one item, which may have no
    objects. Raises SettingsError, StoreUnavailable.
    """

    async def plan(store: ObjectStore, log: MetadataLog) -> SweepPlan:
        return await find_garbage(store, log, SystemClock(), settings.times)

    found = in_cluster(settings.path, _WRITER, plan)
    return tuple(
        SweepItem(
            path=settings.path,
            doomed=found.doomed[first : first + DELETED_AT_ONCE],
            uploads_before_ms=0 if first else found.uploads_before_ms,
            held_ms=found.held_ms,
        )
        for first in range(0, max(1, len(found.doomed)), DELETED_AT_ONCE)
    )


def sweep_item(item: SweepItem) -> SweepResult:
    """Delete the objects of an item that are what they were. Raises StoreUnavailable."""

    async def work(store: ObjectStore, log: MetadataLog) -> SweepResult:
        state = log.state
        doomed = [one for one in item.doomed if judge(state, one.key, one.size) == one.verdict]
        if await held_until_ms(store) != item.held_ms:  # the catalog was rebuilt meanwhile
            doomed = [one for one in doomed if one.verdict not in GARBAGE]
        return await perform(
            SweepPlan(doomed=tuple(doomed), uploads_before_ms=item.uploads_before_ms), store, log
        )

    return in_cluster(item.path, _WRITER, work)


def sweep(
    settings: SweepSettings, *, runner: Runner = here, on_progress: Progress = untold
) -> SweepFigures:
    """Delete all that can go, and return figures. Whatever it raises, run it again."""
    results = worked_through(
        sweep_item,
        plan_sweep(settings),
        size=lambda item: item.size,
        runner=runner,
        on_progress=on_progress,
    )
    return tallied(SweepFigures(), map(SweepFigures.of, results))


def find_leaks(path: str) -> LeakReport:
    """Compare the bucket of the cluster at `path` with its metadata. Raises SettingsError,
    StoreUnavailable.
    """
    return in_cluster(path, _WRITER, check_leaks)
