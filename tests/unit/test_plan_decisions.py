"""What a controller decides: the pure plan over states made by real records."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from lakehead.broker.cluster import controller as planning
from lakehead.broker.cluster.balance import MOVES_MAX
from lakehead.broker.cluster.controller import ClusterView, is_lease_vacant
from lakehead.broker.cluster.heartbeat import NodeLoad
from lakehead.storage.errors import EntryRejected
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.log_reader import in_steps
from lakehead.storage.metadata.rules import apply_records
from lakehead.storage.metadata.state import MetadataImage
from tests.support.loop_watch import watched_loop
from tests.support.planned import balance, plan, stream_weights
from tests.support.processor_time import measured

TOPIC = f"{7:032x}"


def registration(node_id: int, epoch: int = 0) -> r.RegisterNode:
    return r.RegisterNode(node_id=node_id, epoch=epoch, incarnation="i", host="h", port=1)


def cluster(nodes: int, streams: int = 0) -> MetadataImage:
    """Nodes 0, 1, ... of which 0 is the controller; streams dealt out and open in turn."""
    records: list[r.Record] = [r.ClusterCreated(cluster_id="c")]
    records += [registration(node_id) for node_id in range(nodes)]
    records += [r.ControllerLease(node_id=0, node_epoch=0, term=0)]
    records += [r.CreateTopic(name="t", topic_id=TOPIC)]
    for stream_id in range(streams):
        node_id = stream_id % nodes
        records += [
            r.CreateStream(stream_id=stream_id, topic_id=TOPIC, partition=stream_id),
            r.AssignStreams(node_id=node_id, stream_ids=(stream_id,)),
            r.OpenStream(stream_id=stream_id, epoch=0, node_id=node_id, node_epoch=0),
        ]
    return apply_records(MetadataImage(), records, 0)


def seen(state: MetadataImage, node_id: int = 0, **changes: Any) -> ClusterView:
    """What a node sees when everybody who is registered serves."""
    live = frozenset(n for n, known in state.nodes.items() if not known.is_fenced)
    situation = ClusterView(
        node_id=node_id, node_epoch=state.nodes[node_id].epoch, ready=live, settled=live
    )
    return replace(situation, **changes)


def dead(state: MetadataImage, *node_ids: int, by: int = 0, **changes: Any) -> ClusterView:
    """What is seen when some are dead and the others serve."""
    ready = frozenset(state.nodes) - set(node_ids)
    return seen(
        state,
        by,
        ready=ready,
        settled=ready,
        dead={node_id: state.nodes[node_id].epoch for node_id in node_ids},
        **changes,
    )


def carried_out(state: MetadataImage, records: Sequence[r.Record]) -> MetadataImage:
    return apply_records(state, records, 0)


def leaders(state: MetadataImage) -> Counter[int]:
    return Counter(stream.assigned for stream in state.streams.values())


def moved(state: MetadataImage) -> MetadataImage:
    """The state after everybody has done what was decided: streams are open where assigned."""
    for stream in list(state.streams.values()):
        if stream.is_open and stream.node_id == stream.assigned:
            continue
        records: list[r.Record] = []
        if stream.is_open and not state.nodes[stream.node_id].is_fenced:
            records.append(r.CloseStream(stream_id=stream.stream_id, epoch=stream.epoch))
        elif stream.is_open and not state.nodes[stream.node_id].is_recovered:
            owner = state.nodes[stream.node_id]
            records.append(
                r.CommitObjects(
                    node_id=owner.node_id,
                    node_epoch=owner.epoch,
                    objects=(),
                    wal_epoch=owner.epoch + 1,
                    taker_id=stream.assigned,
                    taker_epoch=state.nodes[stream.assigned].epoch,
                )
            )
        records.append(
            r.OpenStream(
                stream_id=stream.stream_id,
                epoch=stream.epoch + 1,
                node_id=stream.assigned,
                node_epoch=state.nodes[stream.assigned].epoch,
            )
        )
        state = apply_records(state, records, 0)
    return state


def test_nothing_is_decided_while_all_is_well() -> None:
    state = cluster(3, 9)
    assert plan(state, seen(state, is_balance_due=True)) == []
    assert plan(state, seen(state, 1, is_balance_due=True)) == ()


def test_the_dead_are_fenced_and_what_they_led_goes_to_all_others_in_one_entry() -> None:
    state = cluster(4, 40)
    records = plan(state, dead(state, 3))
    assert isinstance(records[0], r.FenceNode)
    state = carried_out(state, records)
    assert state.nodes[3].is_fenced
    counts = leaders(state)
    assert counts.keys() == {0, 1, 2}
    assert max(counts.values()) - min(counts.values()) <= 1


def test_several_dead_at_once() -> None:
    state = carried_out(cluster(5, 50), plan(cluster(5, 50), dead(cluster(5, 50), 1, 3)))
    assert leaders(state).keys() == {0, 2, 4}


def test_only_the_holder_of_the_lease_decides() -> None:
    state = cluster(3, 9)
    assert plan(state, dead(state, 2, by=1)) == ()
    assert plan(state, dead(state, 2, by=1, may_lead=True)) == ()


def test_the_lease_is_taken_with_the_fencing_of_who_held_it() -> None:
    state = cluster(3, 9)
    situation = dead(state, 0, by=1, may_lead=True)
    assert is_lease_vacant(state, situation)
    after = carried_out(state, plan(state, situation))
    assert (after.controller.node_id, after.controller.term) == (1, 1)
    assert after.nodes[0].is_fenced
    assert leaders(after).keys() == {1, 2}


def test_a_controller_that_leaves_the_dead_unfenced_loses_the_lease() -> None:
    """It hears the others, and does not reach the store: its silence is not what tells."""
    state = cluster(3, 9)
    neglected = dead(state, 2, by=1, may_lead=True, is_neglected=True)
    after = carried_out(state, plan(state, neglected))
    assert (after.controller.node_id, after.controller.term) == (1, 1)
    assert after.nodes[2].is_fenced
    assert not after.nodes[0].is_fenced
    assert plan(after, neglected) == []


def test_a_controller_that_was_superseded_changes_nothing() -> None:
    state = cluster(3, 9)
    late = plan(state, dead(state, 1, 2))
    assert late
    state = carried_out(state, plan(state, dead(state, 0, by=1, may_lead=True)))
    with pytest.raises(EntryRejected, match="term"):
        carried_out(state, late)
    assert plan(state, dead(state, 1, 2)) == ()


def test_a_new_epoch_is_not_fenced_for_the_death_of_the_last_one() -> None:
    state = cluster(3, 9)
    situation = dead(state, 2)
    state = carried_out(state, [registration(2, 1)])
    assert plan(state, situation) == []


def test_a_stream_that_was_being_moved_to_the_dead_stays_where_it_is() -> None:
    state = cluster(3, 9)
    state = carried_out(state, [r.AssignStreams(node_id=2, stream_ids=(0,))])
    state = carried_out(state, plan(state, dead(state, 2)))
    assert state.streams[0].assigned == 0


def test_preferred_leaders_are_kept_through_a_failure_and_return_when_settled() -> None:
    state = cluster(3, 9)
    state = moved(carried_out(state, plan(state, dead(state, 2))))
    assert {s.preferred for s in state.streams.values()} == {0, 1, 2}
    state = carried_out(state, [registration(2, 1)])
    early = seen(state, is_balance_due=True, settled=frozenset({0, 1}))
    assert plan(state, early) == []  # balance would only be in the way
    state = moved(carried_out(state, plan(state, seen(state, is_balance_due=True))))
    assert all(s.assigned == s.preferred for s in state.streams.values())
    assert plan(state, seen(state, is_balance_due=True)) == []


def test_a_node_that_drains_is_emptied_and_given_nothing() -> None:
    state = cluster(3, 9)
    state = carried_out(state, [r.DrainNode(node_id=1, epoch=0, is_draining=True)])
    state = moved(carried_out(state, plan(state, seen(state))))
    assert leaders(state).keys() == {0, 2}
    assert plan(state, seen(state, is_balance_due=True)) == []
    state = carried_out(state, [r.DrainNode(node_id=1, epoch=0, is_draining=False)])
    state = moved(carried_out(state, plan(state, seen(state, is_balance_due=True))))
    assert leaders(state)[1] == 3


def test_a_node_that_leaves_is_emptied_like_one_that_drains() -> None:
    state = cluster(3, 9)
    leaving = seen(state, ready=frozenset({0, 2}), leaving=frozenset({1}))
    state = carried_out(state, plan(state, leaving))
    assert leaders(state).keys() == {0, 2}


def test_the_last_node_keeps_what_it_has_though_it_leaves() -> None:
    state = cluster(1, 3)
    alone = seen(state, ready=frozenset(), leaving=frozenset({0}))
    assert plan(state, alone) == []


def test_a_new_node_gets_its_share() -> None:
    state = carried_out(cluster(3, 90), [registration(3)])
    records = plan(state, seen(state, is_balance_due=True))
    state = moved(carried_out(state, records))
    assert leaders(state)[3] >= 20
    assert plan(state, seen(state, is_balance_due=True)) == []


def test_nothing_is_balanced_while_something_moves() -> None:
    state = carried_out(cluster(3, 90), [registration(3)])
    state = carried_out(state, [r.AssignStreams(node_id=3, stream_ids=(0,))])
    assert plan(state, seen(state, is_balance_due=True)) == []


def test_a_stream_is_never_moved_twice_at_once() -> None:
    state = carried_out(cluster(3, 90), [registration(3)])
    once = carried_out(state, plan(state, seen(state, is_balance_due=True)))
    assert plan(once, seen(once, is_balance_due=True)) == []


def test_a_starting_node_keeps_what_is_assigned_to_it() -> None:
    state = carried_out(cluster(3, 9), [registration(2, 1)])
    assert plan(state, seen(state, ready=frozenset({0, 1}))) == []


def test_traffic_is_spread_where_numbers_are_even() -> None:
    leads = {0: [0, 2, 4, 6], 1: [1, 3, 5, 7]}
    hot = NodeLoad(bytes_in=80e6, cpu=0.8, hottest=tuple((s, 20e6) for s in leads[0]))
    cold = NodeLoad(bytes_in=4e3, cpu=0.01, hottest=tuple((s, 1e3) for s in leads[1]))
    moves = balance(leads, {0: hot, 1: cold}, imbalance=0.1)
    assert moves
    kept = set(leads[0]) - {stream for stream, target in moves if target == 1}
    assert len(kept) == 2


def test_noise_moves_nothing() -> None:
    leads = {0: [0, 2, 4, 6], 1: [1, 3, 5, 7]}
    some = NodeLoad(bytes_in=3e3, cpu=0.3, hottest=((0, 3e3),))
    assert balance(leads, {0: some}, imbalance=0.1) == []


def test_one_stream_too_large_for_any_node_stays_alone() -> None:
    leads = {0: [0, 2], 1: [1, 3]}
    loads = {0: NodeLoad(bytes_in=1e9, cpu=1.0, hottest=((0, 1e9),)), 1: NodeLoad(cpu=0.01)}
    moves = dict(balance(leads, loads, imbalance=0.1))
    assert 0 not in moves
    assert moves.get(2, 1) == 1


def test_weights_are_shares() -> None:
    leads = {0: [0, 2], 1: [1]}
    loads = {0: NodeLoad(bytes_in=5e6, cpu=0.5, hottest=((0, 4e6),)), 1: NodeLoad(bytes_out=1e6)}
    weights = stream_weights(leads, loads)
    assert sum(weights.values()) == pytest.approx(1)
    assert weights[0] > weights[2] > 0


@measured
@pytest.mark.parametrize("is_dead", [False, True])
async def test_very_many_streams_are_planned_in_short_steps(is_dead: bool) -> None:
    """Whatever there is to do for them: nothing, moves for balance, or a leader for each."""
    count = 30_000
    records: list[r.Record] = [r.ClusterCreated(cluster_id="c")]
    records += [registration(node_id) for node_id in range(3)]
    records += [r.ControllerLease(node_id=0, node_epoch=0, term=0)]
    records += [r.CreateTopic(name="t", topic_id=TOPIC)]
    ids = range(count)
    records += [r.CreateStream(stream_id=n, topic_id=TOPIC, partition=n) for n in ids]
    first = tuple(ids[: count * 3 // 4])
    for node_id, some in ((1, first), (2, tuple(ids[len(first) :]))):
        records += [r.AssignStreams(node_id=node_id, stream_ids=some)]
        records += [r.OpenStream(stream_id=n, epoch=0, node_id=node_id, node_epoch=0) for n in some]
    state = apply_records(MetadataImage(), records, 0)
    loads = {1: NodeLoad(bytes_in=1e8, cpu=0.9, hottest=tuple((n, 1e3 + n) for n in ids[:1000]))}
    situation = dead(state, 1) if is_dead else seen(state, is_balance_due=True, loads=loads)
    with watched_loop() as watch:
        made = await in_steps(planning.plan(state, situation))
    watch.check(0.05)
    moved_count = sum(len(one.stream_ids) for one in made if isinstance(one, r.AssignStreams))
    assert moved_count == (len(first) if is_dead else MOVES_MAX)
