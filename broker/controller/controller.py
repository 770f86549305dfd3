"""The controller's task, which runs on every node: it decides only while its node holds the lease,
or may take it.

It acts when something happens (somebody is dead, comes, goes, drains; topics come) and not for each
entry of the log; balance is looked at every few seconds.
"""

import asyncio
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import structlog

from lakehead.broker.cluster.peers import Peers
from lakehead.broker.controller.plan import is_controller, is_lease_vacant, plan, unfenced_dead
from lakehead.broker.controller.situation import Situation
from lakehead.storage.clock import Clock
from lakehead.storage.errors import StorageError
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import AssignStreams, ControllerLease, FenceNode, Record
from lakehead.storage.metadata.state import ClusterState
from lakehead.storage.tasks import TaskScope

_log = structlog.get_logger("broker.controller")

_TURNS = 4
"""Looks at the others within a heartbeat interval, as long as anything may come of it; else one."""
_COOL_DOWN = 6
"""For so many balance intervals nothing is moved after moves for balance (what they did to the
traffic has to show first), and nothing goes back to a node that has just come."""
_AFTER_FAILURE = 2
"""Nothing is moved without need for so many balance intervals after something had to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Times in seconds; `imbalance` is a share of the average."""

    is_balancing: bool = True
    balance_s: float = 5.0
    imbalance: float = 0.1


@dataclass(slots=True)
class ControllerStats:
    """What this node has done as the controller since its start."""

    leases_taken: int = 0
    nodes_fenced: int = 0
    streams_assigned: int = 0
    streams_balanced: int = 0
    """Of those assigned: moved for the sake of balance."""


class _Signs(NamedTuple):
    """What all streams are surveyed anew for, when it changes."""

    nodes: frozenset[tuple[int, int, bool, bool]]
    term: int
    topics: int
    ready: frozenset[int]
    leaving: frozenset[int]


class Controller:
    """One for each node. `start` it once the node serves."""

    def __init__(
        self,
        metadata: MetadataLog,
        peers: Peers,
        clock: Clock,
        scope: TaskScope,
        settings: ControllerSettings,
    ) -> None:
        self.stats = ControllerStats()
        self._metadata = metadata
        self._peers = peers
        self._clock = clock
        self._scope = scope
        self._settings = settings
        self._wakeup = asyncio.Event()
        self._vacant_since: float | None = None
        self._dead_since: float | None = None
        self._started_at = self._balance_at = clock.monotonic()
        self._seen: _Signs | None = None
        self._balanced: tuple[ClusterState, Situation] | None = None
        self._nodes, self._topics = metadata.state.nodes, metadata.state.topics

    @property
    def is_active(self) -> bool:
        """Whether this node is the controller, as far as it knows."""
        own = self._peers.own
        return is_controller(self._metadata.state, own.node_id, own.epoch)

    def start(self) -> None:
        """Begin to look after the cluster."""
        self._started_at = self._clock.monotonic()
        self._balance_at = self._started_at + self._settings.balance_s
        self._metadata.subscribe(self._changed)
        self._peers.on_change.append(self._wakeup.set)
        self._scope.spawn_duty(self._run, name="controller")

    def _changed(self, state: ClusterState) -> None:
        if state.nodes is not self._nodes or state.topics is not self._topics:
            self._nodes, self._topics = state.nodes, state.topics
            self._wakeup.set()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._pause_s()):
                    await self._wakeup.wait()
            except TimeoutError:
                pass
            self._wakeup.clear()
            try:
                await self._act()
            except StorageError as error:
                _log.warning("controller_turn_failed", error=str(error))
                await asyncio.sleep(self._peers.interval_s)

    def _pause_s(self) -> float:
        """Return how long nothing can come to be decided that nobody tells of."""
        now, interval_s = self._clock.monotonic(), self._peers.interval_s
        is_quiet = self._dead_since is None and self._vacant_since is None
        is_calm = is_quiet and self._peers.membership.is_calm(now)
        return interval_s if is_calm else interval_s / _TURNS

    async def _act(self) -> None:
        """Commit what is to be decided now, if it is for this node to decide."""
        now, state = self._clock.monotonic(), self._metadata.state
        situation = self._situation(now)
        signs = _signs(state, situation)
        if not self._is_due(state, situation, signs):
            return
        made: list[Record] = []

        def decide(newest: ClusterState) -> Generator[None, None, Sequence[Record]]:
            made[:] = yield from plan(newest, self._situation(self._clock.monotonic()))
            return tuple(made)

        state = await self._metadata.commit_with(decide)
        if situation.is_balance_due:
            self._balance_at = now + self._settings.balance_s
            self._balanced = (state, situation)
        elif self._seen is None or self._seen.ready != signs.ready:
            self._balance_at = min(self._balance_at, now + self._settings.balance_s)
        self._seen = signs
        self._note(made)
        if made:
            quiet_s = _COOL_DOWN if situation.is_balance_due else _AFTER_FAILURE
            self._balance_at = max(self._balance_at, now + quiet_s * self._settings.balance_s)

    def _is_due(self, state: ClusterState, situation: Situation, signs: _Signs) -> bool:
        if not is_controller(state, situation.node_id, situation.node_epoch):
            return situation.may_lead
        if self._seen != signs or unfenced_dead(state, situation):
            return True
        if situation.is_balance_due and self._is_as_balanced(state, situation):
            self._balance_at += self._settings.balance_s
            return False
        return situation.is_balance_due

    def _is_as_balanced(self, state: ClusterState, situation: Situation) -> bool:
        """Whether nothing has happened since balance was last looked at: an idle cluster is not
        surveyed again and again.
        """
        if self._balanced is None or any(load.hottest for load in situation.loads.values()):
            return False
        then, before = self._balanced
        is_same = (before.ready, before.settled) == (situation.ready, situation.settled)
        return is_same and state.streams is then.streams

    def _situation(self, now: float) -> Situation:
        peers, view = self._peers, self._peers.view()
        own, settled_s = peers.own, _COOL_DOWN * self._settings.balance_s
        ready = dict(view.ready)
        if not (peers.is_starting or peers.is_leaving):
            ready[own.node_id] = self._started_at
        leaving = view.leaving | {own.node_id} if peers.is_leaving else view.leaving
        seen = Situation(
            node_id=own.node_id,
            node_epoch=own.epoch,
            ready=frozenset(ready),
            settled=frozenset(n for n, at in ready.items() if now - at >= settled_s),
            leaving=leaving,
            dead=view.dead,
            loads={**view.loads, own.node_id: peers.own_load},
            is_balance_due=self._settings.is_balancing and now >= self._balance_at,
            imbalance=self._settings.imbalance,
        )
        state = self._metadata.state
        self._dead_since = _since(self._dead_since, now, bool(unfenced_dead(state, seen)))
        seen = replace(seen, is_neglected=_lasts(self._dead_since, now, peers.session_s))
        self._vacant_since = _since(self._vacant_since, now, is_lease_vacant(state, seen))
        return replace(seen, may_lead=self._may_lead(ready, now))

    def _may_lead(self, ready: Mapping[int, float], now: float) -> bool:
        """Whether it is this node's turn: the ready node of the lowest id goes first, and each
        further one waits two heartbeat intervals longer.
        """
        if self._peers.own.node_id not in ready:
            return False
        rank = sum(node_id < self._peers.own.node_id for node_id in ready)
        return _lasts(self._vacant_since, now, rank * 2 * self._peers.interval_s)

    def _note(self, made: Sequence[Record]) -> None:
        stats, own_id = self.stats, self._peers.own.node_id
        for record in made:
            match record:
                case ControllerLease():
                    stats.leases_taken += 1
                    _log.info("controller_lease_taken", node_id=own_id, term=record.term)
                case FenceNode():
                    stats.nodes_fenced += 1
                    _log.warning("node_fenced", fenced_id=record.node_id, epoch=record.epoch)
                case AssignStreams():
                    stats.streams_assigned += len(record.stream_ids)
                    if record.is_preferred:
                        stats.streams_balanced += len(record.stream_ids)
                    _log.info(
                        "streams_assigned",
                        to_node_id=record.node_id,
                        streams=len(record.stream_ids),
                    )
                case _:
                    pass


def _since(before: float | None, now: float, is_so: bool) -> float | None:
    """Return since when something is so, given since when it was."""
    if not is_so:
        return None
    return now if before is None else before


def _lasts(since: float | None, now: float, seconds: float) -> bool:
    return since is not None and now - since >= seconds


def _signs(state: ClusterState, situation: Situation) -> _Signs:
    return _Signs(
        nodes=frozenset(
            (known.node_id, known.epoch, known.is_fenced, known.is_draining)
            for known in state.nodes.values()
        ),
        term=state.controller.term,
        topics=len(state.topic_names),
        ready=situation.ready,
        leaving=situation.leaving,
    )
