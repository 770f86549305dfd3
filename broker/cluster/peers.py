"""All the other nodes: a line to each that is registered, what is heard from them, what they are
told.

Owns the membership and the session. What it changes outside is only when the metadata is read.
"""

import asyncio
from collections.abc import Callable

import structlog

from lakehead.broker.cluster.heartbeat import (
    ERROR_NONE,
    ERROR_OTHER_CLUSTER,
    ERROR_STALE_EPOCH,
    ERROR_STRANGER,
    Heartbeat,
    HeartbeatAnswer,
    NodeLoad,
)
from lakehead.broker.cluster.membership import HANGS, Membership, MembershipView
from lakehead.broker.cluster.network import PeerNetwork
from lakehead.broker.cluster.peer import PeerLine
from lakehead.broker.cluster.session import Session
from lakehead.broker.protocol.node_proof import NodeProof
from lakehead.storage.clock import Clock
from lakehead.storage.format.feature_level import LOWEST_LEVEL, NEWEST_LEVEL
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import Entry
from lakehead.storage.metadata.state import ClusterState, NodeState
from lakehead.storage.tasks import TaskScope

_log = structlog.get_logger("broker.cluster")

_AHEAD_MAX = 256
"""Entries that another node may plausibly have before this one."""
_LEVELS = (LOWEST_LEVEL, NEWEST_LEVEL)


class Peers:
    """This node (`own`, as it is registered) among the others.

    `nudge(next_entry)` makes the metadata follower read what is below that number, or poll, for 0;
    `load` says what this node does.
    """

    def __init__(
        self,
        own: NodeState,
        metadata: MetadataLog,
        network: PeerNetwork,
        clock: Clock,
        scope: TaskScope,
        *,
        interval_s: float,
        session_s: float,
        nudge: Callable[[int], None],
        load: Callable[[], NodeLoad],
    ) -> None:
        self.own = own
        self.on_change: list[Callable[[], None]] = []
        """Called when somebody else came, went, or thinks better of it."""
        self.membership = Membership(
            own.node_id, interval_s=interval_s, session_s=session_s, now=clock.monotonic()
        )
        self.session = Session(
            metadata,
            clock,
            scope,
            session_s=session_s,
            is_unfenced=self._is_unfenced,
            is_unanimous=self._is_unanimous,
        )
        self.is_starting = True
        self.is_leaving = False
        self.interval_s = interval_s
        self.session_s = session_s
        self._metadata = metadata
        self._network = network
        self._clock = clock
        self._scope = scope
        self._nudge = nudge
        self._load = load
        self._lines: dict[int, tuple[PeerLine, asyncio.Task[None]]] = {}
        self._looks: set[int] = set()
        self._nodes = metadata.state.nodes

    def start(self) -> None:
        """Begin to talk to every other node that is registered, now and later."""
        self._metadata.follow(self._changed)
        self._draw_lines(self._metadata.state)
        self._scope.spawn(self._watch_own_time(), name="watch own time")

    def serve(self) -> None:
        """Tell the others that this node serves from now on."""
        self.is_starting = False
        self._tell()
        self._nudge_all()

    def leave(self) -> None:
        """Tell the others that this node is about to stop."""
        self.is_leaving = True
        self._tell()
        self._nudge_all()

    def view(self) -> MembershipView:
        """Return what this node thinks of the others now."""
        self._turn()
        return self.membership.view(self._clock.monotonic())

    def _turn(self) -> None:
        stalled = self.membership.turn(self._clock.monotonic())
        if stalled:
            _log.warning("node_stalled", seconds=round(stalled, 3))
            if stalled + 2 * self.interval_s >= HANGS * self.session_s:
                self.session.note_sleep()
            self._nudge(0)  # what it would have heard meanwhile

    async def _watch_own_time(self) -> None:
        while True:
            await asyncio.sleep(self.interval_s / 2)
            self._turn()
            for node_id in self.membership.silent(self._clock.monotonic()):
                self._look(node_id)

    def _look(self, node_id: int) -> None:
        line = self._lines.get(node_id)
        if line is not None and node_id not in self._looks:

            async def look() -> None:
                try:
                    await line[0].look()
                finally:
                    self._looks.discard(node_id)

            self._looks.add(node_id)
            self._scope.spawn_apart(look(), name=f"look at node {node_id}")

    def ready(self) -> frozenset[int]:
        """Return the nodes that serve. This one does until it leaves, for whoever asks it."""
        own = () if self.is_leaving else (self.own.node_id,)
        return frozenset(self.view().ready).union(own)

    def unreachable(self) -> frozenset[int]:
        """Return the nodes that nobody can connect to now: they are about to be fenced, or to start
        again. Who tells clients of no leader in their place has them ask again soon. A client
        whose connection ended asks within a millisecond, so this is known as soon as that is.
        """
        return self.membership.unreachable()

    def levels(self) -> dict[int, tuple[int, int]]:
        """Return the feature levels that each node said it supports; this one does by itself."""
        return {**self.membership.levels(), self.own.node_id: _LEVELS}

    @property
    def own_load(self) -> NodeLoad:
        """What this node does."""
        return self._load()

    # What other nodes say.

    def heard(self, heartbeat: Heartbeat, *, is_from_node: bool) -> HeartbeatAnswer:
        """Take note of a heartbeat and return the answer. One that is not proven to come from a
        node changes nothing, once the cluster has a secret to prove it by. The answer says how far
        the metadata is: a node that has not read of the secret yet goes on with that.
        """
        state = self._metadata.state
        if state.node_secret and not is_from_node:
            return self._answer(error=ERROR_STRANGER)
        if heartbeat.cluster_id not in {"", state.cluster_id}:
            return self._answer(error=ERROR_OTHER_CLUSTER)
        self._read_up_to(heartbeat.next_entry)
        if heartbeat.node_id < 0:  # the command line asks
            return self._answer(load=self._load())
        known = state.nodes.get(heartbeat.node_id)
        if known is None or known.epoch < heartbeat.epoch:
            return self._answer()
        if known.epoch > heartbeat.epoch or known.is_fenced:
            return self._answer(is_known=True, is_fenced=True, error=ERROR_STALE_EPOCH)
        line = self._lines.get(heartbeat.node_id)
        if line is not None:
            known_entry = min(heartbeat.next_entry, state.next_entry)
            line[0].known_entry = max(line[0].known_entry, known_entry)
        is_news = self.membership.heard(
            heartbeat.node_id,
            heartbeat.epoch,
            self._clock.monotonic(),
            is_starting=heartbeat.is_starting,
            is_leaving=heartbeat.is_leaving,
            load=heartbeat.load,
            levels=heartbeat.levels,
        )
        self.membership.vouched(heartbeat.heard, self._clock.monotonic())
        if is_news:
            self._tell()
        return self._answer(is_known=True)

    def _read_up_to(self, next_entry: int) -> None:
        """Read the metadata that another node says there is: up to there, if that is plausible,
        else as far as it goes.
        """
        ahead = next_entry - self._metadata.state.next_entry
        if ahead > 0:
            self._nudge(next_entry if ahead <= _AHEAD_MAX else 0)

    def _answer(
        self,
        *,
        is_known: bool = False,
        is_fenced: bool = False,
        error: int = ERROR_NONE,
        load: NodeLoad | None = None,
    ) -> HeartbeatAnswer:
        return HeartbeatAnswer(
            node_id=self.own.node_id,
            epoch=self.own.epoch,
            next_entry=self._metadata.state.next_entry,
            error=error,
            is_known=is_known,
            is_fenced=is_fenced,
            is_starting=self.is_starting,
            is_leaving=self.is_leaving,
            incarnation=self.own.incarnation,
            fresh_ms=self.session.state_age_ms(),
            load=load or NodeLoad(),
            heard=self.membership.heard_lately(self._clock.monotonic()),
            levels=_LEVELS,
        )

    # The lines' listener.

    def proof(self, peer: NodeState) -> NodeProof:
        """See `PeerListener.proof`."""
        return NodeProof(secret=self._metadata.state.node_secret, to_node=peer.node_id)

    def heartbeat(self) -> Heartbeat:
        """See `PeerListener.heartbeat`."""
        state = self._metadata.state
        return Heartbeat(
            node_id=self.own.node_id,
            epoch=self.own.epoch,
            next_entry=state.next_entry,
            is_starting=self.is_starting,
            is_leaving=self.is_leaving,
            cluster_id=state.cluster_id,
            incarnation=self.own.incarnation,
            load=self._load(),
            heard=self.membership.heard_lately(self._clock.monotonic()),
            levels=_LEVELS,
        )

    def answered(self, peer: NodeState, answer: HeartbeatAnswer, sent_at: float) -> None:
        """See `PeerListener.answered`."""
        if answer.error == ERROR_OTHER_CLUSTER or answer.node_id != peer.node_id:
            _log.warning(
                "peer_address_has_another_tenant",
                peer_id=peer.node_id,
                host=peer.host,
                port=peer.port,
                found_node_id=answer.node_id,
            )
            return
        self._read_up_to(answer.next_entry)
        if answer.epoch != peer.epoch:
            return
        if answer.is_known and not answer.is_fenced:
            self.session.note_answer(sent_at, answer.fresh_ms, answer.next_entry)
            line = self._lines.get(peer.node_id)
            if line is not None and answer.next_entry <= self._metadata.state.next_entry:
                line[0].agreed_at = sent_at
        self.membership.reached(peer.node_id, peer.epoch)
        is_news = self.membership.heard(
            peer.node_id,
            peer.epoch,
            self._clock.monotonic(),
            is_starting=answer.is_starting,
            is_leaving=answer.is_leaving,
            levels=answer.levels,
        )
        self.membership.vouched(answer.heard, self._clock.monotonic())
        if is_news:
            self._tell()

    def lost(self, peer: NodeState) -> None:
        """See `PeerListener.lost`."""
        self.membership.lost(peer.node_id, peer.epoch, self._clock.monotonic())
        self._nudge_all()  # do the others still hear it?

    def refused(self, peer: NodeState) -> None:
        """See `PeerListener.refused`."""
        self.membership.refused(peer.node_id, peer.epoch, self._clock.monotonic())
        self._tell()

    def accepted(self, peer: NodeState) -> None:
        """See `PeerListener.accepted`."""
        self.membership.accepted(peer.node_id, peer.epoch, self._clock.monotonic())

    # Following the metadata.

    def _changed(self, state: ClusterState, entry: Entry | None) -> None:
        if state.nodes is not self._nodes:
            self._nodes = state.nodes
            self._draw_lines(state)
        if entry is not None and entry.writer == self._metadata.writer_id:
            for line, _ in self._lines.values():
                if line.known_entry < state.next_entry:
                    line.nudge()

    def _draw_lines(self, state: ClusterState) -> None:
        if not self.membership.follow(state.nodes, self._clock.monotonic()):
            return
        for node_id, (line, task) in list(self._lines.items()):
            known = state.nodes.get(node_id)
            if known is None or known.is_fenced or known.epoch != line.peer.epoch:
                task.cancel()
                del self._lines[node_id]
        for node_id, known in state.nodes.items():
            if node_id == self.own.node_id or known.is_fenced or node_id in self._lines:
                continue
            line = PeerLine(
                known,
                self._network,
                self,
                self._clock,
                interval_s=self.interval_s,
                session_s=self.session_s,
            )
            task = self._scope.spawn_duty(line.run, name=f"heartbeats to node {node_id}")
            self._lines[node_id] = (line, task)
        self._tell()

    def _is_unfenced(self) -> bool:
        known = self._metadata.state.nodes.get(self.own.node_id)
        return known is not None and known.epoch == self.own.epoch and not known.is_fenced

    def _is_unanimous(self, since: float) -> bool:
        return all(line.agreed_at >= since for line, _ in self._lines.values())

    def _nudge_all(self) -> None:
        for line, _ in self._lines.values():
            line.nudge()

    def _tell(self) -> None:
        self.session.is_first = self.own.node_id <= min(self.ready(), default=self.own.node_id)
        for callback in self.on_change:
            callback()
