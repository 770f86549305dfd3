"""Does what is due in a cluster, partition after partition; beside its nodes, or without any.

Nothing here is needed for the cluster to serve, and nothing is lost when it is killed or runs twice
at once: each change is one entry of the metadata log, refused where things have changed meanwhile.
What fails in one partition is logged, counted and tried again in a later turn; the others go on.
"""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import structlog

from broker.configs.entries import broker_values
from broker.maintenance.merging import merge_all
from broker.maintenance.rules import DueWork, due_merges, due_of, youngest_ms
from broker.partition.topic import INTERNAL_TOPICS
from broker.settings import Settings
from storage.clock import Clock
from storage.compaction.merge_plan import MergeItem
from storage.errors import LakeheadError
from storage.jobs.compact import CompactFigures
from storage.metadata.log import MetadataLog
from storage.metadata.records import Record, TrimStream
from storage.metadata.state import ClusterState
from storage.object_store.protocol import ObjectStore

_PAUSE_AFTER_FAILURE_S = 30.0
_log = structlog.get_logger("broker.maintenance")


@dataclass(slots=True)
class MaintenanceFigures:
    """What maintenance has done."""

    compacted: int = 0
    """Partitions compacted."""
    bytes_before: int = 0
    """Bytes of the objects that were replaced."""
    bytes_after: int = 0
    trimmed: int = 0
    """Partitions of which retention removed something."""
    merged: CompactFigures = field(default_factory=CompactFigures)
    """Small objects that were merged."""
    failures: int = 0


class Maintainer:
    """Maintenance of one cluster. `settings` give the defaults of topics' configs.

    Internal topics are left to their coordinators, which keep them short themselves.
    """

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
        for work in self.due():
            is_time = work.is_compaction or is_retention_time
            if is_time and self._held_until.get(work.stream_id, now) <= now:
                await self.perform(work)
        if is_retention_time:
            figures, failures = await merge_all(
                self.due_merges(), self._store, self._metadata, self._clock, self._rng
            )
            self.figures.merged = self.figures.merged.plus(figures)
            self.figures.failures += failures

    def size_of(self, work: DueWork) -> int:
        """Return the bytes of batches that a work is about."""
        stream = self._metadata.state.streams.get(work.stream_id)
        extents = () if stream is None else stream.extents
        return sum(
            one.size for one in extents if work.is_compaction or one.end_offset <= work.offset
        )

    def due_merges(self) -> tuple[MergeItem, ...]:
        """Return which small objects are to be merged, by the metadata alone."""
        state = self._metadata.state
        return due_merges(state, broker_values(state, self._settings))

    def due(self) -> Iterator[DueWork]:
        """Yield what is due, by the metadata alone."""
        state = self._metadata.state
        now_ms = self._clock.now_ms()
        values = broker_values(state, self._settings)
        for name, topic in sorted(state.topics.items()):
            if name not in INTERNAL_TOPICS:
                yield from due_of(state, topic, values, now_ms)

    async def perform(self, work: DueWork) -> None:
        """Do what is due of one partition. What fails is logged and counted."""
        try:
            if work.is_compaction:
                await self._compact(work)
            else:
                await self._trim(work)
        except LakeheadError as error:
            self.figures.failures += 1
            self._held_until[work.stream_id] = self._clock.monotonic() + _PAUSE_AFTER_FAILURE_S
            _log.warning(
                "partition_not_maintained",
                topic=work.topic,
                partition=work.partition,
                work=work.words,
                error=str(error),
            )

    async def _compact(self, work: DueWork) -> None:
        # Nodes import this module for others' sake, and need no kernels.
        from storage.compaction.job import Compaction, CompactionSettings

        values = broker_values(self._metadata.state, self._settings)
        compaction = Compaction(
            self._store,
            self._metadata,
            self._clock,
            self._rng,
            stream_id=work.stream_id,
            settings=CompactionSettings(
                until_ms=youngest_ms(work.rules, self._clock.now_ms()),
                delete_retention_ms=work.rules.delete_retention_ms,
                map_memory=values.number("log.cleaner.dedupe.buffer.size"),
            ),
        )
        begun = self._clock.monotonic()
        result = await compaction.run()
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

    async def _trim(self, work: DueWork) -> None:
        stream_id, offset = work.stream_id, work.offset

        def plan(state: ClusterState) -> list[Record]:
            stream = state.streams.get(stream_id)
            if stream is None or stream.start_offset >= offset:
                return []
            return [TrimStream(stream_id=stream_id, start_offset=offset)]

        await self._metadata.commit_with(plan)
        self.figures.trimmed += 1
        _log.info("retention_applied", topic=work.topic, partition=work.partition, start=offset)
