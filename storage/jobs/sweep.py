"""The job `sweep`: objects that nothing needs any more are deleted.

Plan: a listing of the bucket against the metadata (`lakehead.storage.garbage`). Run: each
item deletes some objects, after another look at what they are; the first one also gives up writes
in parts that began and never ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lakehead.storage.jobs.job import Job, JobContext, JobResult, Planned, Unit, sum_results, total
from lakehead.storage.jobs.options import option

if TYPE_CHECKING:  # a DAG is parsed without them
    from lakehead.storage.garbage import Doomed, LeakReport, SweepPlan
    from lakehead.storage.metadata.log import MetadataLog
    from lakehead.storage.object_store import ObjectStore

_WRITER = "sweep"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """Options of the job: how long unneeded objects stay."""

    grace_s: int = option(
        600,
        "Keep objects this long after the last reference to them is gone.",
        title="Grace period, s",
        flag="--grace",
        metavar="SECONDS",
        least=0,
        form={
            "default": None,
            "type": ["null", "integer"],
            "description": "None: the cluster's own.",
        },
    )
    margin_s: int = option(
        3600,
        "Delete objects that were never committed at this age.",
        flag="--margin",
        metavar="SECONDS",
        least=0,
        in_form=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult(JobResult):
    """Objects deleted and their bytes, how many of them the metadata have `dropped`, and how many
    abandoned `uploads` were given up. Of two runs at once, both may count an object.
    """

    objects: int = total("deleted objects")
    bytes: int = total("deleted bytes")
    dropped: int = total("dropped from the metadata")
    uploads: int = total("abandoned uploads given up")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepItem:
    """Objects that one process deletes. Writes in parts that began before `uploads_before_ms` are
    given up; 0: none. `held_ms` is as in `SweepPlan`.
    """

    path: str
    doomed: "tuple[Doomed, ...]" = ()
    uploads_before_ms: int = 0
    held_ms: int = -1

    @property
    def size(self) -> int:
        """Bytes to delete."""
        return sum(one.size for one in self.doomed)


def _plan(context: JobContext, options: SweepOptions) -> Planned:
    """Look at the bucket. Raises SettingsError, StoreUnavailable."""
    from lakehead.storage.clock import SystemClock
    from lakehead.storage.garbage import SweepTimes, find_garbage
    from lakehead.storage.jobs.cluster import in_cluster

    times = SweepTimes(grace_ms=options.grace_s * 1000, margin_ms=options.margin_s * 1000)

    async def plan(store: "ObjectStore", log: "MetadataLog") -> "SweepPlan":
        return await find_garbage(store, log, SystemClock(), times)

    found = in_cluster(context.path, _WRITER, plan)
    units = []
    if found.uploads_before_ms:
        item = SweepItem(
            path=context.path, uploads_before_ms=found.uploads_before_ms, held_ms=found.held_ms
        )
        units.append(Unit(key="", size=0, item=item, words="old uploads"))
    units += [
        Unit(
            key=one.key,
            size=one.size,
            item=SweepItem(path=context.path, doomed=(one,), held_ms=found.held_ms),
            words=f"{one.key} ({one.verdict.value})",
            row={"key": one.key, "bytes": one.size, "why": one.verdict.value},
        )
        for one in found.doomed
    ]
    return Planned(units=tuple(units))


def items_of(units: Sequence[Unit]) -> tuple[SweepItem, ...]:
    """Return the items of some units of one plan: many objects each."""
    from lakehead.storage.garbage import DELETED_AT_ONCE

    found: list[SweepItem] = [unit.item for unit in units]
    doomed = [one for item in found for one in item.doomed]
    uploads_before_ms = max((item.uploads_before_ms for item in found), default=0)
    return tuple(
        replace(
            found[0],
            doomed=tuple(doomed[first : first + DELETED_AT_ONCE]),
            uploads_before_ms=0 if first else uploads_before_ms,
        )
        for first in range(0, max(1, len(doomed)), DELETED_AT_ONCE)
        if found
    )


def sweep_item(item: SweepItem) -> SweepResult:
    """Delete the objects of an item that are what they were. Raises StoreUnavailable."""
    from lakehead.storage.garbage import GARBAGE, SweepPlan, held_until_ms, judge, perform
    from lakehead.storage.jobs.cluster import in_cluster

    async def work(store: "ObjectStore", log: "MetadataLog") -> SweepResult:
        state = log.state
        doomed = [one for one in item.doomed if judge(state, one.key, one.size) == one.verdict]
        if await held_until_ms(store) != item.held_ms:  # the catalog was rebuilt meanwhile
            doomed = [one for one in doomed if one.verdict not in GARBAGE]
        plan = SweepPlan(doomed=tuple(doomed), uploads_before_ms=item.uploads_before_ms)
        done = await perform(plan, store, log)
        return SweepResult(
            objects=done.deleted,
            bytes=done.deleted_bytes,
            dropped=done.dropped,
            uploads=done.uploads,
        )

    return in_cluster(item.path, _WRITER, work)


def _run(context: JobContext, _options: SweepOptions, units: Sequence[Unit]) -> SweepResult:
    return sum_results(
        context, sweep_item, items_of(units), empty=SweepResult(), size=lambda item: item.size
    )


JOB = Job(
    name="sweep",
    help="Delete objects that no stream refers to.\n\n"
    "Those that crashes left in the bucket are among them.",
    dry_run_help="Show what would be deleted, and delete nothing.",
    options=SweepOptions,
    plan=_plan,
    run=_run,
    columns={"key": "KEY", "bytes": "BYTES", "why": "WHY"},
    confirmation=lambda _: "Delete the objects that no stream refers to?",
    # Deletions are counted by objects, and each task lists the bucket.
    task_bytes=1 << 62,
    task_units=20_000,
)


def find_leaks(path: str) -> "LeakReport":
    """Compare the bucket of the cluster at `path` with its metadata. Raises SettingsError,
    StoreUnavailable.
    """
    from lakehead.storage.garbage import check_leaks
    from lakehead.storage.jobs.cluster import in_cluster

    return in_cluster(path, _WRITER, check_leaks)
