"""Create topics and partitions, place them on nodes, move their leadership by request.

Any node may do this: it plans records from the newest metadata image and commits them to the
metadata log. `ReplicationControl` commits; the plans are pure functions, which are run again when
another entry comes first. Storage is shared, so only the first live node of a replica list counts:
it becomes the preferred leader, and the others are not kept.

New partitions go round over the live nodes in an order in which racks alternate, from a place that
follows from the first stream id: topics of one partition spread as well as those of many. The
controller balances them later by what they carry.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import structlog
from kio.schema.errors import ErrorCode

from lakehead.broker.cluster.cordons import is_cordoned
from lakehead.broker.cluster.metadata_image import TopicPartition, leader_of, live_nodes
from lakehead.broker.cluster.replica_manager import OPENING_S, ReplicaManager
from lakehead.broker.deadline import Deadline
from lakehead.broker.partition.partition import (
    OFFSETS_TOPIC,
    SHARE_STATES_TOPIC,
    TRANSACTIONS_TOPIC,
    Partition,
    Topic,
    TopicRegistry,
    is_valid_name,
)
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.settings import Settings
from lakehead.storage.errors import TopicExists
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import (
    AssignStreams,
    CloseStream,
    CreateStream,
    CreateTopic,
    DeleteTopic,
    Record,
)
from lakehead.storage.metadata.state import MetadataImage, NodeState, StreamState
from lakehead.storage.stream.unrecovered_wals import reaches

PARTITIONS_MAX = 100_000
OFFSETS_CONFIGS = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "segment.bytes": "104857600",
}
TRANSACTIONS_CONFIGS = {
    "cleanup.policy": "compact",
    "compression.type": "uncompressed",
    "segment.bytes": "104857600",
    "unclean.leader.election.enable": "false",
}
SHARE_STATES_CONFIGS = {
    "cleanup.policy": "delete",
    "compression.type": "uncompressed",
    "retention.ms": "-1",
    "segment.bytes": "104857600",
}

_INTERNAL_CREATION_S = 20.0
"""Less than clients wait for the response of FindCoordinator, which makes these topics."""
_log = structlog.get_logger("broker.replication_control")


class ReplicationControl:
    """Creates, extends and deletes topics. One for each node.

    `ready_nodes` returns the nodes that are known to serve. New partitions are placed on them, not
    on nodes that are merely not fenced.
    """

    def __init__(
        self,
        metadata: MetadataLog,
        replicas: ReplicaManager,
        settings: Settings,
        rng: random.Random,
        ready_nodes: Callable[[], Collection[int]],
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._topics = replicas.topics
        self._settings = settings
        self._rng = rng
        self._ready_nodes = ready_nodes

    async def create(
        self,
        name: str,
        partitions: int,
        configs: Mapping[str, str] | None = None,
        replicas: Sequence[tuple[int, ...]] = (),
        *,
        check: Callable[[MetadataImage], None] = lambda _state: None,
        deadline: Deadline | None = None,
    ) -> Topic:
        """Create a topic; return when every partition has its leader, or after `OPENING_S`, or at
        the deadline. Without one a minute is left.

        `replicas` lists node ids for each partition, the leader first; if empty, nodes take turns.
        `check` raises an error to refuse the topic in the state that it would be added to. Raises
        KafkaError (INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS, INVALID_REPLICA_ASSIGNMENT,
        BROKER_NOT_AVAILABLE, INVALID_REPLICATION_FACTOR; REQUEST_TIMED_OUT, if it is not known by
        the deadline that the topic exists), TopicExists, StorageError.
        """
        if not is_valid_name(name):
            raise KafkaError(
                ErrorCode.invalid_topic_exception, f"{name!r} is not a valid topic name"
            )
        if not 0 < partitions <= PARTITIONS_MAX:
            raise KafkaError(
                ErrorCode.invalid_partitions, f"a topic has 1 to {PARTITIONS_MAX} partitions"
            )
        topic_id = f"{self._rng.getrandbits(128) | 1:032x}"

        def plan(state: MetadataImage) -> Sequence[Record]:
            if name in state.topics:
                raise TopicExists(f"topic {name} exists")
            check(state)
            return [
                CreateTopic(name=name, topic_id=topic_id, configs=dict(configs or {})),
                *self._new_streams(state, topic_id, range(partitions), replicas),
            ]

        deadline = deadline or Deadline()
        async with deadline.limit():
            await self._metadata.commit_with(plan)
        topic = self._topics.by_id.get(bytes.fromhex(topic_id))
        if topic is None:  # deleted already
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        await self._replicas.wait_led(topic.stream_ids, min(OPENING_S, deadline.left_s))
        _log.info("topic_created", topic=name, topic_id=topic_id, partitions=partitions)
        return topic

    def _new_streams(
        self,
        state: MetadataImage,
        topic_id: str,
        partitions: range,
        replicas: Sequence[tuple[int, ...]],
    ) -> Sequence[Record]:
        ready = self._ready_nodes()
        if replicas:
            leaders = as_assigned(state, replicas, ready)
        else:
            leaders = spread(state, len(partitions), ready)
        return new_streams(state, topic_id, partitions, leaders)

    async def ensure(
        self,
        name: str,
        *,
        check: Callable[[MetadataImage], None] = lambda _state: None,
        deadline: Deadline | None = None,
    ) -> Topic:
        """Return a topic; create it with the default configs if it is missing and `check` allows
        that. Raises the errors of `create`, except TopicExists.
        """
        topic = self._topics.by_name.get(name)
        deadline = deadline or Deadline()
        create = partial(self.create, name, deadline=deadline)
        while topic is None:
            try:
                if name == OFFSETS_TOPIC:
                    number = self._settings.offsets_topic_num_partitions
                    topic = await create(number, OFFSETS_CONFIGS)
                elif name == TRANSACTIONS_TOPIC:
                    number = self._settings.transaction_state_log_num_partitions
                    topic = await create(number, TRANSACTIONS_CONFIGS)
                elif name == SHARE_STATES_TOPIC:
                    number = self._settings.share_coordinator_state_topic_num_partitions
                    topic = await create(number, SHARE_STATES_CONFIGS)
                else:
                    topic = await create(self._settings.num_partitions, check=check)
            except TopicExists:
                topic = self._topics.by_name.get(name)
                if topic is not None:
                    await self._replicas.wait_led(topic.stream_ids, min(OPENING_S, deadline.left_s))
        return topic

    async def delete(self, topic_id: str, deadline: Deadline | None = None) -> None:
        """Delete a topic. Raises KafkaError (REQUEST_TIMED_OUT), UnknownTopic, StorageError."""
        async with (deadline or Deadline()).limit():
            await self._metadata.commit([DeleteTopic(topic_id=topic_id)])

    async def add_partitions(
        self,
        name: str,
        count: int,
        replicas: Sequence[tuple[int, ...]] = (),
        deadline: Deadline | None = None,
    ) -> None:
        """Extend a topic to `count` partitions; return when each has its leader, or after
        `OPENING_S`, or at the deadline. Raises KafkaError (UNKNOWN_TOPIC_OR_PARTITION,
        INVALID_PARTITIONS, INVALID_REPLICA_ASSIGNMENT, BROKER_NOT_AVAILABLE, REQUEST_TIMED_OUT),
        StorageError.
        """

        def plan(state: MetadataImage) -> Sequence[Record]:
            known = state.topics.get(name)
            if known is None:
                raise KafkaError(ErrorCode.unknown_topic_or_partition)
            present = len(known.partitions)
            if not present < count <= PARTITIONS_MAX:
                raise KafkaError(ErrorCode.invalid_partitions)
            if replicas and len(replicas) != count - present:  # others were added meanwhile
                raise KafkaError(
                    ErrorCode.invalid_replica_assignment,
                    f"{count - present} partition(s) are added, {len(replicas)} assigned.",
                )
            return self._new_streams(state, known.topic_id, range(present, count), replicas)

        deadline = deadline or Deadline()
        async with deadline.limit():
            state = await self._metadata.commit_with(plan)
        known = state.topics.get(name)  # it may have been deleted since
        partitions = () if known is None else known.partitions
        await self._replicas.wait_led(partitions, min(OPENING_S, deadline.left_s))


class InternalTopic:
    """The partitions of an internal topic that this node leads, as a coordinator needs them."""

    def __init__(self, control: ReplicationControl, topics: TopicRegistry, name: str) -> None:
        self.name = name
        self._control = control
        self._topics = topics

    def partition_count(self) -> int:
        """Partitions of the topic; 0 while it does not exist."""
        topic = self._topics.by_name.get(self.name)
        return 0 if topic is None else len(topic.partitions)

    def partition(self, index: int) -> Partition | None:
        """Return the partition if this node leads it and is not resigning; else None."""
        partition = self._topics.partition(self.name, index)
        return partition if partition is not None and partition.stream.is_open else None

    def epoch(self, index: int) -> int:
        """Return the leader epoch of a partition, or -1 if another node leads it."""
        partition = self.partition(index)
        return -1 if partition is None else partition.leader_epoch

    async def create(self) -> None:
        """Create the topic if it does not exist. Raises KafkaError (COORDINATOR_NOT_AVAILABLE if it
        is not there in time, other errors as `ReplicationControl.create`), StorageError.
        """
        try:
            await self._control.ensure(self.name, deadline=Deadline(_INTERNAL_CREATION_S))
        except KafkaError as error:
            if error.code is not ErrorCode.request_timed_out:
                raise
            raise KafkaError(ErrorCode.coordinator_not_available) from None


# Placement.


def new_streams(
    state: MetadataImage, topic_id: str, partitions: range, leaders: Sequence[int]
) -> list[Record]:
    """Return the records that create these partitions of a topic and assign each to its leader."""
    created = unassigned_streams(state, topic_id, partitions)
    shares: dict[int, list[int]] = defaultdict(list)
    for stream, leader in zip(created, leaders, strict=True):
        shares[leader].append(stream.stream_id)
    return [
        *created,
        *(
            AssignStreams(node_id=leader, stream_ids=tuple(share))
            for leader, share in sorted(shares.items())
        ),
    ]


def unassigned_streams(
    state: MetadataImage, topic_id: str, partitions: range
) -> list[CreateStream]:
    """Return the records that create these partitions of a topic, for no node yet."""
    first = state.next_stream_id - partitions.start
    return [
        CreateStream(stream_id=first + partition, topic_id=topic_id, partition=partition)
        for partition in partitions
    ]


def willing_nodes(state: MetadataImage, ready: Collection[int]) -> list[NodeState]:
    """Return the nodes that may be given partitions: neither fenced nor draining, and in `ready`
    unless that is empty. A node that is not fenced may still be down.
    """
    willing = [node for node in live_nodes(state) if not node.is_draining]
    return [node for node in willing if node.node_id in ready] if ready else willing


def first_willing(state: MetadataImage, replicas: Sequence[int], ready: Collection[int]) -> int:
    """Return the first node of a replica list that can lead. Raises KafkaError
    (INVALID_REPLICA_ASSIGNMENT).
    """
    willing = {node.node_id for node in willing_nodes(state, ready)}
    for node_id in replicas:
        if node_id in willing:
            return node_id
    raise KafkaError(
        ErrorCode.invalid_replica_assignment,
        f"None of the brokers {list(replicas)} can lead the partition now.",
    )


def as_assigned(
    state: MetadataImage, assignment: Sequence[Sequence[int]], ready: Collection[int]
) -> list[int]:
    """Return the leader of each new partition from its replica list: the first node that is
    `ready`; without one, the first that is neither fenced nor draining, since a node that has just
    registered has not sent a heartbeat yet. Raises KafkaError (INVALID_REPLICA_ASSIGNMENT).
    """
    heard = {node.node_id for node in willing_nodes(state, ready)}
    return [
        first_willing(state, replicas, ready if heard.intersection(replicas) else ())
        for replicas in assignment
    ]


def spread(state: MetadataImage, count: int, ready: Collection[int]) -> list[int]:
    """Return the leaders of the next `count` streams: nodes that are `ready` and not draining, or,
    without any, nodes that are not fenced; none of them is cordoned. Raises KafkaError
    (BROKER_NOT_AVAILABLE; INVALID_REPLICATION_FACTOR if all are cordoned).
    """
    order = _racks_in_turn(_takers(state, ready))
    first = state.next_stream_id
    return [order[stream_id % len(order)] for stream_id in range(first, first + count)]


def _takers(state: MetadataImage, ready: Collection[int]) -> list[NodeState]:
    """Return the nodes that new streams go to."""
    live = live_nodes(state)
    if not live:
        raise KafkaError(ErrorCode.broker_not_available, "no broker can lead a partition now")
    for nodes in (willing_nodes(state, ready), willing_nodes(state, ()), live):
        takers = [node for node in nodes if not is_cordoned(state, node.node_id)]
        if takers:
            return takers
    raise KafkaError(
        ErrorCode.invalid_replication_factor,
        "All brokers are currently fenced, or have all their log directories cordoned.",
    )


def _racks_in_turn(nodes: Sequence[NodeState]) -> list[int]:
    """Return the ids of nodes, neighbours in different racks where possible."""
    racks: dict[str, list[int]] = defaultdict(list)
    for node in nodes:
        racks[node.rack or ""].append(node.node_id)
    places = [
        # Spread the nodes of each rack evenly over the circle, so that small racks last to its end.
        ((number + 0.5) / len(rack), name, node_id)
        for name, rack in sorted(racks.items())
        for number, node_id in enumerate(rack)
    ]
    return [node_id for _, _, node_id in sorted(places)]


# Moves by request.


class Loss(NamedTuple):
    """The records that an unclean election gives up: all from `end_offset` on in the write-ahead
    log of node `node_id`.
    """

    node_id: int
    stream_epoch: int
    end_offset: int


class Move(NamedTuple):
    """A stream and the node that is to lead it."""

    stream_id: int
    node_id: int
    is_preferred: bool
    loss: Loss | None = None


class MovePlan(NamedTuple):
    """The moves of a request that are possible, and the errors of the others, by partition."""

    moves: dict[TopicPartition, Move]
    errors: dict[TopicPartition, KafkaError]

    def records(self) -> list[Record]:
        """Return the records to commit."""
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


def is_moving(state: MetadataImage, stream: StreamState) -> bool:
    """Return true if a stream that had a leader is assigned to a node that does not lead it yet."""
    if stream.assigned < 0 or stream.epoch < 0:
        return False
    leader = leader_of(state, stream)
    return leader is None or leader.node.node_id != stream.assigned


def plan_reassignments(
    state: MetadataImage,
    requested: Sequence[tuple[TopicPartition, tuple[int, ...] | None]],
    ready: Collection[int],
) -> MovePlan:
    """Plan an AlterPartitionReassignments request: a replica list for each partition, or None to
    cancel a move in progress. A node that is not `ready` gets no partition.
    """
    planned = MovePlan({}, {})
    for where, replicas in requested:
        try:
            stream = _stream(state, where)
            if replicas is None:
                node_id = _way_back(state, stream)
            else:
                node_id = _target(state, replicas, ready)
        except KafkaError as error:
            planned.errors[where] = error
        else:
            planned.moves[where] = Move(stream.stream_id, node_id, is_preferred=True)
    return planned


def plan_elections(
    state: MetadataImage,
    partitions: Sequence[TopicPartition],
    ready: Collection[int],
    *,
    is_unclean: bool,
) -> MovePlan:
    """Plan an ElectLeaders request: elect the preferred leader; or, unclean, any leader for a
    partition without one. Only an unclean election may lose records, and only if no live node can
    recover them: see `Move.loss`.
    """
    elect = _unclean if is_unclean else _preferred
    planned = MovePlan({}, {})
    for where in partitions:
        try:
            planned.moves[where] = elect(state, _stream(state, where), ready)
        except KafkaError as error:
            planned.errors[where] = error
    return planned


def _preferred(state: MetadataImage, stream: StreamState, ready: Collection[int]) -> Move:
    leader, wanted = leader_of(state, stream), stream.preferred
    if leader is not None and leader.node.node_id == wanted == stream.assigned:
        raise KafkaError(ErrorCode.election_not_needed, "Leader election not needed.")
    if any(node.node_id == wanted for node in willing_nodes(state, ready)):
        return Move(stream.stream_id, wanted, is_preferred=False)
    raise KafkaError(
        ErrorCode.preferred_leader_not_available, f"The preferred broker {wanted} is not available."
    )


def _unclean(state: MetadataImage, stream: StreamState, ready: Collection[int]) -> Move:
    if leader_of(state, stream) is not None:
        raise KafkaError(ErrorCode.election_not_needed, "Leader election not needed.")
    loss = _loss(state, stream)
    willing = {one.node_id: is_cordoned(state, one.node_id) for one in willing_nodes(state, ready)}
    if not willing:
        raise KafkaError(
            ErrorCode.eligible_leaders_not_available, "No broker can lead the partition."
        )
    chosen = stream.assigned
    if chosen not in willing:  # a cordoned node is better than none
        chosen = min(willing) if all(willing.values()) else spread(state, 1, ready)[0]
    return Move(stream.stream_id, chosen, is_preferred=False, loss=loss)


def _loss(state: MetadataImage, stream: StreamState) -> Loss | None:
    """Return the loss that an election of a stream without a leader costs, or None.

    Raises KafkaError if a live node reaches the log of the dead leader: then the partition comes
    back by itself, with all records.
    """
    owner = state.nodes.get(stream.node_id)
    if not stream.is_open or owner is None or owner.is_recovered:
        return None
    if any(reaches(node, owner) for node in state.nodes.values() if not node.is_fenced):
        raise KafkaError(
            ErrorCode.election_not_needed,
            f"The log of broker {owner.node_id} is being recovered; nothing will be lost.",
        )
    return Loss(owner.node_id, stream.epoch, stream.end_offset)


def _stream(state: MetadataImage, where: TopicPartition) -> StreamState:
    topic = state.topics.get(where[0])
    if topic is None or not 0 <= where[1] < len(topic.partitions):
        raise KafkaError(ErrorCode.unknown_topic_or_partition, "The partition does not exist.")
    return state.streams[topic.partitions[where[1]]]


def _target(state: MetadataImage, replicas: tuple[int, ...], ready: Collection[int]) -> int:
    if not replicas or len(set(replicas)) != len(replicas):
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            f"Replica list {list(replicas)} is empty or contains duplicates.",
        )
    for node_id in replicas:
        if node_id not in state.nodes:
            raise KafkaError(
                ErrorCode.invalid_replica_assignment, f"Broker {node_id} is not registered."
            )
    return first_willing(state, replicas, ready)


def _way_back(state: MetadataImage, stream: StreamState) -> int:
    leader = leader_of(state, stream)
    if not is_moving(state, stream) or leader is None:
        raise KafkaError(
            ErrorCode.no_reassignment_in_progress, "The partition is not being reassigned."
        )
    return leader.node.node_id
