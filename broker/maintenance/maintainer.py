"""Does what is due in a cluster, job after job; beside its nodes, or without any.

The jobs declare their parts (`lakehead.storage.jobs.job.Maintenance`). Nothing here is needed for
the cluster to serve, and nothing is lost when it is killed or runs twice at once: each change is
one entry of the metadata log, refused where things have changed meanwhile. An item that fails is
logged, counted and tried again in a later turn; the others go on.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import structlog

from lakehead.broker.configs.entries import maintenance_defaults
from lakehead.broker.settings import Settings
from lakehead.storage import jobs
from lakehead.storage.clock import Clock
from lakehead.storage.compaction.packages import INSTALL_KERNELS, are_kernels_installed
from lakehead.storage.errors import LakeheadError
from lakehead.storage.jobs.job import DueItem, Maintenance, OpenCluster
from lakehead.storage.jobs.run_recorder import RunRecorder
from lakehead.storage.maintenance.rules import DueWork, due_in
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.object_store.protocol import ObjectStore

_PAUSE_AFTER_FAILURE_S = 30.0
_log = structlog.get_logger("broker.maintenance")


def _parts() -> Mapping[str, Maintenance[Any, Any, Any]]:
    """The parts of jobs by name, in their order."""
    names = jobs.MAINTENANCE_JOBS
    return {name: import_module(f"{jobs.__name__}.{name}").JOB.maintenance for name in names}


@dataclass(slots=True)
class MaintenanceStatistics:
    """The results of maintenance by job, and how many partitions or other items failed."""

    results: dict[str, Any] = field(default_factory=dict)
    failures: int = 0

    def labelled(self) -> dict[str, int]:
        """Return what people see, by label."""
        return {
            label: getattr(self.results[name], figure)
            for name, part in _parts().items()
            for label, figure in part.figures.items()
        }


class Maintainer:
    """Maintenance of one cluster. `settings` give the defaults of topics' configs."""

    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataLog,
        clock: Clock,
        rng: random.Random,
        settings: Settings,
        record: Callable[[str], AbstractContextManager[RunRecorder]] | None = None,
    ) -> None:
        """`record` records the run of a job in a block."""
        self._parts = _parts()
        self._record = record
        self.figures = MaintenanceStatistics(
            results={name: part.empty for name, part in self._parts.items()}
        )
        self._cluster = OpenCluster(
            store=store,
            metadata=metadata,
            clock=clock,
            rng=rng,
            defaults=maintenance_defaults(settings),
        )
        self._clock = clock
        self._settings = settings
        self._next_at = dict.fromkeys(self._parts, clock.monotonic())
        self._are_kernels_missing_reported = False
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
        """Do what is due, of each job at its interval.

        Raises StoreUnavailable, UnsupportedFormat.
        """
        await self._cluster.metadata.refresh()
        now = self._clock.monotonic()
        works = [one for one in self._works() if self._held_until.get(one.stream_id, now) <= now]
        for name, part in self._parts.items():
            if now < self._next_at[name]:
                continue
            self._next_at[name] = now + self._interval_s(part)
            await self._do(name, part, part.due(self._cluster, works))

    def due_rows(self) -> list[Mapping[str, Any]]:
        """Return what is due, by the metadata alone, in the order of topics and partitions."""
        works = self._works()
        rows = [
            row
            for part in self._parts.values()
            for row in part.rows([one.item for one in part.due(self._cluster, works)])
        ]
        return sorted(
            rows, key=lambda row: (row["topic"] is None, row["topic"] or "", row["partition"] or 0)
        )

    def _works(self) -> list[DueWork]:
        state = self._cluster.metadata.state
        return list(due_in(state, self._cluster.defaults.values(state), self._clock.now_ms()))

    def _interval_s(self, part: Maintenance[Any, Any, Any]) -> float:
        if not part.interval:
            return 0.0
        interval_ms: int = getattr(self._settings, part.interval.replace(".", "_"))
        return interval_ms / 1000

    async def _do(
        self, name: str, part: Maintenance[Any, Any, Any], items: Sequence[DueItem[Any]]
    ) -> None:
        if items and part.needs_kernels and not are_kernels_installed():
            self.figures.failures += sum(max(len(one.streams), 1) for one in items)
            if not self._are_kernels_missing_reported:
                self._are_kernels_missing_reported = True
                _log.warning("compaction_not_installed", job=name, run=INSTALL_KERNELS)
            return
        with self._recorded(name, items) as recorder:
            done = await self._do_all(part, items, recorder)
        for event, fields in part.sum_events(done):
            _log.info(event, **fields)
        self.figures.results[name] = self.figures.results[name].plus(done)

    def _recorded(
        self, name: str, items: Sequence[object]
    ) -> AbstractContextManager[RunRecorder | None]:
        return nullcontext() if self._record is None or not items else self._record(name)

    async def _do_all(
        self,
        part: Maintenance[Any, Any, Any],
        items: Sequence[DueItem[Any]],
        recorder: RunRecorder | None,
    ) -> Any:
        done, failed = part.empty, 0
        for number, one in enumerate(items):
            if recorder is not None:
                recorder.count(number, len(items))
            begun = self._clock.monotonic()
            try:
                result = await part.run(self._cluster, one.item)
            except LakeheadError as error:
                self.figures.failures += max(len(one.streams), 1)
                self._hold(one, self._clock.monotonic())
                _log.warning(part.failed_event, **one.fields, error=str(error))
                failed += 1
                if recorder is not None:
                    recorder.failed(f"{failed} of {len(items)} failed, the last one by: {error}")
                continue
            for event, fields in part.events(one.item, result, self._clock.monotonic() - begun):
                _log.info(event, **fields)
            added = part.result(result)
            if part.is_waiting(added):
                self._hold(one, begun)
            done = done.plus(added)
        if recorder is not None:
            recorder.count(len(items), len(items))
            recorder.found({label: getattr(done, one) for label, one in part.figures.items()})
        return done

    def _hold(self, item: DueItem[Any], since: float) -> None:
        """Leave an item's streams alone for a while."""
        self._held_until.update(dict.fromkeys(item.streams, since + _PAUSE_AFTER_FAILURE_S))
