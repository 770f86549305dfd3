"""The job `compact`: small objects become large ones, so that readers ask for few.

Plan: which objects are small, by the metadata alone (`merge_plan`), without topics that are
compacted by keys. Work: each item reads them and
replaces them by one entry of the metadata log (`merge`). What changed meanwhile is left as it is.
"""

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from storage.clock import SystemClock
from storage.compaction.merge_plan import MergeItem, MergeRules, RebatchSettings
from storage.jobs.cluster import in_cluster
from storage.jobs.frame import Figures, Progress, Runner, here, tallied, untold, worked_through
from storage.metadata.log import MetadataLog
from storage.object_store import ObjectStore
from storage.upkeep.configs import UpkeepDefaults
from storage.upkeep.rules import due_merges

if TYPE_CHECKING:  # its kernels are for those alone who merge
    from storage.compaction.merge import MergeResult

_WRITER = "compact"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactSettings:
    """What to merge of the cluster at `path`, a store's URI. `defaults`: which topics are compacted
    by keys, where they do not say it.
    """

    path: str
    rules: MergeRules = field(default_factory=MergeRules)
    rebatch: RebatchSettings = field(default_factory=RebatchSettings)
    defaults: UpkeepDefaults = field(default_factory=UpkeepDefaults)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactFigures(Figures):
    """What a run has done, in bytes of batches. `superseded` items came too late: another run, a
    trim, a deletion was quicker.
    """

    items: int = 0
    superseded: int = 0
    objects_before: int = 0
    objects_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    batches_before: int = 0
    batches_after: int = 0

    @classmethod
    def of(cls, result: "MergeResult") -> "CompactFigures":
        """Return the figures of one item."""
        if not result.is_done:
            return cls(superseded=1)
        return cls(
            items=1,
            objects_before=result.objects_before,
            objects_after=result.objects_after,
            bytes_before=result.bytes_before,
            bytes_after=result.bytes_after,
            batches_before=result.batches_before,
            batches_after=result.batches_after,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactItem:
    """One merge, for any process."""

    path: str
    merge: MergeItem
    rebatch: RebatchSettings


def plan_compact(settings: CompactSettings) -> tuple[CompactItem, ...]:
    """Return what is due: what a dry run shows. Raises SettingsError, StoreUnavailable."""
    settings.defaults.check()

    async def plan(_: ObjectStore, log: MetadataLog) -> tuple[MergeItem, ...]:
        values = settings.defaults.values(log.state)
        return due_merges(log.state, values, settings.rules)

    return tuple(
        CompactItem(path=settings.path, merge=merge, rebatch=settings.rebatch)
        for merge in in_cluster(settings.path, _WRITER, plan)
    )


def compact_item(item: CompactItem) -> "MergeResult":
    """Do one item. Raises what `Merge.run` raises."""
    from storage.compaction.merge import Merge

    async def work(store: ObjectStore, log: MetadataLog) -> "MergeResult":
        rng = random.SystemRandom()
        return await Merge(store, log, SystemClock(), rng, item.merge, item.rebatch).run()

    return in_cluster(item.path, _WRITER, work)


def compact(
    settings: CompactSettings, *, runner: Runner = here, on_progress: Progress = untold
) -> CompactFigures:
    """Merge all that is due, and return figures. Whatever it raises, run it again."""
    results = worked_through(
        compact_item,
        plan_compact(settings),
        size=lambda item: item.merge.size,
        runner=runner,
        on_progress=on_progress,
    )
    return tallied(CompactFigures(), map(CompactFigures.of, results))
