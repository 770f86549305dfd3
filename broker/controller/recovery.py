"""Who commits what a dead node left in its write-ahead log, and the tasks that do it.

Any survivor that reaches the log can. Which one does follows from the state at the entry that
fenced the node, the same on every node; it stays so until that one is fenced itself. So two do not
get in each other's way, and several dead nodes are spread over the survivors. One that lives and
does not get it done is joined by the others, one after the other.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from lakehead.storage.errors import LakeheadError
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.state import ClusterState, NodeState
from lakehead.storage.stream.left_logs import may_reach_device, reaches
from lakehead.storage.tasks import TaskScope

_log = structlog.get_logger("broker.recovery")

_RETRY_S = 1.0
_RETRY_MAX_S = 30.0
_NOBODY = -1
STEP_IN_S = 10.0
"""Each further node tries a recovery that is not done so much later."""

TakeOver = Callable[[NodeState], Awaitable[int]]
"""Fences the node's log, commits what counts of it, and returns how much that was."""


def recoverers(state: ClusterState, dead: NodeState) -> list[int]:
    """Return who can recover a dead node; whose turn is first comes first."""
    able = sorted(
        node.node_id for node in state.nodes.values() if not node.is_fenced and reaches(node, dead)
    )
    first = dead.node_id % len(able) if able else 0
    return able[first:] + able[:first]


def last_resorts(state: ClusterState, dead: NodeState) -> list[int]:
    """Return who may try, if nobody reaches the log for certain: hosts that may have its device."""
    live = [node for node in state.nodes.values() if not node.is_fenced]
    return sorted(node.node_id for node in live if may_reach_device(state, node, dead))


def unrecovered(state: ClusterState) -> list[NodeState]:
    """Return the fenced nodes that still have streams open: these wait for what is in their logs.

    One that stopped cleanly has none, and is left to its next start.
    """
    fenced = {n: known for n, known in state.nodes.items() if known.is_fenced}
    fenced = {n: known for n, known in fenced.items() if not known.is_recovered}
    if not fenced:
        return []
    owners = {stream.node_id for stream in state.streams.values() if stream.is_open}
    return [fenced[node_id] for node_id in sorted(owners & fenced.keys())]


class Recoveries:
    """One for each node: does those that fall to it."""

    def __init__(
        self,
        node_id: int,
        metadata: MetadataLog,
        scope: TaskScope,
        take_over: TakeOver,
    ) -> None:
        self.recovered_total = 0
        """Dead nodes whose logs this node has committed."""
        self._node_id = node_id
        self._metadata = metadata
        self._scope = scope
        self._take_over = take_over
        self._seen = _signs(metadata.state)
        self._chosen: dict[tuple[int, int], int] = {}
        self._running: set[tuple[int, int]] = set()
        self._is_news = asyncio.Event()

    def start(self) -> None:
        """Begin to look out for the dead."""
        self._metadata.subscribe(self._changed)
        self._look(self._metadata.state)

    def _changed(self, state: ClusterState) -> None:
        signs = _signs(state)
        if signs != self._seen:
            self._seen = signs
            self._look(state)

    def _look(self, state: ClusterState) -> None:
        waiting = {(dead.node_id, dead.epoch): dead for dead in unrecovered(state)}
        self._chosen = {key: who for key, who in self._chosen.items() if key in waiting}
        for key, dead in waiting.items():
            able = recoverers(state, dead)
            if self._chosen.get(key) not in able:
                self._chosen[key] = able[0] if able else _NOBODY
                self._note_choice(dead, self._chosen[key])
            turns = able or [_NOBODY, *last_resorts(state, dead)]
            if self._node_id in turns and key not in self._running:
                self._running.add(key)
                step_in_s = STEP_IN_S * turns.index(self._node_id)
                task = self._scope.spawn_duty(
                    partial(self._recover, dead, step_in_s), name=f"recover node {dead.node_id}"
                )
                task.add_done_callback(partial(self._ended, key))
        self._is_news.set()

    async def _recover(self, dead: NodeState, step_in_s: float) -> None:
        """Recover a node once this one is chosen for it, or nobody has for so long."""
        key, pause_s = (dead.node_id, dead.epoch), _RETRY_S
        loop = asyncio.get_running_loop()
        step_in_at = loop.time() + step_in_s
        while (chosen := self._chosen.get(key)) is not None:
            left_s = step_in_at - loop.time()
            if chosen != self._node_id and left_s > 0:
                await self._wait_news(left_s)
                continue
            try:
                found = await self._take_over(dead)
            except LakeheadError as error:
                _log.error("recovery_failed", dead_id=dead.node_id, error=str(error))
                await self._wait_news(pause_s)
                pause_s = min(2 * pause_s, _RETRY_MAX_S)
                continue
            self.recovered_total += 1
            _log.info("node_recovered", dead_id=dead.node_id, epoch=dead.epoch, found=found)
            return

    def _ended(self, key: tuple[int, int], _: asyncio.Task[None]) -> None:
        self._running.discard(key)

    async def _wait_news(self, seconds: float) -> None:
        """Wait so long, or until the state of nodes has changed."""
        self._is_news.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._is_news.wait()
        except TimeoutError:
            pass

    def _note_choice(self, dead: NodeState, chosen: int) -> None:
        if chosen == _NOBODY:
            _log.error(
                "nobody_reaches_the_log",
                dead_id=dead.node_id,
                wal=dead.wal,
                host_id=dead.host_id,
                advice="its partitions come back when it starts again; if it never will, "
                "an unclean election gives up what is in the log",
            )


def _signs(state: ClusterState) -> frozenset[tuple[int, int, bool, bool]]:
    """Return what recoveries depend on; most entries change nothing of it."""
    return frozenset(
        (known.node_id, known.epoch, known.is_fenced, known.is_recovered)
        for known in state.nodes.values()
    )
