"""Maintenance beside the nodes of a cluster, in a process of its own that lives while work is due.

The live node with the lowest id finds due work in the metadata that it follows anyway, and starts
`lakehead maintain`. Serving is not disturbed. Without due work nothing runs, and no request goes to
the object store.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping

import structlog

from lakehead.broker.configs.entries import maintenance_defaults, shown
from lakehead.broker.setting_sources import SETTINGS
from lakehead.broker.settings import Settings
from lakehead.broker.supervisor.lifeline import SUPERVISOR
from lakehead.storage.clock import Clock
from lakehead.storage.compaction.object_compaction_plan import MergeRules
from lakehead.storage.compaction.packages import INSTALL_KERNELS, are_kernels_installed
from lakehead.storage.errors import LakeheadError
from lakehead.storage.maintenance.rules import (
    DueWork,
    due_merges,
    due_of_stream,
    is_compacted,
    topic_rules,
)
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.state import INTERNAL_TOPICS

_PAUSE_WITHOUT_PROGRESS_S = 30.0
_LAG_S = 15.0
"""Interval of checks for lag of compaction while nothing has changed (Kafka's back-off)."""
_SLICE_S = 0.005
STDERR = 2
"""The output of processes of a node. By the node's standard output its supervisor knows that it has
ended, which another process that has it must not hide.
"""
_log = structlog.get_logger("broker.maintenance")


class _TimeSlice:
    """The time until work gives way to that of the node: one topic may have 100,000 partitions."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun = clock.monotonic()

    async def step(self) -> None:
        """Call this before each step of less than a millisecond."""
        if self._clock.monotonic() - self._begun >= _SLICE_S:
            await asyncio.sleep(0)
            self._begun = self._clock.monotonic()


class MaintenanceBeside:
    """Starts maintenance for a node. `run` is its only task."""

    def __init__(
        self,
        metadata: MetadataLog,
        settings: Settings,
        clock: Clock,
        are_kernels_installed: Callable[[], bool] = are_kernels_installed,
    ) -> None:
        self.runs = 0
        """Processes started."""
        self.failures = 0
        """Processes that could not be started, or did not end well."""
        self.due = 0
        """Partitions of which something was due at the last look."""
        self._metadata = metadata
        self._settings = settings
        self._defaults = maintenance_defaults(settings)
        self._clock = clock
        self._are_kernels_installed = are_kernels_installed
        self._is_reported = False
        self._seen_entry, self._seen_at = -1, clock.monotonic()
        self._retained_at = clock.monotonic()
        self._is_retention_time = False
        self._held: dict[int, tuple[int, float]] = {}
        """Streams in which a run has moved nothing: from which offset, and until when (monotonic
        seconds) no process is started for that.
        """

    async def run(self) -> None:
        """Look every maintenance.interval.ms, for ever: a duty of the node."""
        while True:
            await asyncio.sleep(self._settings.maintenance_interval_ms / 1000)
            try:
                await self.turn()
            except LakeheadError as error:
                _log.warning("maintenance_failed", error=str(error))

    async def turn(self) -> None:
        """Have what is due done by a process, and wait for its end. Raises StoreUnavailable."""
        if self._metadata.state.is_lowest(self._settings.node_id):
            work = await self._due()
            self.due = len(work)
            if work or await self._are_merges_due():
                await self._maintain(work)

    async def _due(self) -> list[DueWork]:
        """Return what is due: of compaction when the metadata have changed, or a while has passed;
        of retention every log.retention.check.interval.ms.
        """
        state, now = self._metadata.state, self._clock.monotonic()
        interval_s = self._settings.log_retention_check_interval_ms / 1000
        is_retention_time = self._is_retention_time = now - self._retained_at >= interval_s
        if is_retention_time:
            self._retained_at = now
        elif state.next_entry == self._seen_entry and now - self._seen_at < _LAG_S:
            return []
        self._seen_entry, self._seen_at = state.next_entry, now
        self._held = {key: held for key, held in self._held.items() if held[1] > now}
        found: list[DueWork] = []
        values, now_ms = self._defaults.values(state), self._clock.now_ms()
        time_slice = _TimeSlice(self._clock)
        for name, topic in state.topics.items():
            await time_slice.step()
            is_looked_at = is_retention_time or is_compacted(topic, values)
            if name in INTERNAL_TOPICS or not is_looked_at:
                continue
            rules = topic_rules(topic.configs, values)
            for stream_id in topic.partitions:
                await time_slice.step()
                work = due_of_stream(state, topic, stream_id, rules, now_ms)
                if work is not None:
                    found.append(work)
        if not self._are_kernels_installed():
            self._report_missing([one.topic for one in found if one.is_compaction])
            found = [one for one in found if not one.is_compaction]
        return [one for one in found if self._held.get(one.stream_id, (-1, 0))[0] != one.offset]

    def _report_missing(self, topics: list[str]) -> None:
        """Report once that the packages for compaction are not here."""
        if topics and not self._is_reported:
            self._is_reported = True
            _log.warning(
                "compaction_not_installed",
                topics=sorted(set(topics))[:10],
                run=f"{INSTALL_KERNELS}, here or on another machine: "
                f"lakehead maintain --follow --path {self._settings.store_uri}",
            )

    async def _are_merges_due(self) -> bool:
        """Return true if object compaction is due; checked when retention is."""
        if not self._is_retention_time or not self._are_kernels_installed():
            return False
        state = self._metadata.state
        values = self._defaults.values(state)
        return bool(await asyncio.to_thread(due_merges, state, values, MergeRules()))

    async def _maintain(self, work: list[DueWork]) -> None:
        self.runs += 1
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "lakehead", "maintain", "--quiet", "--no-lake"),
                *("--path", self._settings.store_uri),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=STDERR,
                env={**os.environ, **environment(self._settings)},
                start_new_session=True,  # Ctrl-C is the node's
            )
        except OSError as error:
            self.failures += 1
            _log.error("maintenance_not_started", reason=str(error))
            self._hold(work)
            return
        try:
            status = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()  # it may be killed anywhere
                await process.wait()
        if status:
            self.failures += 1
            _log.warning("maintenance_ended", pid=process.pid, status=status)
        await self._metadata.refresh()
        still = {(one.stream_id, one.offset) for one in await self._due_again()}
        self._hold([one for one in work if (one.stream_id, one.offset) in still])

    async def _due_again(self) -> list[DueWork]:
        self._seen_entry = -1
        return await self._due()

    def _hold(self, work: list[DueWork]) -> None:
        until = self._clock.monotonic() + _PAUSE_WITHOUT_PROGRESS_S
        self._held.update({one.stream_id: (one.offset, until) for one in work})


def environment(settings: Settings) -> Mapping[str, str]:
    """Return the environment by which a process gets the settings of this one, and ends with it."""
    given = {
        setting.environment: shown(getattr(settings, setting.field))
        for setting in SETTINGS
        if getattr(settings, setting.field) != setting.default
    }
    return {**given, SUPERVISOR: str(os.getpid())}
