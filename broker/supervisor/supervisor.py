"""Supervises the nodes of a machine: starts them together, keeps them running, stops them together,
and replaces them one after the other.
"""

import asyncio
import contextlib
from collections.abc import Sequence

import structlog

from lakehead.broker.supervisor.placement import NodeCommand
from lakehead.broker.supervisor.supervised_node import Launch, OnUnhealthy, SupervisedNode
from lakehead.storage.clock import Clock
from lakehead.storage.errors import LakeheadError
from lakehead.storage.tasks import TaskScope, task_group

OTHERS_TIMEOUT_S = 60.0
"""A rolling restart waits this long for a node that is down, before it takes down another."""
_log = structlog.get_logger("broker.supervisor")


class NodeNotStarted(LakeheadError):
    """A node ended before it was ready, and no node of the machine runs now."""


class NodeNotStopped(LakeheadError):
    """A node was told to stop, and had to be killed or ended with an error."""


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
        _log.info("rolling_restart_began", nodes=len(self.nodes))
        for node in self.nodes:
            if not await self._others_ready(node):
                return False
            if not await node.replace():
                _log.error(
                    "rolling_restart_ended",
                    node_id=node.node_id,
                    reason="the node did not come back: it is tried again, the others are left",
                )
                return False
            if node.ended_badly:
                _log.warning("node_not_stopped", node_id=node.node_id, reason=node.ended_badly)
        _log.info("rolling_restart_done")
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
                    "rolling_restart_ended",
                    node_id=other.node_id,
                    reason="this node is down, and a second one must not be",
                )
                return False
        return True
