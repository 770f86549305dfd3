"""The declared tables of a cluster, kept beside its nodes by a process of its own, which lives
while a topic declares a table.

Of the live nodes the one with the lowest id starts `lakehead maintain --follow --tables-only`.
The process runs at a lower priority than the nodes and ends with its node. If the packages of
the lake are not installed, the node logs once that nothing keeps the tables, and the command that
would.
"""

import asyncio
import importlib.util
import os
import sys
from collections.abc import Callable

import structlog
from immutables import Map

from lakehead.broker.maintenance.beside import STDERR, environment
from lakehead.broker.settings import Settings
from lakehead.broker.supervisor.supervisor import BackOff
from lakehead.storage.clock import Clock
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.state import TablesKeeping, TopicState

_STOP_S = 10.0
"""A turn of the process that takes longer is killed: it may be killed anywhere."""
_log = structlog.get_logger("broker.maintenance")


def is_lake_installed() -> bool:
    """Return true if the packages that tables need can be imported."""
    return all(importlib.util.find_spec(name) for name in ("deltalake", "pyarrow", "numba"))


def tables_keeping(settings: Settings, is_lake_installed: Callable[[], bool]) -> TablesKeeping:
    """Return what a node says of itself when it registers."""
    is_on = settings.maintain and settings.maintain_tables
    if not is_on or settings.store_uri.startswith("memory:"):
        return TablesKeeping.OFF
    return TablesKeeping.KEPT if is_lake_installed() else TablesKeeping.NOT_INSTALLED


class TablesBeside:
    """Keeps the process that keeps the tables. `run` is its only task."""

    def __init__(
        self,
        metadata: MetadataLog,
        settings: Settings,
        clock: Clock,
        is_lake_installed: Callable[[], bool],
    ) -> None:
        self.starts = 0
        """Processes started."""
        self.turns = 0
        """Looks at what is declared."""
        self._metadata = metadata
        self._settings = settings
        self._clock = clock
        self._is_lake_installed = is_lake_installed
        self._is_reported = False
        self._topics: Map[str, TopicState] | None = None
        self._declared: list[str] = []
        """The names of those that declare tables."""
        self._process: asyncio.subprocess.Process | None = None
        self._started_at = 0.0
        self._next_start_at = clock.monotonic()
        self._back_off = BackOff()

    @property
    def is_running(self) -> bool:
        """Return true if the process of this node runs."""
        return self._process is not None and self._process.returncode is None

    async def run(self) -> None:
        """Look every maintenance.interval.ms, for ever; the process ends with this task."""
        try:
            while True:
                await asyncio.sleep(self._settings.maintenance_interval_ms / 1000)
                self.turns += 1
                try:
                    await self._turn()
                except OSError as error:
                    _log.error("tables_process_not_started", reason=str(error))
                    self._pause(0.0)
        finally:
            if self._process is not None and self.is_running:
                self._process.kill()
                await self._process.wait()

    async def _turn(self) -> None:
        process = self._process
        if process is not None and process.returncode is not None:
            _log.warning("tables_process_ended", pid=process.pid, status=process.returncode)
            self._pause(self._clock.monotonic() - self._started_at)
            self._process = process = None
        if not self._is_wanted():
            if process is not None:
                await self._stop(process)
        elif process is None and self._clock.monotonic() >= self._next_start_at:
            await self._start()

    def _is_wanted(self) -> bool:
        state = self._metadata.state
        if not state.is_lowest(self._settings.node_id):
            return False
        if state.topics is not self._topics:  # there may be ten thousand
            self._topics = state.topics
            self._declared = [name for name, topic in state.topics.items() if topic.declares_table]
        declared = self._declared
        if declared and not self._is_lake_installed():
            if not self._is_reported:
                self._is_reported = True
                _log.warning(
                    "tables_not_maintained",
                    topics=declared[:10],
                    reason="the packages of the lake are not installed here",
                    run="pip install 'lakehead[lake]', here or on another machine: "
                    f"lakehead materialize --follow --path {self._settings.store_uri}",
                )
            return False
        return bool(declared)

    async def _start(self) -> None:
        self._started_at = self._clock.monotonic()
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "lakehead", "maintain", "--follow", "--tables-only"),
            *("--quiet", "--path", self._settings.store_uri),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=STDERR,
            env={**os.environ, **environment(self._settings)},
            start_new_session=True,  # Ctrl-C is the node's
        )
        self.starts += 1
        _log.info("tables_process_started", pid=self._process.pid)

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
        self._process = None
        _log.info("tables_process_stopped", pid=process.pid)

    def _pause(self, served_s: float) -> None:
        self._next_start_at = self._clock.monotonic() + self._back_off.after(served_s)
