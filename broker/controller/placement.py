"""Who leads what, and who ought to: one look at every stream, in steps between which others have a
turn.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from lakehead.broker.controller.situation import Situation
from lakehead.storage.metadata.state import ClusterState, StreamState
from lakehead.storage.stream.left_logs import reaches

STREAMS_AT_ONCE = 1000
"""Streams that one step looks at: a few milliseconds' work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What a survey found.

    `leads` are the streams of each node that may be given more. `homeless` are those whose leader
    is gone or on its way out; `strays` those that are led well, but not by their preferred leader,
    which could. `moving` is how many are on their way to their leader now, `waiting` how many could
    go back to a preferred leader that is not settled yet, and one more while all who live drain.
    What lies in a log that nobody reaches moves nowhere.
    """

    leads: Mapping[int, Sequence[int]]
    homeless: Sequence[StreamState]
    strays: Sequence[StreamState]
    moving: int
    waiting: int

    @property
    def is_unsettled(self) -> bool:
        """Whether balance has to wait until something else is over."""
        return bool(self.homeless) or self.moving + self.waiting > 0


def survey(
    state: ClusterState, situation: Situation, dead: frozenset[int]
) -> Generator[None, None, Placement]:
    """Look at every stream and return what was found. `dead` are nodes that are fenced in the same
    entry.
    """
    nodes = {
        node_id: known
        for node_id, known in state.nodes.items()
        if not known.is_fenced and node_id not in dead
    }
    leaving = {n for n, known in nodes.items() if known.is_draining or n in situation.leaving}
    able = sorted(n for n in nodes if n in situation.ready and n not in situation.leaving)
    takers = [node_id for node_id in able if node_id not in leaving]
    # Rather a node that drains than nobody: but nothing is evened out among those.
    leads: dict[int, list[int]] = {node_id: [] for node_id in takers or able}
    lost = {
        node_id
        for node_id, known in state.nodes.items()
        if known.is_fenced and not any(reaches(one, known) for one in nodes.values())
    }
    homeless, strays, moving, waiting = [], [], 0, int(not takers)
    for number, stream in enumerate(state.streams.values(), 1):
        if not number % STREAMS_AT_ONCE:
            yield
        leader = leader_of(stream)
        is_going = leader in (leaving if takers else situation.leaving)
        if leader not in nodes or (is_going and leads):
            homeless.append(stream)
            continue
        if leader in leads:
            leads[leader].append(stream.stream_id)
        if not stream.is_open or stream.node_id != leader:
            moving += stream.node_id not in lost
        elif stream.preferred == leader or stream.preferred not in leads:
            continue
        elif stream.preferred in situation.settled:
            strays.append(stream)
        else:
            waiting += 1
    return Placement(leads=leads, homeless=homeless, strays=strays, moving=moving, waiting=waiting)


def leader_of(stream: StreamState) -> int:
    """Return who leads a stream or is to; -1 for nobody."""
    if stream.assigned >= 0:
        return stream.assigned
    return stream.node_id if stream.is_open else -1
