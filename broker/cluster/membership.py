"""The failure detector: a synchronous state machine over heartbeats and connections.

A node that is silent for a session is dead. If its address accepts connections meanwhile, the
process hangs or was stopped, and two thirds of a session are enough. A node whose connection ended
and whose address keeps refusing new ones is dead after half a heartbeat interval: its process is
gone. An error costs a take-over and no data, since fencing does not rely on any of this.

Nodes report the nodes that they hear. A node that one of them hears is not dead for the others
either, so a connection that is cut between two nodes of many costs nothing.

Silence has two explanations, one of which is that this node is cut off. A node that hears less than
half of the cluster waits another session before it considers others dead, so that the others are
quicker. One that hears exactly half, without the node of the lowest id, waits two intervals more.
An address that refuses may be behind a firewall as well, so for these the extra wait is two
intervals at most. A node that slept (a stopped process, a stalled loop) was not listening, and
gives the others the lost time back.

Times are seconds of one monotonic clock.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from lakehead.broker.cluster.heartbeat import NodeLoad
from lakehead.storage.metadata.state import NodeState

HANGS = 2 / 3
"""Of a session: how long a node that takes connections may be silent."""


class Standing(Enum):
    """The state of a node, as this node sees it."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    """Silent for some heartbeats, or its address refuses connections."""
    DEAD = "dead"


@dataclass(slots=True)
class _Member:
    """The observations of one epoch of a node."""

    epoch: int
    since: float
    heard_at: float
    """By this node, or by one that it hears."""
    responded_at: float = float("-inf")
    """By this node alone."""
    vouched_at: float = float("-inf")
    """When another node said last that it hears it."""
    was_reached: bool = False
    refused_at: float | None = None
    accepted_at: float = float("-inf")
    """When its address last took a connection that was made to see whether it does."""
    lost_at: float | None = None
    is_starting: bool = True
    is_leaving: bool = False
    load: NodeLoad = field(default_factory=NodeLoad)
    levels: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipView:
    """The other nodes at one time: `ready` nodes with the time since when they serve, `leaving`
    nodes that are about to stop, and `dead` nodes with their epochs.
    """

    ready: Mapping[int, float]
    leaving: frozenset[int]
    dead: Mapping[int, int]
    loads: Mapping[int, NodeLoad]


class Membership:
    """The other nodes that are registered and not fenced. `follow` says which these are."""

    def __init__(self, node_id: int, *, interval_s: float, session_s: float, now: float) -> None:
        self._node_id = node_id
        self._interval_s = interval_s
        self._session_s = session_s
        self._members: dict[int, _Member] = {}
        self._turn_at = now

    def follow(self, nodes: Mapping[int, NodeState], now: float) -> bool:
        """Follow the registered nodes; return whether they changed."""
        wanted = {
            known.node_id: known.epoch
            for known in nodes.values()
            if not known.is_fenced and known.node_id != self._node_id
        }
        gone = [
            node_id
            for node_id, member in self._members.items()
            if wanted.get(node_id) != member.epoch
        ]
        for node_id in gone:
            del self._members[node_id]
        added = wanted.keys() - self._members.keys()
        for node_id in added:
            self._members[node_id] = _Member(epoch=wanted[node_id], since=now, heard_at=now)
        return bool(gone or added)

    def heard(
        self,
        node_id: int,
        epoch: int,
        now: float,
        *,
        is_starting: bool = False,
        is_leaving: bool = False,
        load: NodeLoad | None = None,
        levels: tuple[int, int] | None = None,
    ) -> bool:
        """Take note of a sign of life; whether the others should look again at what they plan.

        One of an epoch that is not the registered one says nothing about that.
        """
        member = self._member(node_id, epoch)
        if member is None:
            return False
        before = (self._standing(member, now), member.is_starting, member.is_leaving)
        member.heard_at = member.responded_at = now
        member.refused_at = None
        member.lost_at = None
        if member.is_starting and not is_starting:
            member.since = now
        member.is_starting = is_starting
        member.is_leaving = is_leaving
        if load is not None:
            member.load = load
        if levels is not None:
            member.levels = levels
        return before != (Standing.ALIVE, is_starting, is_leaving)

    def vouched(self, heard: Iterable[tuple[int, int]], now: float) -> None:
        """Take note of the nodes that a live node hears: pairs of node id and milliseconds
        since.
        """
        for node_id, age_ms in heard:
            member = self._members.get(node_id)
            if member is not None and age_ms >= 0:
                member.vouched_at = now
                member.heard_at = max(member.heard_at, now - age_ms / 1000)

    def heard_lately(self, now: float) -> tuple[tuple[int, int], ...]:
        """Return the nodes that this node hears itself, for its reports: pairs of node id and
        milliseconds since. Nodes whose connection has just ended are left out.
        """
        return tuple(
            (node_id, int((now - member.responded_at) * 1000))
            for node_id, member in self._members.items()
            if now - member.responded_at < 2 * self._interval_s and member.lost_at is None
        )

    def reached(self, node_id: int, epoch: int) -> None:
        """Record that a node responded at its address: from now on a refusal there counts.

        A node that starts accepts connections last.
        """
        member = self._member(node_id, epoch)
        if member is not None:
            member.was_reached = True

    def refused(self, node_id: int, epoch: int, now: float) -> None:
        """Record that a node's address refuses connections: no process listens there."""
        member = self._member(node_id, epoch)
        if member is not None and member.was_reached and member.refused_at is None:
            member.refused_at = now

    def accepted(self, node_id: int, epoch: int, now: float) -> None:
        """Take note that its address takes connections, though it is silent."""
        member = self._member(node_id, epoch)
        if member is not None:
            member.accepted_at = now

    def levels(self) -> dict[int, tuple[int, int]]:
        """Return the feature levels that others said they support, by node."""
        return {
            node_id: member.levels
            for node_id, member in self._members.items()
            if member.levels is not None
        }

    def silent(self, now: float) -> list[int]:
        """Return the nodes that served and are quiet, and of which it is not known yet whether
        their addresses take connections.
        """
        return [
            node_id
            for node_id, member in self._members.items()
            if self._is_quiet(member, now)
            and member.was_reached
            and not member.is_starting
            and member.refused_at is None
            and member.accepted_at <= member.heard_at
        ]

    def turn(self, now: float) -> float:
        """Record that this node's loop runs, to be called every interval at least. Return the
        seconds for which it stalled beyond that, when no node could be heard.
        """
        stalled = max(0.0, now - self._turn_at - 2 * self._interval_s)
        self._turn_at = now
        if stalled:
            for member in self._members.values():
                member.heard_at = min(now, member.heard_at + stalled)
                member.accepted_at = min(now, member.accepted_at + stalled)
                if member.refused_at is not None:
                    member.refused_at = min(now, member.refused_at + stalled)
        return stalled

    def standing(self, node_id: int, now: float) -> Standing:
        """Return what is thought of a node; ALIVE of this one, DEAD of one that is not a member."""
        if node_id == self._node_id:
            return Standing.ALIVE
        member = self._members.get(node_id)
        return Standing.DEAD if member is None else self._standing(member, now)

    def is_calm(self, now: float) -> bool:
        """Return true if every other node was heard lately and no connection has just ended. Then
        no node will be dead for an interval at least.
        """
        return all(
            member.lost_at is None and not self._is_quiet(member, now)
            for member in self._members.values()
        )

    def view(self, now: float) -> MembershipView:
        """Return the view of all other nodes."""
        ready, leaving, dead = {}, set(), {}
        for node_id, member in self._members.items():
            standing = self._standing(member, now)
            if standing is Standing.DEAD:
                dead[node_id] = member.epoch
            elif member.is_leaving:
                leaving.add(node_id)
            elif standing is Standing.ALIVE and member.was_reached and not member.is_starting:
                ready[node_id] = member.since
        return MembershipView(
            ready=ready,
            leaving=frozenset(leaving),
            dead=dead,
            loads={node_id: member.load for node_id, member in self._members.items()},
        )

    def lost(self, node_id: int, epoch: int, now: float) -> None:
        """Record that a connection has ended. Reports of the other nodes then show in time whether
        the node is gone, or only this connection.
        """
        member = self._member(node_id, epoch)
        if member is not None and member.was_reached and member.lost_at is None:
            member.lost_at = now

    def unreachable(self) -> frozenset[int]:
        """Return the nodes whose connection has ended and that were not heard of since. It may be
        for a moment only, but clients should not be sent there meanwhile.
        """
        return frozenset(
            node_id for node_id, member in self._members.items() if member.lost_at is not None
        )

    def _member(self, node_id: int, epoch: int) -> _Member | None:
        member = self._members.get(node_id)
        return member if member is not None and member.epoch == epoch else None

    def _standing(self, member: _Member, now: float) -> Standing:
        if now >= self._dead_at(member, now):
            return Standing.DEAD
        return Standing.SUSPECT if self._is_quiet(member, now) else Standing.ALIVE

    def _dead_at(self, member: _Member, now: float) -> float:
        silent = member.heard_at + self._session_s
        if member.accepted_at > member.heard_at:
            hangs = member.heard_at + HANGS * self._session_s
            silent = min(silent, max(hangs, member.accepted_at + self._session_s / 3))
        if now >= silent:
            silent += self._hesitation(now)
        if member.refused_at is None:
            return silent
        gone = member.refused_at + self._interval_s / 2
        if member.vouched_at > (member.refused_at if member.lost_at is None else member.lost_at):
            gone = member.vouched_at + 2 * self._interval_s  # it refuses this node only
        elif now >= gone:
            gone += min(2 * self._interval_s, self._hesitation(now))
        return min(silent, gone)

    def _hesitation(self, now: float) -> float:
        """Return how much longer than else it takes to be sure, by how many others are heard."""
        quiet = [n for n, member in self._members.items() if self._is_quiet(member, now)]
        total = 1 + len(self._members)
        heard = total - len(quiet)
        if 2 * heard < total:
            return self._session_s
        if 2 * heard == total and min(quiet) < min(self._heard_ids(now)):
            return 2 * self._interval_s
        return 0.0

    def _is_quiet(self, member: _Member, now: float) -> bool:
        return now - member.heard_at >= 2 * self._interval_s or member.refused_at is not None

    def _heard_ids(self, now: float) -> list[int]:
        others = [n for n, member in self._members.items() if not self._is_quiet(member, now)]
        return [self._node_id, *others]
