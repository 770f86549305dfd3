"""One node under supervision: kept running, life after life, until it is told to stop.

A node that ends by itself is started again after a pause that grows while it does not get better.
The very first life is different: a node that ends with an error before it ever was ready is not
started again, since what keeps it from starting is most likely a mistake that somebody has to see.
One that was killed or fenced meanwhile made no mistake.
"""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Protocol

import structlog

from lakehead.broker.supervisor.back_off import SERVED_WELL_S, BackOff
from lakehead.broker.supervisor.placement import NodeCommand
from lakehead.storage.clock import Clock

_CLEAN = (0, -signal.SIGTERM)
"""Exit statuses of a process that was told to stop: it did, or it was too young to listen."""
_log = structlog.get_logger("broker.supervisor")


FENCED = 75
"""Exit status of a node that was fenced before it was ready, or whose last process the kernel still
has: EX_TEMPFAIL of sysexits.h.
"""
UNAVAILABLE = 69
"""Exit status of a node that did not reach the object store: EX_UNAVAILABLE of sysexits.h."""
ENDING_S = 5.0
"""A process that has closed its output, or was killed, has ended after this, or cannot end."""
FAILURES_MAX = 6
"""A node that has ended badly so often in a row is no node: its machine is not healthy."""


class Life(Protocol):
    """A process of a node; `node_process.NodeProcess`."""

    pid: int

    async def wait_ready(self) -> str | None:
        """Return where the node takes connections, host:port; None: it ended before."""

    async def wait_ending(self) -> None:
        """Return when it has closed its output: it has ended, or ends."""

    async def wait_ended(self) -> int:
        """Return the exit status; negative: the signal that ended it."""

    def stop(self) -> None:
        """Ask for a clean stop."""

    def kill(self) -> None:
        """End it at once."""


OnUnhealthy = Callable[[str], None]
"""Takes why a node cannot be kept running on this machine. May be called several times."""

Launch = Callable[[NodeCommand], Awaitable[Life]]
"""Starts a process of a node. Raises OSError."""


class Phase(Enum):
    """What a supervised node is at."""

    DOWN = "no process: before the first life, between two, after the last"
    STARTING = "a process that takes no connections yet"
    READY = "a process that does"


class SupervisedNode:
    """Keeps one node running. `run` is its only task; the other methods ask and wait."""

    def __init__(
        self,
        command: NodeCommand,
        launch: Launch,
        clock: Clock,
        *,
        stop_timeout_s: float,
        on_unhealthy: OnUnhealthy | None = None,
    ) -> None:
        self.node_id = command.node_id
        self.phase = Phase.DOWN
        self.address: str = ""
        """Where the node took connections last."""
        self.lives: int = 0
        self.is_over = False
        """Whether no life will follow."""
        self.ended_badly = ""
        """Why the last life that was told to stop did not end well; empty: it did."""
        self._command = command
        self._launch = launch
        self._clock = clock
        self._stop_timeout_s = stop_timeout_s
        self._on_unhealthy = on_unhealthy or _ignore
        self._failures = 0
        self._is_stuck = False
        self._stop_timeout: asyncio.Timeout | None = None
        self._life: Life | None = None
        self._stopping = asyncio.Event()
        self._is_replaced = False
        self._change = asyncio.Event()

    async def run(self) -> None:
        """Start the node again and again, until it is told to stop, or cannot be started at all."""
        back_off = BackOff()
        while not self._stopping.is_set():
            status, served_s = await self._live()
            is_mistake = not self.address and status >= 0 and status != FENCED
            if is_mistake and status != UNAVAILABLE:
                self._on_unhealthy(f"node {self.node_id} did not start, status {status}")
            if self._stopping.is_set() or is_mistake:
                break
            if self._is_replaced:
                self._is_replaced = False
                continue
            self._judge(status, served_s)
            pause_s = back_off.after(served_s)
            _log.warning("node_restarts", node_id=self.node_id, in_s=pause_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
        self.is_over = True
        self._enter(Phase.DOWN)

    async def _live(self) -> tuple[int, float]:
        """Live one life; return its exit status, and for how many seconds it served clients."""
        self.lives += 1
        self._is_stuck = False
        self._enter(Phase.STARTING)
        try:
            life = self._life = await self._launch(self._command)
        except OSError as error:
            _log.error("node_not_launched", node_id=self.node_id, reason=str(error))
            self._enter(Phase.DOWN)
            return 1, 0.0
        self._enter(Phase.STARTING)
        _log.info("node_started", node_id=self.node_id, pid=life.pid)
        status, served_s = -signal.SIGKILL, 0.0
        try:
            async with asyncio.timeout(None) as self._stop_timeout:
                if (address := await life.wait_ready()) is not None:
                    ready_at = self._clock.monotonic()
                    self._became_ready(address)
                    await life.wait_ending()
                    served_s = self._clock.monotonic() - ready_at
                status = await self._reaped(life)
        except TimeoutError:  # it was killed, and cannot end
            pass
        is_wanted = self._stopping.is_set() or self._is_replaced
        say = _log.info if is_wanted and status in _CLEAN else _log.error
        say("node_ended", node_id=self.node_id, pid=life.pid, status=status)
        self._life = None
        self._enter(Phase.DOWN)
        return status, served_s

    async def _reaped(self, life: Life) -> int:
        """Return the exit status of a life that has closed its output. No other life begins before
        it has ended, since it has the lock of its log.
        """
        self._enter(Phase.DOWN)
        try:
            async with asyncio.timeout(ENDING_S):
                return await life.wait_ended()
        except TimeoutError:
            self._note_stuck(life)
        return await life.wait_ended()

    def _note_stuck(self, life: Life) -> None:
        self._is_stuck = True
        _log.error(
            "node_cannot_end",
            node_id=self.node_id,
            pid=life.pid,
            after_s=ENDING_S,
            meaning="the kernel keeps it in a call to a device, until that returns",
        )
        self._on_unhealthy(f"process {life.pid} of node {self.node_id} cannot end")

    def _judge(self, status: int, served_s: float) -> None:
        """Count lives that ended badly in a row. Some tell nothing of this machine: the node was
        fenced, or no machine reaches the store.
        """
        if served_s >= SERVED_WELL_S:
            self._failures = 0
        if status in {FENCED, UNAVAILABLE}:
            return
        self._failures += 1
        if self._failures >= FAILURES_MAX:
            self._on_unhealthy(
                f"node {self.node_id} ended {self._failures} times in a row, "
                f"last with status {status}"
            )

    def _became_ready(self, address: str) -> None:
        if not self.address:  # clients know this port from now on
            self._command = self._command.with_port(int(address.rpartition(":")[2]))
        self.address = address
        self._enter(Phase.READY)

    async def wait_settled(self) -> bool:
        """Wait until the node is ready, or its present life has ended. Return whether it is ready.

        Between two lives, the next one is waited for.
        """
        life = self.lives + (self.phase is Phase.DOWN)
        await self._wait(
            lambda: self.is_over or (self.lives >= life and self.phase is not Phase.STARTING)
        )
        return self.phase is Phase.READY

    async def replace(self) -> bool:
        """End the present life cleanly, and wait for the next. Return whether that became ready."""
        if self._life is not None:
            life, self._is_replaced = self.lives, True
            await self._end(self._life)
            await self._wait(lambda: self.is_over or self.lives > life or self._is_stuck)
            if self._is_stuck:
                return False
        return await self.wait_settled()

    async def stop(self) -> None:
        """Stop for good, cleanly if that comes to an end in time."""
        self._stopping.set()
        await self._wait(lambda: self.is_over or self._life is not None)
        if self._life is not None:
            await self._end(self._life)
            await self._wait(lambda: self.is_over)

    def kill(self) -> None:
        """End the present life at once."""
        if self._life is not None:
            self._life.kill()

    async def _end(self, life: Life) -> None:
        self.ended_badly = ""
        life.stop()
        try:
            async with asyncio.timeout(self._stop_timeout_s):
                status = await life.wait_ended()
        except TimeoutError:
            life.kill()
            self.ended_badly = f"it did not stop within {self._stop_timeout_s:.0f} s and was killed"
            await self._await_killed(life)
        else:
            if status not in _CLEAN:
                self.ended_badly = f"it stopped with status {status}"

    async def _await_killed(self, life: Life) -> None:
        """Wait for the end of a killed process; to stop for good, give it up if it cannot end."""
        try:
            async with asyncio.timeout(ENDING_S):
                await life.wait_ended()
        except TimeoutError:
            self.ended_badly += f", and process {life.pid} cannot end: a device does not answer"
            self._note_stuck(life)
            if self._stopping.is_set() and self._stop_timeout is not None and self._life is life:
                self._stop_timeout.reschedule(asyncio.get_running_loop().time())

    async def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._change.wait()

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        changed, self._change = self._change, asyncio.Event()
        changed.set()


def _ignore(_reason: str) -> None:
    """Do nothing: no group replaces this machine."""
