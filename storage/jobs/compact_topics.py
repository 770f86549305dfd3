"""The job `compact-topic`: of topics with cleanup.policy=compact, the newest record of each key
stays.

Plan: the partitions that are dirty enough, or have waited long enough, by configs and metadata
alone. Work: each item compacts one of them, if that is due still (`storage.compaction.job`).
"""

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
from storage.upkeep.rules import DueWork, due_of_stream, topic_rules

if TYPE_CHECKING:  # its kernels are for those alone who compact
    from storage.compaction.job import CompactionResult

_WRITER = "compact-topic"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactTopicsSettings:
    """What to look at of the cluster at `path`, a store's URI: these `topics`, or all. `defaults`
    count where a topic does not say how it is compacted.
    """

    path: str
    topics: frozenset[str] = frozenset()
    defaults: UpkeepDefaults = field(default_factory=UpkeepDefaults)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactTopicsItem:
    """One partition, for any process."""

    path: str
    work: DueWork
    defaults: UpkeepDefaults

    @property
    def size(self) -> int:
        """Bytes of batches in the partition."""
        return self.work.size

    def words(self) -> str:
        """Which partition this is, for people."""
        return f"{self.work.topic}-{self.work.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactTopicsResult:
    """What became of an item: None where it was not due any more, or another run was quicker."""

    compaction: "CompactionResult | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactTopicsFigures(Figures):
    """What a run has done, in bytes of batches. `superseded` partitions were compacted, trimmed or
    deleted by others meanwhile; `waiting` ones have an open transaction, or more keys in one batch
    than log.cleaner.dedupe.buffer.size has room for. `unreadable` batches stay as they are.
    `failures` says in words which partitions could not be compacted.
    """

    partitions: int = 0
    superseded: int = 0
    waiting: int = 0
    objects_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    unreadable: int = 0
    failures: tuple[str, ...] = ()

    @classmethod
    def of(cls, result: CompactTopicsResult | Failed) -> "CompactTopicsFigures":
        """Return the figures of one item."""
        if isinstance(result, Failed):
            return cls(failures=(result.reason,))
        done = result.compaction
        if done is None:
            return cls(superseded=1)
        return cls(
            partitions=int(done.passes > 0),
            waiting=int(done.passes == 0),
            objects_after=done.objects,
            bytes_before=done.bytes_before,
            bytes_after=done.bytes_after,
            unreadable=done.unreadable,
        )


def plan_compact_topics(settings: CompactTopicsSettings) -> tuple[CompactTopicsItem, ...]:
    """Return what is due: what a dry run shows. Raises SettingsError, UnknownTopic,
    StoreUnavailable.
    """
    works = due_works(settings.path, _WRITER, settings.topics, settings.defaults)
    return tuple(
        CompactTopicsItem(path=settings.path, work=work, defaults=settings.defaults)
        for work in works
        if work.is_compaction
    )


def compact_topics_item(item: CompactTopicsItem) -> CompactTopicsResult:
    """Compact one partition, if that is due still.

    Raises StoreUnavailable, CorruptObject, UnsupportedFormat, OutcomeUnknown; ObjectNotFound when
    data is lost.
    """
    from storage.compaction.job import Superseded
    from storage.upkeep.partition_compaction import compact_partition

    async def work(store: ObjectStore, log: MetadataLog) -> CompactTopicsResult:
        clock, values = SystemClock(), item.defaults.values(log.state)
        topic = log.state.topics.get(item.work.topic)
        if topic is None:
            return CompactTopicsResult(compaction=None)
        rules = topic_rules(topic.configs, values)
        due = due_of_stream(log.state, topic, item.work.stream_id, rules, clock.now_ms())
        if due is None or not due.is_compaction:
            return CompactTopicsResult(compaction=None)
        rng = random.SystemRandom()
        try:
            done = await compact_partition(store, log, clock, rng, due, values)
        except Superseded:
            return CompactTopicsResult(compaction=None)
        return CompactTopicsResult(compaction=done)

    return in_cluster(item.path, _WRITER, work)


def compact_topics(
    settings: CompactTopicsSettings, *, runner: Runner = here, on_progress: Progress = untold
) -> CompactTopicsFigures:
    """Compact all that is due, and return figures; a partition that fails does not stop the others.

    Raises what `plan_compact_topics` raises.
    """
    results = worked_through(
        Attempt(compact_topics_item, CompactTopicsItem.words),
        plan_compact_topics(settings),
        size=lambda item: item.size,
        runner=runner,
        on_progress=on_progress,
    )
    return tallied(CompactTopicsFigures(), map(CompactTopicsFigures.of, results))
