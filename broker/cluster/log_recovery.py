"""Recovery of the write-ahead logs of dead nodes: choose a live node, which commits what counts.

Any live node that reaches the log can recover it. The choice follows from the state at the entry
that fenced the node, so every node makes the same one. It stands until the chosen node is fenced
itself. So no two nodes compete, and several dead nodes are spread over the live ones. If the chosen
node lives and does not finish, the others join it, one after the other.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from lakehead.storage.errors import LakeheadError
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.state import MetadataImage, NodeState
from lakehead.storage.stream.unrecovered_wals import may_reach_device, reaches
from lakehead.storage.tasks import TaskScope

_log = structlog.get_logger("broker.recovery")

_RETRY_S = 1.0
_RETRY_MAX_S = 30.0
_NO_NODE = -1
STEP_IN_S = 10.0
"""Delay after which each further node tries a recovery that is not done."""

TakeOver = Callable[[NodeState], Awaitable[int]]
"""Fences a node's log, commits its acknowledged data and returns the number of objects."""


def recoverers(state: MetadataImage, dead: NodeState) -> list[int]:
    """Return the nodes that can recover a dead node's log, in the order of their turns."""
    able = sorted(
        node.node_id for node in state.nodes.values() if not node.is_fenced and reaches(node, dead)
    )
    first = dead.node_id % len(able) if able else 0
    return able[first:] + able[:first]


def last_resorts(state: MetadataImage, dead: NodeState) -> list[int]:
    """Return the nodes that may try if no node certainly reaches the log: those on hosts that may
    have its device.
    """
    live = [node for node in state.nodes.values() if not node.is_fenced]
    return sorted(node.node_id for node in live if may_reach_device(state, node, dead))


def unrecovered(state: MetadataImage) -> list[NodeState]:
    """Return the fenced nodes that have streams open, which wait for the recovery of their logs;
    and those of whose logs something was inherited and not uploaded.

    A node that stopped cleanly has none; its own next start recovers its log.
    """
    fenced = {n: known for n, known in state.nodes.items() if known.is_fenced}
    fenced = {n: known for n, known in fenced.items() if not state.is_settled(known)}
    if not fenced:
        return []
    waiting = set(state.tails.values())
    if any(not known.is_recovered for known in fenced.values()):
        waiting |= {stream.node_id for stream in state.streams.values() if stream.is_open}
    return [fenced[node_id] for node_id in sorted(waiting & fenced.keys())]


class LogRecovery:
    """Recovers the logs that this node is chosen for. One for each node."""

    def __init__(
        self,
        node_id: int,
        metadata: MetadataLog,
        scope: TaskScope,
        take_over: TakeOver,
    ) -> None:
        self.recovered_total = 0
        """Number of dead nodes whose logs this node has committed."""
        self._node_id = node_id
        self._metadata = metadata
        self._scope = scope
        self._take_over = take_over
        self._seen = _node_states(metadata.state)
        self._chosen: dict[tuple[int, int], int] = {}
        self._running: set[tuple[int, int]] = set()
        self._has_changed = asyncio.Event()

    def start(self) -> None:
        """Start the recoveries that are due, now and later."""
        self._metadata.subscribe(self._changed)
        self._check(self._metadata.state)

    def _changed(self, state: MetadataImage) -> None:
        node_states = _node_states(state)
        if node_states != self._seen:
            self._seen = node_states
            self._check(state)

    def _check(self, state: MetadataImage) -> None:
        waiting = {(dead.node_id, dead.epoch): dead for dead in unrecovered(state)}
        self._chosen = {key: chosen for key, chosen in self._chosen.items() if key in waiting}
        for key, dead in waiting.items():
            able = recoverers(state, dead)
            if self._chosen.get(key) not in able:
                self._chosen[key] = able[0] if able else _NO_NODE
                self._note_choice(dead, self._chosen[key])
            turns = able or [_NO_NODE, *last_resorts(state, dead)]
            if self._node_id in turns and key not in self._running:
                self._running.add(key)
                step_in_s = STEP_IN_S * turns.index(self._node_id)
                task = self._scope.spawn_loop(
                    partial(self._recover, dead, step_in_s), name=f"recover node {dead.node_id}"
                )
                task.add_done_callback(partial(self._ended, key))
        self._has_changed.set()

    async def _recover(self, dead: NodeState, step_in_s: float) -> None:
        """Recover a node's log once this node is chosen, or after `step_in_s` without success."""
        key, pause_s = (dead.node_id, dead.epoch), _RETRY_S
        loop = asyncio.get_running_loop()
        step_in_at = loop.time() + step_in_s
        while (chosen := self._chosen.get(key)) is not None:
            left_s = step_in_at - loop.time()
            if chosen != self._node_id and left_s > 0:
                await self._wait_change(left_s)
                continue
            try:
                found = await self._take_over(dead)
            except LakeheadError as error:
                _log.error("recovery_failed", dead_id=dead.node_id, error=str(error))
                await self._wait_change(pause_s)
                pause_s = min(2 * pause_s, _RETRY_MAX_S)
                continue
            self.recovered_total += 1
            _log.info("node_recovered", dead_id=dead.node_id, epoch=dead.epoch, found=found)
            return

    def _ended(self, key: tuple[int, int], _: asyncio.Task[None]) -> None:
        self._running.discard(key)

    async def _wait_change(self, seconds: float) -> None:
        """Wait `seconds`, or until the state of a node has changed."""
        self._has_changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._has_changed.wait()
        except TimeoutError:
            pass

    def _note_choice(self, dead: NodeState, chosen: int) -> None:
        if chosen == _NO_NODE:
            _log.error(
                "log_unreachable",
                dead_id=dead.node_id,
                wal=dead.wal,
                host_id=dead.host_id,
                advice="its partitions come back when it starts again; if it never will, "
                "an unclean election gives up what is in the log",
            )


def _node_states(state: MetadataImage) -> frozenset[tuple[int, int, bool, bool, bool]]:
    """Return the part of the state that recoveries depend on. Most entries do not change it."""
    return frozenset(
        (known.node_id, known.epoch, known.is_fenced, known.is_recovered, state.is_settled(known))
        for known in state.nodes.values()
    )
