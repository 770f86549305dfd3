"""What the controller does next: a pure function of the cluster's state and of a situation.

In this order: take the lease if it is vacant, fence who is dead, give every stream without a leader
to somebody, empty nodes that drain or stop, bring streams back to their preferred leaders, balance.
All of it is one entry. Every record carries the controller's term, so that a controller that was
superseded while it slept changes nothing.

There may be a hundred thousand streams, so it is planned in steps between which the event loop does
other work.
"""

from collections import defaultdict
from collections.abc import Generator, Sequence

from lakehead.broker.controller.balance import balance
from lakehead.broker.controller.placement import STREAMS_AT_ONCE, Placement, survey
from lakehead.broker.controller.situation import Situation
from lakehead.storage.metadata.records import AssignStreams, ControllerLease, FenceNode, Record
from lakehead.storage.metadata.state import ClusterState


def is_lease_vacant(state: ClusterState, situation: Situation) -> bool:
    """Whether nobody who lives, and does what the controller has to do, holds the lease."""
    if situation.is_neglected and unfenced_dead(state, situation):
        return True
    holder = state.nodes.get(state.controller.node_id)
    if holder is None or holder.is_fenced or holder.epoch != state.controller.node_epoch:
        return True
    return situation.dead.get(holder.node_id) == holder.epoch


def is_controller(state: ClusterState, node_id: int, epoch: int) -> bool:
    """Whether a node in this epoch holds the lease."""
    return (state.controller.node_id, state.controller.node_epoch) == (node_id, epoch)


def unfenced_dead(state: ClusterState, situation: Situation) -> list[int]:
    """Return the nodes that are dead in the epoch that the state knows and has not ended."""
    return [
        node_id
        for node_id, epoch in sorted(situation.dead.items())
        if (known := state.nodes.get(node_id)) is not None
        and known.epoch == epoch
        and not known.is_fenced
    ]


def plan(state: ClusterState, situation: Situation) -> Generator[None, None, Sequence[Record]]:
    """Plan in steps; return the records of the next entry. There are none when there is nothing to
    do, or it is for others to do.
    """
    own = state.nodes.get(situation.node_id)
    if own is None or own.is_fenced or own.epoch != situation.node_epoch:
        return ()
    records: list[Record] = []
    term = state.controller.term
    if not is_controller(state, own.node_id, own.epoch):
        if not (situation.may_lead and is_lease_vacant(state, situation)):
            return ()
        term += 1
        records.append(
            ControllerLease(node_id=situation.node_id, node_epoch=situation.node_epoch, term=term)
        )
    dead = unfenced_dead(state, situation)
    records += [
        FenceNode(node_id=node_id, epoch=situation.dead[node_id], term=term) for node_id in dead
    ]
    placement = yield from survey(state, situation, frozenset(dead))
    settled = yield from _settle(placement)
    records += _assignments(settled, term, is_preferred=False)
    if situation.is_balance_due and not placement.is_unsettled:
        records += yield from _balancing(placement, situation, term)
    return records


def _settle(placement: Placement) -> Generator[None, None, list[tuple[int, int]]]:
    """Return (stream, node) for every stream that has no leader or is to have another: who has it
    open, or else its preferred one, where that can be; else who leads fewest.
    """
    counts = {node_id: len(streams) for node_id, streams in placement.leads.items()}
    if not counts:
        return []
    chosen = []
    for number, stream in enumerate(placement.homeless, 1):
        if not number % STREAMS_AT_ONCE:
            yield
        target = stream.node_id if stream.is_open else -1
        if target not in counts:
            target = stream.preferred
        if target not in counts:
            target = min(counts, key=lambda node_id: (counts[node_id], node_id))
        counts[target] += 1
        chosen.append((stream.stream_id, target))
    return chosen


def _balancing(
    placement: Placement, situation: Situation, term: int
) -> Generator[None, None, list[Record]]:
    if placement.strays:
        back = [(stream.stream_id, stream.preferred) for stream in placement.strays]
        return _assignments(back, term, is_preferred=False)
    moves = yield from balance(placement.leads, situation.loads, imbalance=situation.imbalance)
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
