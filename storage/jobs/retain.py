"""The job `retain`: what retention.ms and retention.bytes are over for goes.

Plan: what is due, by configs and metadata alone. Work: each item removes it from some partitions,
by one entry of the metadata log, as far as it is due still. Nothing goes that the table of a topic
which declares one does not hold yet. Objects are deleted by `sweep`, or by a running node.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from storage.clock import SystemClock
from storage.jobs.cluster import in_cluster
from storage.jobs.due_works import due_works
from storage.jobs.frame import (
    Attempt,
    Failed,
    Figures,
    Progress,
    Runner,
    here,
    tallied,
    untold,
    worked_through,
)
from storage.metadata.log import MetadataLog
from storage.object_store import ObjectStore
from storage.upkeep.configs import UpkeepDefaults
from storage.upkeep.retention import Trimmed, trim, trim_groups
from storage.upkeep.rules import DueWork

_WRITER = "retain"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainSettings:
    """What to look at of the cluster at `path`, a store's URI: these `topics`, or all. `defaults`
    count where a topic does not say how long it keeps records.
    """

    path: str
    topics: frozenset[str] = frozenset()
    defaults: UpkeepDefaults = field(default_factory=UpkeepDefaults)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainItem:
    """Partitions from which one entry removes something, for any process."""

    path: str
    works: tuple[DueWork, ...]
    defaults: UpkeepDefaults

    @property
    def size(self) -> int:
        """Bytes of batches to remove."""
        return sum(work.size for work in self.works)

    def words(self) -> str:
        """Which partitions these are, for people."""
        first, others = self.works[0], len(self.works) - 1
        return f"{first.topic}-{first.partition}" + (f" and {others} others" if others else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainFigures(Figures):
    """What a run has removed. `records` counts offsets, `objects` those that a partition refers to
    no more, `bytes` those of batches. `failures` says in words which items could not be done.
    """

    partitions: int = 0
    records: int = 0
    objects: int = 0
    bytes: int = 0
    failures: tuple[str, ...] = ()

    @classmethod
    def of(cls, result: Sequence[Trimmed] | Failed) -> "RetainFigures":
        """Return the figures of one item."""
        if isinstance(result, Failed):
            return cls(failures=(result.reason,))
        return cls(
            partitions=len(result),
            records=sum(one.records for one in result),
            objects=sum(one.objects for one in result),
            bytes=sum(one.size for one in result),
        )


def plan_retain(settings: RetainSettings) -> tuple[RetainItem, ...]:
    """Return what is due: what a dry run shows. Raises SettingsError, UnknownTopic,
    StoreUnavailable.
    """
    works = due_works(settings.path, _WRITER, settings.topics, settings.defaults)
    return tuple(
        RetainItem(path=settings.path, works=group, defaults=settings.defaults)
        for group in trim_groups(works)
    )


def retain_item(item: RetainItem) -> tuple[Trimmed, ...]:
    """Do one item; what is not due any more is left. Raises StoreUnavailable, OutcomeUnknown."""

    async def work(_: ObjectStore, log: MetadataLog) -> tuple[Trimmed, ...]:
        return await trim(log, item.works, item.defaults, SystemClock().now_ms())

    return in_cluster(item.path, _WRITER, work)


def retain(
    settings: RetainSettings, *, runner: Runner = here, on_progress: Progress = untold
) -> RetainFigures:
    """Remove all that is due, and return figures; an item that fails does not stop the others.

    Raises what `plan_retain` raises.
    """
    results = worked_through(
        Attempt(retain_item, RetainItem.words),
        plan_retain(settings),
        size=lambda item: item.size,
        runner=runner,
        on_progress=on_progress,
    )
    return tallied(RetainFigures(), map(RetainFigures.of, results))
