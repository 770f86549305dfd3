"""Which nodes are to lead new partitions: pure.

Partitions go round over the live nodes in an order in which racks alternate, from a place that
follows from the first one's stream id: topics of one partition spread as well as those of many, and
every node comes to the same answer. Balancing by what partitions really carry comes later, and is
the controller's.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence

from kio.schema.errors import ErrorCode

from lakehead.broker.catalog.leaders import live_nodes
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.metadata.records import AssignStreams, CreateStream, Record
from lakehead.storage.metadata.state import ClusterState, NodeState


def new_streams(
    state: ClusterState, topic_id: str, partitions: range, leaders: Sequence[int]
) -> list[Record]:
    """Return the records that make these partitions of a topic and say who is to lead each."""
    first = state.next_stream_id
    stream_ids = range(first, first + len(partitions))
    shares: dict[int, list[int]] = defaultdict(list)
    for stream_id, leader in zip(stream_ids, leaders, strict=True):
        shares[leader].append(stream_id)
    return [
        *(
            CreateStream(stream_id=stream_id, topic_id=topic_id, partition=partition)
            for stream_id, partition in zip(stream_ids, partitions, strict=True)
        ),
        *(
            AssignStreams(node_id=leader, stream_ids=tuple(share))
            for leader, share in sorted(shares.items())
        ),
    ]


def willing_nodes(state: ClusterState, ready: Collection[int]) -> list[NodeState]:
    """Return the nodes that live and are not draining; of these, once it is known who is `ready`,
    only those that are: a node that is not fenced may be gone all the same.
    """
    willing = [node for node in live_nodes(state) if not node.is_draining]
    return [node for node in willing if node.node_id in ready] if ready else willing


def first_willing(state: ClusterState, replicas: Sequence[int], ready: Collection[int]) -> int:
    """Return the first of these nodes that can lead. Raises KafkaError
    (INVALID_REPLICA_ASSIGNMENT).
    """
    willing = {node.node_id for node in willing_nodes(state, ready)}
    for node_id in replicas:
        if node_id in willing:
            return node_id
    raise KafkaError(
        ErrorCode.invalid_replica_assignment,
        f"None of the brokers {list(replicas)} is there to lead the partition.",
    )


def as_assigned(
    state: ClusterState, assignment: Sequence[Sequence[int]], ready: Collection[int]
) -> list[int]:
    """Return the leaders of new partitions whose replicas were given: of each the first that is
    `ready`, or, without any, that is registered and neither fenced nor draining: a node that has
    just come sent no heartbeat yet. Raises KafkaError (INVALID_REPLICA_ASSIGNMENT).
    """
    heard = {node.node_id for node in willing_nodes(state, ready)}
    return [
        first_willing(state, replicas, ready if heard.intersection(replicas) else ())
        for replicas in assignment
    ]


def spread(state: ClusterState, count: int, ready: Collection[int]) -> list[int]:
    """Return the leaders of the next `count` streams: nodes that are `ready` and not draining, or,
    without any, whoever is not fenced. Raises KafkaError (BROKER_NOT_AVAILABLE).
    """
    chosen = willing_nodes(state, ready) or willing_nodes(state, ()) or live_nodes(state)
    if not chosen:
        raise KafkaError(ErrorCode.broker_not_available, "no node is there to lead a partition")
    order = _racks_in_turn(chosen)
    first = state.next_stream_id
    return [order[stream_id % len(order)] for stream_id in range(first, first + count)]


def _racks_in_turn(nodes: Sequence[NodeState]) -> list[int]:
    """Return the nodes' ids, neighbours in different racks where that can be."""
    racks: dict[str, list[int]] = defaultdict(list)
    for node in nodes:
        racks[node.rack or ""].append(node.node_id)
    places = [
        # Each rack's nodes are laid evenly over the circle, so that small racks are not used up.
        ((number + 0.5) / len(rack), name, node_id)
        for name, rack in sorted(racks.items())
        for number, node_id in enumerate(rack)
    ]
    return [node_id for _, _, node_id in sorted(places)]
