"""Does what is due in a cluster, partition after partition; beside its nodes, or without any.

Nothing here is needed for the cluster to serve, and nothing is lost when it is killed or runs twice
at once: each change is one entry of the metadata log, refused where things have changed meanwhile.
What fails in one partition is logged, counted and tried again in a later turn; the others go on.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import structlog

from lakehead.broker.configs.entries import upkeep_defaults
from lakehead.broker.settings import Settings
from lakehead.storage.clock import Clock
from lakehead.storage.compaction.object_compaction_plan import MergeItem, MergeRules
from lakehead.storage.errors import LakeheadError
from lakehead.storage.jobs.compact_objects import CompactObjectsResult
from lakehead.storage.maintenance.configs import MaintenanceValues
from lakehead.storage.maintenance.retention import trim, trim_groups
from lakehead.storage.maintenance.rules import DueWork, due_in, due_merges
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.object_store.protocol import ObjectStore

_PAUSE_AFTER_FAILURE_S = 30.0
_log = structlog.get_logger("broker.maintenance")


@dataclass(slots=True)
class MaintenanceFigures:
    """The results of maintenance."""

    compacted: int = 0
    """Partitions compacted."""
    bytes_before: int = 0
    """Bytes of the objects that were replaced."""
    bytes_after: int = 0
    trimmed: int = 0
    """Partitions of which retention removed something."""
    merged: CompactObjectsResult = field(default_factory=CompactObjectsResult)
    """Small objects that were merged."""
    failures: int = 0


class Maintainer:
    """Maintenance of one cluster. `settings` give the defaults of topics' configs."""

    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataLog,
        clock: Clock,
        rng: random.Random,
        settings: Settings,
    ) -> None:
        self.figures = MaintenanceFigures()
        self._store = store
        self._metadata = metadata
        self._clock = clock
        self._rng = rng
        self._settings = settings
        self._defaults = upkeep_defaults(settings)
        self._retained_next = clock.monotonic()
        self._held_until: dict[int, float] = {}
        """Streams in which something failed, and when they are tried again (monotonic)."""

    async def run(self) -> None:
        """Take a turn every maintenance.interval.ms, for ever."""
        while True:
            try:
                await self.turn()
            except LakeheadError as error:
                self.figures.failures += 1
                _log.warning("maintenance_failed", error=str(error))
            await asyncio.sleep(self._settings.maintenance_interval_ms / 1000)

    async def turn(self) -> None:
        """Do what is due; retention and merging every log.retention.check.interval.ms.

        Raises StoreUnavailable, UnsupportedFormat.
        """
        await self._metadata.refresh()
        now = self._clock.monotonic()
        is_retention_time = now >= self._retained_next
        if is_retention_time:
            self._retained_next = now + self._settings.log_retention_check_interval_ms / 1000
        due = [one for one in self.due() if self._held_until.get(one.stream_id, now) <= now]
        if is_retention_time:
            for works in trim_groups(due):
                await self._attempt(works)
        for work in due:
            if work.is_compaction:
                await self._attempt((work,))
        if is_retention_time:
            figures, failures = await merge_all(
                self.due_merges(), self._store, self._metadata, self._clock, self._rng
            )
            self.figures.merged = self.figures.merged.plus(figures)
            self.figures.failures += failures

    def due_merges(self) -> tuple[MergeItem, ...]:
        """Return which small objects are to be merged, by the metadata alone."""
        return due_merges(self._metadata.state, self._values(), MergeRules())

    def due(self) -> Iterator[DueWork]:
        """Yield what is due of partitions, by the metadata alone."""
        return due_in(self._metadata.state, self._values(), self._clock.now_ms())

    def _values(self) -> MaintenanceValues:
        return self._defaults.values(self._metadata.state)

    async def _attempt(self, works: Sequence[DueWork]) -> None:
        """Compact a partition, or remove what is due of some. What fails is logged and counted."""
        first = works[0]
        try:
            if first.is_compaction:
                await self._compact(first)
            else:
                await self._trim(works)
        except LakeheadError as error:
            self.figures.failures += len(works)
            until = self._clock.monotonic() + _PAUSE_AFTER_FAILURE_S
            self._held_until.update(dict.fromkeys((one.stream_id for one in works), until))
            _log.warning(
                "partition_not_maintained",
                topic=first.topic,
                partition=first.partition,
                partitions=len(works),
                work=first.words,
                error=str(error),
            )

    async def _compact(self, work: DueWork) -> None:
        # Whoever only looks what is due needs no kernels.
        from lakehead.storage.compaction.log_compaction import Superseded
        from lakehead.storage.maintenance.partition_compaction import compact_partition

        begun = self._clock.monotonic()
        try:
            result = await compact_partition(
                self._store, self._metadata, self._clock, self._rng, work, self._values()
            )
        except Superseded as error:  # another process was quicker
            _log.info(
                "partition_skipped", topic=work.topic, partition=work.partition, reason=str(error)
            )
            return
        if not result.passes:  # look again later
            self._held_until[work.stream_id] = begun + _PAUSE_AFTER_FAILURE_S
            _log.info(
                "partition_not_compacted",
                topic=work.topic,
                partition=work.partition,
                reason="a transaction is open, or log.cleaner.dedupe.buffer.size is too small",
            )
            return
        self.figures.compacted += 1
        self.figures.bytes_before += result.bytes_before
        self.figures.bytes_after += result.bytes_after
        _log.info(
            "partition_compacted",
            topic=work.topic,
            partition=work.partition,
            passes=result.passes,
            bytes_before=result.bytes_before,
            bytes_after=result.bytes_after,
            unreadable=result.unreadable,
            seconds=round(self._clock.monotonic() - begun, 3),
        )

    async def _trim(self, works: Sequence[DueWork]) -> None:
        trimmed = await trim(self._metadata, works, self._defaults, self._clock.now_ms())
        self.figures.trimmed += len(trimmed)
        for one in trimmed:
            _log.info(
                "retention_applied",
                topic=one.topic,
                partition=one.partition,
                start=one.start_offset,
                bytes=one.size,
            )


async def merge_all(
    items: tuple[MergeItem, ...],
    store: ObjectStore,
    metadata: MetadataLog,
    clock: Clock,
    rng: random.Random,
) -> tuple[CompactObjectsResult, int]:
    """Do what is due, and return figures and how many items failed: they are logged."""
    from lakehead.storage.compaction.object_compaction import (
        ObjectCompaction,  # its kernels are for those alone who merge
    )

    figures, failures = CompactObjectsResult(), 0
    for item in items:
        try:
            result = await ObjectCompaction(store, metadata, clock, rng, item).run()
            figures = figures.plus(CompactObjectsResult.of(result))
        except LakeheadError as error:
            failures += 1
            _log.warning(
                "objects_not_compacted",
                streams=item.streams[:5],
                first=item.sources[0],
                error=str(error),
            )
    if figures.items:
        _log.info(
            "objects_compacted",
            before=figures.objects_before,
            after=figures.objects_after,
            bytes=figures.bytes_before,
        )
    return figures, failures
