"""Who leads new partitions, and what moves by request: pure decisions over states."""

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map
from kio.schema.errors import ErrorCode

from lakehead.broker.cluster.metadata_image import leader_of, other_leader, replicas_of
from lakehead.broker.cluster.replica_manager import Transition, transition_of
from lakehead.broker.cluster.replication_control import (
    as_assigned,
    new_streams,
    plan_elections,
    plan_reassignments,
    spread,
)
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.metadata.records import CreateTopic, OpenStream, RegisterNode
from lakehead.storage.metadata.rules import apply_records
from lakehead.storage.metadata.state import MetadataImage, NodeState, StreamState

TOPIC_ID = "1" * 32


def node(node_id: int, **fields: object) -> NodeState:
    given: dict[str, object] = {"epoch": 0, "incarnation": "i", "host": "h", "port": 1}
    return NodeState(node_id=node_id, **{**given, "rack": None, **fields})  # type: ignore[arg-type]


def state_of(*nodes: NodeState, streams: Mapping[int, StreamState] | None = None) -> MetadataImage:
    state = MetadataImage(nodes=Map({one.node_id: one for one in nodes}))
    for stream_id, stream in (streams or {}).items():
        state = MetadataImage(nodes=state.nodes, streams=state.streams.set(stream_id, stream))
    return state


def stream(**fields: object) -> StreamState:
    given: dict[str, object] = {"stream_id": 0, "topic_id": TOPIC_ID, "partition": 0}
    return StreamState(**{**given, **fields})  # type: ignore[arg-type]


@given(
    racks=st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=12),
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    first=st.integers(0, 10_000),
)
def test_partitions_spread_evenly_over_topics_of_any_size(
    racks: list[str | None], counts: list[int], first: int
) -> None:
    nodes = [node(number, rack=rack) for number, rack in enumerate(racks)]
    leads: Counter[int] = Counter()
    for count in counts:
        state = MetadataImage(nodes=Map({n.node_id: n for n in nodes}), next_stream_id=first)
        leads.update(spread(state, count, ()))
        first += count
    shares = [leads[one.node_id] for one in nodes]
    assert max(shares) - min(shares) <= 1


def test_neighbours_are_in_different_racks() -> None:
    racks = ["a", "a", "a", "b", "b", "b", "c", "c", "c"]
    state = state_of(*(node(number, rack=rack) for number, rack in enumerate(racks)))
    order = [racks[leader] for leader in spread(state, 18, ())]
    assert all(len(set(order[at : at + 3])) == 3 for at in range(16))


def test_only_nodes_that_serve_and_stay_are_given_partitions() -> None:
    nodes = [node(1), node(2, is_draining=True), node(3, is_fenced=True), node(4)]
    assert set(spread(state_of(*nodes), 10, {1, 2, 3})) == {1}
    assert set(spread(state_of(*nodes), 10, {2})) == {1, 4}
    assert set(spread(state_of(nodes[1], nodes[2]), 10, ())) == {2}
    with pytest.raises(KafkaError) as refused:
        spread(state_of(nodes[2]), 1, ())
    assert refused.value.code is ErrorCode.broker_not_available


def test_new_streams_are_records_that_the_rules_take() -> None:
    register = [
        RegisterNode(node_id=one, epoch=0, incarnation=str(one), host="h", port=1) for one in (1, 2)
    ]
    topic = CreateTopic(name="t", topic_id=TOPIC_ID)
    state = apply_records(MetadataImage(), [*register, topic], 0)
    state = apply_records(state, new_streams(state, TOPIC_ID, range(3), [2, 1, 2]), 0)
    assert [state.streams[number].assigned for number in range(3)] == [2, 1, 2]
    assert [state.streams[number].preferred for number in range(3)] == [2, 1, 2]
    opened = OpenStream(stream_id=0, epoch=0, node_id=2, node_epoch=0)
    after = apply_records(state, [opened], 0)
    leader = leader_of(after, after.streams[0])
    assert leader is not None
    assert leader.node.node_id == 2


RECOVERED = node(9, is_fenced=True, wal_epoch=1)
UNRECOVERED = node(9, is_fenced=True)
LIVE = node(9)


def test_a_partition_can_be_given_to_a_node_that_has_just_come() -> None:
    state = state_of(node(1), node(2), node(3, is_fenced=True), node(4, is_draining=True))
    assert as_assigned(state, [(2, 1), (2,), (3, 4, 1)], {1}) == [1, 2, 1]
    for gone in (3, 4, 5):
        with pytest.raises(KafkaError) as refused:
            as_assigned(state, [(1,), (gone,)], {1})
        assert refused.value.code is ErrorCode.invalid_replica_assignment


@pytest.mark.parametrize(
    ("owner", "fields", "is_held", "duty"),
    [
        (LIVE, {"assigned": 1}, False, Transition.BECOME_LEADER),
        (LIVE, {"assigned": 2}, False, Transition.NONE),
        (LIVE, {"assigned": -1}, False, Transition.NONE),
        (LIVE, {"assigned": -1, "node_id": 1, "epoch": 3}, False, Transition.BECOME_LEADER),
        (LIVE, {"assigned": 1, "node_id": 9, "is_open": True}, False, Transition.AWAIT_NODES),
        (
            UNRECOVERED,
            {"assigned": 1, "node_id": 9, "is_open": True},
            False,
            Transition.AWAIT_NODES,
        ),
        (
            RECOVERED,
            {"assigned": 1, "node_id": 9, "is_open": True},
            False,
            Transition.BECOME_LEADER,
        ),
        (None, {"assigned": 1, "node_id": 9, "is_open": True}, False, Transition.BECOME_LEADER),
        (LIVE, {"assigned": 1, "node_id": 1, "is_open": True}, False, Transition.BECOME_LEADER),
        (LIVE, {"assigned": 9, "node_id": 1, "is_open": True}, False, Transition.RESIGN),
        (LIVE, {"assigned": 1, "node_id": 1, "is_open": True}, True, Transition.NONE),
        (LIVE, {"assigned": -1, "node_id": 1, "is_open": True}, True, Transition.NONE),
        (LIVE, {"assigned": 9, "node_id": 1, "is_open": True}, True, Transition.RESIGN),
        (UNRECOVERED, {"assigned": 9, "node_id": 1, "is_open": True}, True, Transition.AWAIT_NODES),
        (None, {"assigned": 9, "node_id": 1, "is_open": True}, True, Transition.AWAIT_NODES),
    ],
)
def test_what_node_1_has_to_do(
    owner: NodeState | None, fields: dict[str, object], is_held: bool, duty: Transition
) -> None:
    nodes = [node(1)] if owner is None else [node(1), owner]
    assert transition_of(state_of(*nodes), stream(**fields), 1, is_held=is_held) is duty


def test_clients_are_sent_to_who_leads_or_is_about_to() -> None:
    moving = stream(node_id=1, epoch=4, is_open=True, assigned=2, preferred=2)
    state = state_of(node(1), node(2), node(3, is_fenced=True), streams={0: moving})
    elsewhere = other_leader(state, moving, 3)
    assert elsewhere is not None
    assert (elsewhere.node.node_id, elsewhere.epoch) == (1, 4)
    beside = other_leader(state, moving, 1)
    assert beside is not None
    assert (beside.node.node_id, beside.epoch) == (2, 5)
    assert other_leader(state, stream(node_id=3, is_open=True, assigned=3), 1) is None
    assert other_leader(state, stream(node_id=1, is_open=True, assigned=1), 1) is None
    assert replicas_of(state, moving) == ((2, 1), (2, 1), ())
    orphan = stream(node_id=3, is_open=True, assigned=2, preferred=3)
    assert replicas_of(state, orphan) == ((3, 2), (2,), (3,))


def test_a_move_that_is_under_way_can_be_called_back() -> None:
    register = [
        RegisterNode(node_id=one, epoch=0, incarnation=str(one), host="h", port=1) for one in (1, 2)
    ]
    state = apply_records(MetadataImage(), [*register, CreateTopic(name="t", topic_id=TOPIC_ID)], 0)
    state = apply_records(state, new_streams(state, TOPIC_ID, range(1), [1]), 0)
    opened = OpenStream(stream_id=0, epoch=0, node_id=1, node_epoch=0)
    state = apply_records(state, [opened], 0)
    place = ("t", 0)
    assert plan_reassignments(state, [(place, None)], ()).errors[place].code is (
        ErrorCode.no_reassignment_in_progress
    )
    asked = [(place, (2,))]
    assert plan_reassignments(state, asked, {1}).errors[place].code is (
        ErrorCode.invalid_replica_assignment
    )
    state = apply_records(state, plan_reassignments(state, asked, {1, 2}).records(), 0)
    assert transition_of(state, state.streams[0], 1, is_held=True) is Transition.RESIGN
    state = apply_records(state, plan_reassignments(state, [(place, None)], ()).records(), 0)
    assert transition_of(state, state.streams[0], 1, is_held=True) is Transition.NONE
    assert state.streams[0].preferred == 1


def test_an_unclean_election_finds_somebody() -> None:
    dead = node(2, is_fenced=True)
    orphan = stream(node_id=2, epoch=0, is_open=True, assigned=2, preferred=2)
    state = state_of(node(1), dead, streams={0: orphan})
    topic_state = apply_records(MetadataImage(), [CreateTopic(name="t", topic_id=TOPIC_ID)], 0)
    topics = topic_state.topics.set(
        "t", type(topic_state.topics["t"])(name="t", topic_id=TOPIC_ID, partitions=(0,))
    )
    state = MetadataImage(nodes=state.nodes, streams=state.streams, topics=topics)
    place = ("t", 0)
    clean = plan_elections(state, [place], (), is_unclean=False)
    assert clean.errors[place].code is ErrorCode.preferred_leader_not_available
    unclean = plan_elections(state, [place], (), is_unclean=True)
    assert unclean.moves[place][:2] == (0, 1)
