"""Supervises the nodes of a machine: starts them together, keeps them running, stops them together,
and replaces them one after the other.
"""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Protocol

import structlog

from lakehead.broker.supervisor.placement import NodeCommand
from lakehead.storage.clock import Clock
from lakehead.storage.errors import LakeheadError
from lakehead.storage.tasks import TaskScope, task_group

FIRST_S = 1.0
"""Time for the other nodes to notice and to take over; a node that is back at once is quicker."""
LONGEST_S = 30.0
SERVED_WELL_S = 60.0
"""A node that served for so long is not one that ends again and again."""


OTHERS_TIMEOUT_S = 60.0
"""A rolling restart waits this long for a node that is down, before it takes down another."""
_CLEAN = (0, -signal.SIGTERM)
"""Exit statuses of a process that was stopped: cleanly, or before it handled signals."""
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
"""Number of failures in a row after which the machine counts as unhealthy."""


class BackOff:
    """The pauses before a node's next lives: doubled from life to life, until one goes well."""

    def __init__(self) -> None:
        self._next_s = FIRST_S

    def after(self, served_s: float) -> float:
        """Return the pause, in seconds, after a life that served clients for `served_s`."""
        if served_s >= SERVED_WELL_S:
            self._next_s = FIRST_S
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, LONGEST_S)
        return pause_s


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
        """Request a clean stop."""

    def kill(self) -> None:
        """End it at once."""


OnUnhealthy = Callable[[str], None]
"""Takes why a node cannot be kept running on this machine. May be called several times."""

Launch = Callable[[NodeCommand], Awaitable[Life]]
"""Starts a process of a node. Raises OSError."""


class Phase(Enum):
    """The phase of a supervised node."""

    DOWN = "no process: before the first life, between two, after the last"
    STARTING = "a process that takes no connections yet"
    READY = "a process that does"


class SupervisedNode:
    """Keeps one node running. `run` is its only task; the other methods send it requests and
    wait.
    """

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
        """The address at which the node took connections last."""
        self.lives: int = 0
        self.is_over = False
        """True if no life will follow."""
        self.ended_badly = ""
        """The fault of the last life that got a signal to stop and did not end well; empty:
        none.
        """
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
        """Start the node again and again, until it is stopped, or cannot be started at all."""
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
        """Count lives that ended badly in a row. Some do not count against this machine: the node
        was fenced, or no machine reaches the store.
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
            self.ended_badly += f", and process {life.pid} cannot end: a device does not respond"
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


class NodeNotStarted(LakeheadError):
    """A node ended before it was ready, and no node of the machine runs now."""


class NodeNotStopped(LakeheadError):
    """A node was stopped, and had to be killed or ended with an error."""


class Supervisor:
    """The nodes of a machine. `scope` holds the tasks that keep them."""

    def __init__(
        self,
        commands: Sequence[NodeCommand],
        launch: Launch,
        clock: Clock,
        scope: TaskScope,
        *,
        stop_timeout_s: float,
        on_unhealthy: OnUnhealthy | None = None,
    ) -> None:
        self.nodes = tuple(
            SupervisedNode(
                command,
                launch,
                clock,
                stop_timeout_s=stop_timeout_s,
                on_unhealthy=on_unhealthy,
            )
            for command in commands
        )
        self._scope = scope
        self._is_started = False
        self._rolling: asyncio.Task[bool] | None = None

    async def start(self) -> list[str]:
        """Start all nodes at once; return their addresses when all are ready.

        Raises NodeNotStarted when one cannot be started; the others have been stopped then.
        """
        for node in self.nodes:
            self._scope.spawn(node.run(), name=f"keep node {node.node_id}")
        try:
            async with task_group() as group:
                for node in self.nodes:
                    group.create_task(self._first_life(node))
        except NodeNotStarted:
            with contextlib.suppress(NodeNotStopped):
                await self.stop()
            raise
        self._is_started = True
        return [node.address for node in self.nodes]

    @staticmethod
    async def _first_life(node: SupervisedNode) -> None:
        while not await node.wait_settled() and not node.address:
            if node.is_over:
                raise NodeNotStarted(
                    f"node {node.node_id} did not start, and the others were stopped: "
                    "what it said is above"
                )

    async def stop(self) -> None:
        """Stop all nodes at once. Raises NodeNotStopped when one does not end well."""
        if self._rolling is not None:
            self._rolling.cancel()
        async with asyncio.TaskGroup() as group:
            for node in self.nodes:
                group.create_task(node.stop())
        bad = [
            f"node {node.node_id}: {node.ended_badly}" for node in self.nodes if node.ended_badly
        ]
        if bad:
            raise NodeNotStopped("; ".join(bad))

    def kill(self) -> None:
        """End the processes of all nodes at once."""
        for node in self.nodes:
            node.kill()

    def restart_nowait(self) -> None:
        """Begin a rolling restart, unless one is under way, or the nodes are still starting."""
        if not self._is_started or (self._rolling is not None and not self._rolling.done()):
            _log.warning("rolling_restart_refused", reason="nodes are being started")
            return
        self._rolling = self._scope.spawn(self.rolling_restart(), name="rolling restart")

    async def rolling_restart(self) -> bool:
        """Replace node after node, never with two of them down. Return whether all were replaced.

        It ends where a node does not come back: the others go on as they are.
        """
        _log.info("rolling_restart_started", nodes=len(self.nodes))
        for node in self.nodes:
            if not await self._others_ready(node):
                return False
            if not await node.replace():
                _log.error(
                    "rolling_restart_aborted",
                    node_id=node.node_id,
                    reason="the node did not come back: it is tried again, the others are left",
                )
                return False
            if node.ended_badly:
                _log.warning("node_not_stopped", node_id=node.node_id, reason=node.ended_badly)
        _log.info("rolling_restart_completed")
        return True

    async def _others_ready(self, next_one: SupervisedNode) -> bool:
        for other in self.nodes:
            if other is next_one:
                continue
            try:
                async with asyncio.timeout(OTHERS_TIMEOUT_S):
                    while not await other.wait_settled() and not other.is_over:
                        pass
            except TimeoutError:
                _log.error(
                    "rolling_restart_aborted",
                    node_id=other.node_id,
                    reason="this node is down, and a second one must not be",
                )
                return False
        return True
