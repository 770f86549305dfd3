"""A model of how long a leader goes on answering reads after it was fenced.

Node 0 leads, and is fenced at some moment. It may answer reads for as long as it has a proof, less
than a session old, that it was not fenced: the metadata log as it was read at that moment, or the
word of a node that had read the log by then, which may have it from a third one. Any node may sleep
between any two steps, and any message may take as long as it likes.

A third proof is for a store that fails (`agrees`): its reading of the log fails, and every other
node has responded since that began, and knows of no fencing. Then a fencing counts from when a node
knows of it: no other node leads before, since no node can read the entry. Two dangers that
`docs/cluster.md` names are not in this model: a node with a new id, and one that slept.

Time passes in ticks; what counts are ages, up to a session: beyond that they are all alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

SESSION = 2


class Guards(NamedTuple):
    """What the implementation does to be safe; a test turns each off in turn."""

    from_the_asking: bool = True
    """The log proves something as of when it was asked, not of when the answer came."""
    from_the_sending: bool = True
    """So does a heartbeat: as of when it was sent …"""
    age_counts: bool = True
    """… less the time for which the answering node has not known better itself."""
    pass_on_what_it_has: bool = True
    """A node that was told so by another one knows of itself that it was not fenced; it tells
    others so only if its own view of the log is as new as that one's.
    """
    checked_last: bool = True
    """A read is checked when its answer is there, not before it is prepared."""
    from_the_attempt: bool = True
    """That all agree proves something as of when the reading began, not of when it failed."""
    agreed_since: bool = True
    """Only what was sent since then counts."""
    every_node_agrees: bool = True
    """Also one that is not heard, since it may have come back."""
    knows_no_more: bool = True
    """One that knows of the fencing does not agree."""


ALL = Guards()


class Heartbeat(NamedTuple):
    """A heartbeat on its way there, and back once `age` is known."""

    to: int
    sent: int = 0
    """How long ago."""
    age: int | None = None
    """How long before its answer the other one has known all there was to know."""
    knows: bool = False
    """It knows of the fencing."""


class Node(NamedTuple):
    """What a node knows; ages of its proofs."""

    knows: bool = False
    """Its view of the log holds the fencing."""
    fresh: int = SESSION
    """Since when its view may lack something."""
    told: int = SESSION
    """… and since when it may have been fenced, as another one said …"""
    passed: int = SESSION
    """… if its own view is as new as that one's."""
    asked: int | None = None
    """It waits for the log, which answers as of so long ago."""
    asked_knows: bool = False
    heartbeat: Heartbeat | None = None

    @property
    def proof(self) -> int:
        """How old its best proof is."""
        return min(self.fresh, self.told)


class State(NamedTuple):
    """Everything. `fenced`: how long ago; None: not yet."""

    nodes: tuple[Node, ...]
    fenced: int | None = None
    known: int | None = None
    """How long ago another node came to know of it."""
    attempt: int | None = None
    """How long ago 0 began to read the log, which fails."""
    agreed: tuple[int, ...] = ()
    """How long ago each node was sent the last heartbeat with which it agreed."""
    agreement: int = SESSION
    """The age of the third proof."""
    is_checked: bool = False
    """A read was checked before its answer is there: what `checked_last` forbids."""
    stale: bool = False
    """A read was answered by what was true before, a session or more after the fencing."""


Step = tuple[str, State]


@dataclass(frozen=True, slots=True)
class Session:
    """The model; see the module's docstring. `lines`: who sends heartbeats to whom;
    `readers`: who reaches the log; `agrees`: there is the third proof.
    """

    guards: Guards = ALL
    lines: tuple[tuple[int, int], ...] = ((0, 1), (1, 2))
    readers: tuple[int, ...] = (2,)
    agrees: bool = False

    @property
    def invariants(self) -> dict[str, Callable[[State], str | None]]:
        """See `Model`."""
        return {"no stale read": lambda s: "a session after the fencing" if s.stale else None}

    def initial(self) -> State:
        """See `Model`."""
        count = 1 + max(*map(max, self.lines), *self.readers)
        return State((Node(),) * count, agreed=(SESSION,) * count if self.agrees else ())

    def steps(self, state: State) -> Iterator[Step]:
        """See `Model`."""
        if state.nodes[0].knows:
            return  # it answers nothing any more
        yield "a tick", _later(state)
        if state.fenced is None:
            yield "0 is fenced", state._replace(fenced=0)
        for at, node in enumerate(state.nodes):
            if at not in self.readers:
                pass
            elif node.asked is None:
                asking = node._replace(asked=0, asked_knows=state.fenced is not None)
                yield f"{at} asks the log", _with(state, at, asking)
            else:
                yield f"{at} has the log's answer", _known(state, at, self._refreshed(node))
            if node.heartbeat is None:
                for sender, to in self.lines:
                    if sender == at:
                        sending = node._replace(heartbeat=Heartbeat(to))
                        yield f"{at} sends a heartbeat to {to}", _with(state, at, sending)
            elif node.heartbeat.age is None:
                answered = self._answered(state.nodes[node.heartbeat.to], node.heartbeat)
                after = _with(state, at, node._replace(heartbeat=answered))
                yield f"{node.heartbeat.to} answers {at}'s heartbeat", after
            else:
                told = self._told(node, node.heartbeat, node.heartbeat.age, is_leader=at == 0)
                after = self._agreed(state, node.heartbeat) if at == 0 else state
                yield f"{at} has {node.heartbeat.to}'s answer", _with(after, at, told)
        if self.agrees and state.attempt is None:
            yield "0 begins to read the log", state._replace(attempt=0)
        elif state.attempt is not None:
            yield "0's reading of the log fails", self._failed(state, state.attempt)
        yield from self._read(state)

    def _agreed(self, state: State, heartbeat: Heartbeat) -> State:
        if not self.agrees or (heartbeat.knows and self.guards.knows_no_more):
            return state
        agreed = list(state.agreed)
        agreed[heartbeat.to] = heartbeat.sent
        return state._replace(agreed=tuple(agreed))

    def _failed(self, state: State, attempt: int) -> State:
        heard = {to for sender, to in self.lines if sender == 0}
        others = range(1, len(state.nodes)) if self.guards.every_node_agrees else heard
        oldest = attempt if self.guards.agreed_since else SESSION
        if any(state.agreed[one] > oldest for one in others):
            return state._replace(attempt=None)
        age = attempt if self.guards.from_the_attempt else 0
        return state._replace(attempt=None, agreement=min(state.agreement, age))

    def _refreshed(self, node: Node) -> Node:
        assert node.asked is not None
        age = node.asked if self.guards.from_the_asking else 0
        return node._replace(
            fresh=min(node.fresh, age),
            knows=node.knows or node.asked_knows,
            asked=None,
            asked_knows=False,
        )

    def _answered(self, other: Node, heartbeat: Heartbeat) -> Heartbeat:
        age = min(other.fresh, other.passed) if self.guards.pass_on_what_it_has else other.proof
        age = age if self.guards.age_counts else 0
        return heartbeat._replace(age=age, knows=other.knows)

    def _told(self, node: Node, heartbeat: Heartbeat, age: int, *, is_leader: bool) -> Node:
        sent = heartbeat.sent if self.guards.from_the_sending else 0
        proof = min(SESSION, sent + age)
        if is_leader and heartbeat.knows:
            return node._replace(heartbeat=None)  # its own view will tell; the proof does not count
        passed = proof if node.knows >= heartbeat.knows else SESSION
        return node._replace(
            told=min(node.told, proof), passed=min(node.passed, passed), heartbeat=None
        )

    def _read(self, state: State) -> Iterator[Step]:
        leader = state.nodes[0]
        is_current = not leader.knows and min(leader.proof, state.agreement) < SESSION
        since = state.known if self.agrees else state.fenced
        is_stale = since is not None and since >= SESSION
        answered = state._replace(is_checked=False, stale=state.stale or is_stale)
        if self.guards.checked_last:
            if is_current:
                yield "0 answers a read", answered
        elif state.is_checked:
            yield "0 answers a read", answered
        elif is_current:
            yield "0 checks a read", state._replace(is_checked=True)


def _later(state: State) -> State:
    return state._replace(
        nodes=tuple(_aged(node) for node in state.nodes),
        fenced=_older(state.fenced),
        known=_older(state.known),
        attempt=_older(state.attempt),
        agreed=tuple(min(SESSION, age + 1) for age in state.agreed),
        agreement=min(SESSION, state.agreement + 1),
    )


def _older(age: int | None) -> int | None:
    return None if age is None else min(SESSION, age + 1)


def _aged(node: Node) -> Node:
    heartbeat = node.heartbeat
    if heartbeat is not None:
        heartbeat = heartbeat._replace(sent=min(SESSION, heartbeat.sent + 1))
    return node._replace(
        fresh=min(SESSION, node.fresh + 1),
        told=min(SESSION, node.told + 1),
        passed=min(SESSION, node.passed + 1),
        asked=_older(node.asked),
        heartbeat=heartbeat,
    )


def _with(state: State, at: int, node: Node) -> State:
    nodes = list(state.nodes)
    nodes[at] = node
    return state._replace(nodes=tuple(nodes))


def _known(state: State, at: int, node: Node) -> State:
    """The state with a node that may have come to know of the fencing."""
    is_news = node.knows and at and state.known is None
    return _with(state._replace(known=0) if is_news else state, at, node)
