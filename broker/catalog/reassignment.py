"""Moving leadership by request: pure. What is asked of partitions, judged against the state,
becomes `AssignStreams` records; who leads and who is to lead do the rest.

Storage is shared, so only the first live node of a replica list counts: it becomes the preferred
leader. The others are not kept.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from lakehead.broker.catalog.leaders import leader_of
from lakehead.broker.catalog.placement import first_willing, spread, willing_nodes
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.metadata.records import AssignStreams, CloseStream, Record
from lakehead.storage.metadata.state import ClusterState, StreamState
from lakehead.storage.stream.left_logs import reaches

Place = tuple[str, int]
"""A partition: topic name and index."""


class Loss(NamedTuple):
    """What is given up of a stream: all from `end_offset` on that node `node_id` has in its log."""

    node_id: int
    stream_epoch: int
    end_offset: int


class Move(NamedTuple):
    """A stream that a node is to lead from now on."""

    stream_id: int
    node_id: int
    is_preferred: bool
    loss: Loss | None = None


class Judged(NamedTuple):
    """What was asked for, as far as it can be done; and what cannot, by partition."""

    moves: dict[Place, Move]
    errors: dict[Place, KafkaError]

    def records(self) -> list[Record]:
        """Return what has to be committed."""
        closed = [
            CloseStream(stream_id=move.stream_id, epoch=move.loss.stream_epoch)
            for move in self.moves.values()
            if move.loss is not None
        ]
        shares: dict[tuple[int, bool], list[int]] = defaultdict(list)
        for move in self.moves.values():
            shares[move.node_id, move.is_preferred].append(move.stream_id)
        assigned = [
            AssignStreams(node_id=node_id, stream_ids=tuple(share), is_preferred=is_preferred)
            for (node_id, is_preferred), share in sorted(shares.items())
        ]
        return [*closed, *assigned]


def is_moving(state: ClusterState, stream: StreamState) -> bool:
    """Whether the stream was led, and is to be led by a node that does not yet."""
    if stream.assigned < 0 or stream.epoch < 0:
        return False
    leader = leader_of(state, stream)
    return leader is None or leader.node.node_id != stream.assigned


def judge_reassignments(
    state: ClusterState,
    asked: Sequence[tuple[Place, tuple[int, ...] | None]],
    ready: Collection[int],
) -> Judged:
    """Judge what AlterPartitionReassignments asks for: a replica list for each partition; None
    cancels a move that is under way. Nothing is given to a node that is not `ready`.
    """
    judged = Judged({}, {})
    for place, replicas in asked:
        try:
            stream = _stream(state, place)
            if replicas is None:
                node_id = _way_back(state, stream)
            else:
                node_id = _target(state, replicas, ready)
        except KafkaError as error:
            judged.errors[place] = error
        else:
            judged.moves[place] = Move(stream.stream_id, node_id, is_preferred=True)
    return judged


def judge_elections(
    state: ClusterState, places: Sequence[Place], ready: Collection[int], *, is_unclean: bool
) -> Judged:
    """Judge what ElectLeaders asks for: the preferred leader; or, unclean, any leader, for a
    partition that has none. Only the latter may lose records, and only where nothing else helps:
    see `Move.loss`.
    """
    elect = _unclean if is_unclean else _preferred
    judged = Judged({}, {})
    for place in places:
        try:
            judged.moves[place] = elect(state, _stream(state, place), ready)
        except KafkaError as error:
            judged.errors[place] = error
    return judged


def _preferred(state: ClusterState, stream: StreamState, ready: Collection[int]) -> Move:
    leader, wanted = leader_of(state, stream), stream.preferred
    if leader is not None and leader.node.node_id == wanted == stream.assigned:
        raise KafkaError(ErrorCode.election_not_needed, "Leader election not needed.")
    if any(node.node_id == wanted for node in willing_nodes(state, ready)):
        return Move(stream.stream_id, wanted, is_preferred=False)
    raise KafkaError(
        ErrorCode.preferred_leader_not_available, f"Broker {wanted} is preferred, and not there."
    )


def _unclean(state: ClusterState, stream: StreamState, ready: Collection[int]) -> Move:
    if leader_of(state, stream) is not None:
        raise KafkaError(ErrorCode.election_not_needed, "Leader election not needed.")
    loss = _loss(state, stream)
    willing = {node.node_id for node in willing_nodes(state, ready)}
    if not willing:
        raise KafkaError(ErrorCode.eligible_leaders_not_available, "No broker may lead it.")
    chosen = stream.assigned if stream.assigned in willing else spread(state, 1, ready)[0]
    return Move(stream.stream_id, chosen, is_preferred=False, loss=loss)


def _loss(state: ClusterState, stream: StreamState) -> Loss | None:
    """Return what an election costs a stream without leader; None: nothing.

    Raises KafkaError where a live node reaches what the dead one left: the partition comes back
    by itself, with everything.
    """
    owner = state.nodes.get(stream.node_id)
    if not stream.is_open or owner is None or owner.is_recovered:
        return None
    if any(reaches(node, owner) for node in state.nodes.values() if not node.is_fenced):
        raise KafkaError(
            ErrorCode.election_not_needed,
            f"What broker {owner.node_id} left is being recovered; nothing will be lost.",
        )
    return Loss(owner.node_id, stream.epoch, stream.end_offset)


def _stream(state: ClusterState, place: Place) -> StreamState:
    topic = state.topics.get(place[0])
    if topic is None or not 0 <= place[1] < len(topic.partitions):
        raise KafkaError(ErrorCode.unknown_topic_or_partition, "There is no such partition.")
    return state.streams[topic.partitions[place[1]]]


def _target(state: ClusterState, replicas: tuple[int, ...], ready: Collection[int]) -> int:
    if not replicas or len(set(replicas)) != len(replicas):
        raise KafkaError(
            ErrorCode.invalid_replica_assignment, f"Brokers {list(replicas)} are none, or repeated."
        )
    for node_id in replicas:
        if node_id not in state.nodes:
            raise KafkaError(
                ErrorCode.invalid_replica_assignment, f"No broker has the id {node_id}."
            )
    return first_willing(state, replicas, ready)


def _way_back(state: ClusterState, stream: StreamState) -> int:
    leader = leader_of(state, stream)
    if not is_moving(state, stream) or leader is None:
        raise KafkaError(
            ErrorCode.no_reassignment_in_progress, "No move of this partition can be cancelled."
        )
    return leader.node.node_id
