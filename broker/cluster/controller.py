"""The controller: the node that holds the lease fences dead nodes, assigns partitions and balances.

Every node runs the controller's task. It decides only while its node holds the lease, or may take
it. It acts when a node dies, comes, goes or drains and when topics are created, not for each entry
of the log; balance is checked every few seconds.

A decision is one entry of the metadata log, planned by `plan`, a pure function of the metadata
image and of a `ClusterView`. In this order: take the lease if it is vacant, fence dead nodes,
assign every stream without a leader, empty nodes that drain or stop, bring streams back to their
preferred leaders, balance. Every record carries the controller's term, so that a controller that
was superseded while it slept changes nothing. There may be a hundred thousand streams, so plans are
made in steps, between which the event loop does other work.
"""

import asyncio
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import structlog

from lakehead.broker.cluster.balance import STREAMS_AT_ONCE, balance
from lakehead.broker.cluster.broker_lifecycle import BrokerLifecycle
from lakehead.broker.cluster.cordons import is_cordoned
from lakehead.broker.cluster.heartbeat import NodeLoad
from lakehead.storage.clock import Clock
from lakehead.storage.errors import StorageError
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import AssignStreams, ControllerLease, FenceNode, Record
from lakehead.storage.metadata.state import MetadataImage, StreamState
from lakehead.storage.stream.unrecovered_wals import reaches
from lakehead.storage.tasks import TaskScope

_log = structlog.get_logger("broker.controller")

_TURNS = 4
"""Turns within a heartbeat interval while a decision may come due; else one."""
_COOL_DOWN = 6
"""Balance intervals without further moves after moves for balance, whose effect on the traffic has
to show first. Also the time before a node that has just come gets its partitions back."""
_AFTER_FAILURE = 2
"""Balance intervals without moves for balance after a necessary move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The cluster as node `node_id` in its epoch sees it at one moment.

    `ready`: the nodes that serve, this one included. `settled`: the ready nodes that have served
    for a while. `leaving`: nodes in controlled shutdown. `dead`: epochs of dead nodes by node id.
    `is_neglected`: a node has been dead for a session without being fenced, so the holder of the
    lease does not do its work. `may_lead`: the lease has been vacant for so long that it is this
    node's turn to take it. `is_balance_due`: leadership may be moved for balance now, if a node
    differs from the average by more than `imbalance` (a share: 0.1).
    """

    node_id: int
    node_epoch: int
    ready: frozenset[int]
    settled: frozenset[int] = frozenset()
    leaving: frozenset[int] = frozenset()
    dead: Mapping[int, int] = field(default_factory=dict)
    loads: Mapping[int, NodeLoad] = field(default_factory=dict)
    is_neglected: bool = False
    may_lead: bool = False
    is_balance_due: bool = False
    imbalance: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Times in seconds; `imbalance` is a share of the average."""

    is_balancing: bool = True
    balance_s: float = 5.0
    imbalance: float = 0.1


@dataclass(slots=True)
class ControllerStats:
    """Counts of what this node has done as the controller since its start."""

    leases_taken: int = 0
    nodes_fenced: int = 0
    streams_assigned: int = 0
    streams_balanced: int = 0
    """The part of `streams_assigned` that was moved for balance."""


class _PlanKey(NamedTuple):
    """The inputs of a plan. All streams are surveyed again when one of them changes."""

    nodes: frozenset[tuple[int, int, bool, bool]]
    term: int
    topics: int
    ready: frozenset[int]
    leaving: frozenset[int]


class Controller:
    """The controller's task. One for each node; `start` it once the node serves."""

    def __init__(
        self,
        metadata: MetadataLog,
        lifecycle: BrokerLifecycle,
        clock: Clock,
        scope: TaskScope,
        settings: ControllerSettings,
    ) -> None:
        self.stats = ControllerStats()
        self._metadata = metadata
        self._lifecycle = lifecycle
        self._clock = clock
        self._scope = scope
        self._settings = settings
        self._wakeup = asyncio.Event()
        self._vacant_since: float | None = None
        self._dead_since: float | None = None
        self._started_at = self._balance_at = clock.monotonic()
        self._seen: _PlanKey | None = None
        self._balanced: tuple[MetadataImage, ClusterView] | None = None
        self._nodes, self._topics = metadata.state.nodes, metadata.state.topics

    @property
    def is_active(self) -> bool:
        """Return true if this node is the controller, as far as it knows."""
        own = self._lifecycle.own
        return is_controller(self._metadata.state, own.node_id, own.epoch)

    def start(self) -> None:
        """Start the controller's task."""
        self._started_at = self._clock.monotonic()
        self._balance_at = self._started_at + self._settings.balance_s
        self._metadata.subscribe(self._changed)
        self._lifecycle.on_change.append(self._wakeup.set)
        self._scope.spawn_loop(self._run, name="controller")

    def _changed(self, state: MetadataImage) -> None:
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
                await asyncio.sleep(self._lifecycle.interval_s)

    def _pause_s(self) -> float:
        """Return how long the controller may sleep, in seconds, without missing a timeout."""
        now, interval_s = self._clock.monotonic(), self._lifecycle.interval_s
        is_quiet = self._dead_since is None and self._vacant_since is None
        is_calm = is_quiet and self._lifecycle.membership.is_calm(now)
        return interval_s if is_calm else interval_s / _TURNS

    async def _act(self) -> None:
        """Commit the decisions that are due, if this node is the controller or may become it."""
        now, state = self._clock.monotonic(), self._metadata.state
        view = self._view(now)
        key = _plan_key(state, view)
        if not self._is_due(state, view, key):
            return
        made: list[Record] = []

        def decide(newest: MetadataImage) -> Generator[None, None, Sequence[Record]]:
            made[:] = yield from plan(newest, self._view(self._clock.monotonic()))
            return tuple(made)

        state = await self._metadata.commit_with(decide)
        if view.is_balance_due:
            self._balance_at = now + self._settings.balance_s
            self._balanced = (state, view)
        elif self._seen is None or self._seen.ready != key.ready:
            self._balance_at = min(self._balance_at, now + self._settings.balance_s)
        self._seen = key
        self._note(made)
        if made:
            quiet_s = _COOL_DOWN if view.is_balance_due else _AFTER_FAILURE
            self._balance_at = max(self._balance_at, now + quiet_s * self._settings.balance_s)

    def _is_due(self, state: MetadataImage, view: ClusterView, key: _PlanKey) -> bool:
        if not is_controller(state, view.node_id, view.node_epoch):
            return view.may_lead
        if self._seen != key or unfenced_dead(state, view):
            return True
        if view.is_balance_due and self._is_as_balanced(state, view):
            self._balance_at += self._settings.balance_s
            return False
        return view.is_balance_due

    def _is_as_balanced(self, state: MetadataImage, view: ClusterView) -> bool:
        """Return true if nothing has changed since the last check of balance, so that an idle
        cluster is not surveyed again and again.
        """
        if self._balanced is None or any(load.hottest for load in view.loads.values()):
            return False
        then, before = self._balanced
        is_same = (before.ready, before.settled) == (view.ready, view.settled)
        return is_same and state.streams is then.streams

    def _view(self, now: float) -> ClusterView:
        lifecycle, others = self._lifecycle, self._lifecycle.view()
        own, settled_s = lifecycle.own, _COOL_DOWN * self._settings.balance_s
        ready = dict(others.ready)
        if not (lifecycle.is_starting or lifecycle.is_leaving):
            ready[own.node_id] = self._started_at
        leaving = others.leaving | {own.node_id} if lifecycle.is_leaving else others.leaving
        view = ClusterView(
            node_id=own.node_id,
            node_epoch=own.epoch,
            ready=frozenset(ready),
            settled=frozenset(n for n, at in ready.items() if now - at >= settled_s),
            leaving=leaving,
            dead=others.dead,
            loads={**others.loads, own.node_id: lifecycle.own_load},
            is_balance_due=self._settings.is_balancing and now >= self._balance_at,
            imbalance=self._settings.imbalance,
        )
        state = self._metadata.state
        self._dead_since = _since(self._dead_since, now, bool(unfenced_dead(state, view)))
        view = replace(view, is_neglected=_lasts(self._dead_since, now, lifecycle.session_s))
        self._vacant_since = _since(self._vacant_since, now, is_lease_vacant(state, view))
        return replace(view, may_lead=self._may_lead(ready, now))

    def _may_lead(self, ready: Mapping[int, float], now: float) -> bool:
        """Return true if this node's turn to take the lease has come: the ready node of the lowest
        id goes first, and each further one waits two heartbeat intervals longer.
        """
        if self._lifecycle.own.node_id not in ready:
            return False
        rank = sum(node_id < self._lifecycle.own.node_id for node_id in ready)
        return _lasts(self._vacant_since, now, rank * 2 * self._lifecycle.interval_s)

    def _note(self, made: Sequence[Record]) -> None:
        stats, own_id = self.stats, self._lifecycle.own.node_id
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
    """Return the time since when a condition holds, given the time `before` this check."""
    if not is_so:
        return None
    return now if before is None else before


def _lasts(since: float | None, now: float, seconds: float) -> bool:
    return since is not None and now - since >= seconds


def _plan_key(state: MetadataImage, view: ClusterView) -> _PlanKey:
    return _PlanKey(
        nodes=frozenset(
            (known.node_id, known.epoch, known.is_fenced, known.is_draining)
            for known in state.nodes.values()
        ),
        term=state.controller.term,
        topics=len(state.topic_names),
        ready=view.ready,
        leaving=view.leaving,
    )


# Planning.


def is_lease_vacant(state: MetadataImage, view: ClusterView) -> bool:
    """Return true if the lease is free to take: its holder is fenced, dead, replaced or neglects
    its work.
    """
    if view.is_neglected and unfenced_dead(state, view):
        return True
    holder = state.nodes.get(state.controller.node_id)
    if holder is None or holder.is_fenced or holder.epoch != state.controller.node_epoch:
        return True
    return view.dead.get(holder.node_id) == holder.epoch


def is_controller(state: MetadataImage, node_id: int, epoch: int) -> bool:
    """Return true if a node, in this epoch, holds the lease."""
    return (state.controller.node_id, state.controller.node_epoch) == (node_id, epoch)


def unfenced_dead(state: MetadataImage, view: ClusterView) -> list[int]:
    """Return the dead nodes that the state knows in the same epoch and not as fenced, by id."""
    return [
        node_id
        for node_id, epoch in sorted(view.dead.items())
        if (known := state.nodes.get(node_id)) is not None
        and known.epoch == epoch
        and not known.is_fenced
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The streams of a cluster by the decision that they need.

    `leads`: the streams of each node that may be given more. `needs_leader`: streams whose leader
    is gone or leaving. `non_preferred`: streams that another node leads though their preferred
    leader could. `moving`: the number of streams that are moving to their leader now; a stream in
    a log that no node reaches does not count. `waiting`: the number of streams that could return
    to a preferred leader that is not settled yet, and one more while all live nodes drain.
    `cordoned`: nodes of `leads` that keep what they lead and get back what they are the preferred
    leaders of, and nothing else.
    """

    leads: Mapping[int, Sequence[int]]
    needs_leader: Sequence[StreamState]
    non_preferred: Sequence[StreamState]
    moving: int
    waiting: int
    cordoned: frozenset[int]

    @property
    def is_unsettled(self) -> bool:
        """Return true if balance has to wait for other moves."""
        return bool(self.needs_leader) or self.moving + self.waiting > 0


def survey_streams(
    state: MetadataImage, view: ClusterView, dead: frozenset[int]
) -> Generator[None, None, Survey]:
    """Survey every stream, in steps. `dead`: nodes that the same entry fences."""
    nodes = {
        node_id: known
        for node_id, known in state.nodes.items()
        if not known.is_fenced and node_id not in dead
    }
    leaving = {n for n, known in nodes.items() if known.is_draining or n in view.leaving}
    able = sorted(n for n in nodes if n in view.ready and n not in view.leaving)
    takers = [node_id for node_id in able if node_id not in leaving]
    # A node that drains is better than no leader, but balance ignores such nodes.
    leads: dict[int, list[int]] = {node_id: [] for node_id in takers or able}
    lost = {
        node_id
        for node_id, known in state.nodes.items()
        if known.is_fenced and not any(reaches(one, known) for one in nodes.values())
    }
    needs_leader, non_preferred, moving, waiting = [], [], 0, int(not takers)
    for number, stream in enumerate(state.streams.values(), 1):
        if not number % STREAMS_AT_ONCE:
            yield
        leader = intended_leader(stream)
        is_going = leader in (leaving if takers else view.leaving)
        if leader not in nodes or (is_going and leads):
            needs_leader.append(stream)
            continue
        if leader in leads:
            leads[leader].append(stream.stream_id)
        if not stream.is_open or stream.node_id != leader:
            moving += stream.node_id not in lost
        elif stream.preferred == leader or stream.preferred not in leads:
            continue
        elif stream.preferred in view.settled:
            non_preferred.append(stream)
        else:
            waiting += 1
    return Survey(
        leads=leads,
        needs_leader=needs_leader,
        non_preferred=non_preferred,
        moving=moving,
        waiting=waiting,
        cordoned=frozenset(node_id for node_id in leads if is_cordoned(state, node_id)),
    )


def intended_leader(stream: StreamState) -> int:
    """Return the node that a stream is assigned to, else the one that has it open, else -1."""
    if stream.assigned >= 0:
        return stream.assigned
    return stream.node_id if stream.is_open else -1


def plan(state: MetadataImage, view: ClusterView) -> Generator[None, None, Sequence[Record]]:
    """Return the records of the next entry, planned in steps; an empty sequence if nothing is due
    or another node is the controller.
    """
    own = state.nodes.get(view.node_id)
    if own is None or own.is_fenced or own.epoch != view.node_epoch:
        return ()
    records: list[Record] = []
    term = state.controller.term
    if not is_controller(state, own.node_id, own.epoch):
        if not (view.may_lead and is_lease_vacant(state, view)):
            return ()
        term += 1
        records.append(ControllerLease(node_id=view.node_id, node_epoch=view.node_epoch, term=term))
    dead = unfenced_dead(state, view)
    records += [FenceNode(node_id=node_id, epoch=view.dead[node_id], term=term) for node_id in dead]
    survey = yield from survey_streams(state, view, frozenset(dead))
    settled = yield from _assign_leaderless(survey)
    records += _assignments(settled, term, is_preferred=False)
    if view.is_balance_due and not survey.is_unsettled:
        records += yield from _balancing(survey, view, term)
    return records


def _assign_leaderless(survey: Survey) -> Generator[None, None, list[tuple[int, int]]]:
    """Return (stream, node) for each stream that needs a leader: the node that has it open, else
    its preferred leader, else the node that leads fewest streams. A cordoned node gets another
    node's only if all are cordoned.
    """
    counts = {node_id: len(streams) for node_id, streams in survey.leads.items()}
    if not counts:
        return []
    takers = [node_id for node_id in counts if node_id not in survey.cordoned] or list(counts)
    chosen = []
    for number, stream in enumerate(survey.needs_leader, 1):
        if not number % STREAMS_AT_ONCE:
            yield
        target = stream.node_id if stream.is_open else -1
        if target not in counts:
            target = stream.preferred
        if target not in counts:
            target = min(takers, key=lambda node_id: (counts[node_id], node_id))
        counts[target] += 1
        chosen.append((stream.stream_id, target))
    return chosen


def _balancing(survey: Survey, view: ClusterView, term: int) -> Generator[None, None, list[Record]]:
    if survey.non_preferred:
        back = [(stream.stream_id, stream.preferred) for stream in survey.non_preferred]
        return _assignments(back, term, is_preferred=False)
    leads = {n: streams for n, streams in survey.leads.items() if n not in survey.cordoned}
    moves = yield from balance(leads, view.loads, imbalance=view.imbalance)
    return _assignments(moves, term, is_preferred=True)


def _assignments(
    chosen: Sequence[tuple[int, int]], term: int, *, is_preferred: bool
) -> list[Record]:
    by_node: defaultdict[int, list[int]] = defaultdict(list)
    for stream_id, node_id in chosen:
        by_node[node_id].append(stream_id)
    return [
        AssignStreams(
            node_id=node_id,
            stream_ids=tuple(stream_ids),
            is_preferred=is_preferred,
            term=term,
        )
        for node_id, stream_ids in sorted(by_node.items())
    ]
