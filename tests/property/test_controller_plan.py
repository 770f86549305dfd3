"""Promise: what the controller plans is right for whatever cluster it finds, and comes to an end:
every stream has a leader that lives, nothing moves without need, and nothing moves to and fro.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hypothesis import assume, given
from hypothesis import strategies as st

from lakehead.broker.cluster.controller import (
    ClusterView,
    intended_leader,
    is_controller,
    is_lease_vacant,
)
from lakehead.broker.cluster.heartbeat import NodeLoad
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.rules import apply_records
from lakehead.storage.metadata.state import MetadataImage
from tests.support.planned import plan, stream_weights

TOPIC = "0" * 32
ROUNDS_MAX = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A state and a situation, and the traffic of each stream (bytes per second)."""

    state: MetadataImage
    situation: ClusterView
    rates: Mapping[int, float]

    def loads(self) -> dict[int, NodeLoad]:
        """What the nodes would report: traffic goes where its streams are."""
        loads = {}
        for node_id in self.situation.ready:
            streams = [
                s.stream_id for s in self.state.streams.values() if intended_leader(s) == node_id
            ]
            rates = [(stream_id, self.rates[stream_id]) for stream_id in streams]
            total = sum(rate for _, rate in rates)
            hottest = tuple(sorted(rates, key=lambda flow: -flow[1])[:64])
            loads[node_id] = NodeLoad(bytes_in=total, cpu=total / 2**27, hottest=hottest)
        return loads

    def planned(self) -> tuple[list[r.Record], "Cluster"]:
        """Return what is planned now, and the cluster once it is committed."""
        situation = replace(self.situation, loads=self.loads())
        records = list(plan(self.state, situation))
        after = replace(self, state=apply_records(self.state, records, 0))
        assert list(plan(self.state, situation)) == records
        return records, after

    def moved(self) -> "Cluster":
        """Return the cluster once leadership is where it was assigned."""
        state = self.state
        for stream in list(state.streams.values()):
            target = state.nodes.get(stream.assigned)
            if target is None or target.is_fenced:
                continue
            if stream.is_open and stream.node_id != stream.assigned:
                closing = r.CloseStream(stream_id=stream.stream_id, epoch=stream.epoch)
                state = apply_records(state, [closing], 0)
            if not stream.is_open or stream.node_id != stream.assigned:
                opening = r.OpenStream(
                    stream_id=stream.stream_id,
                    epoch=stream.epoch + 1,
                    node_id=target.node_id,
                    node_epoch=target.epoch,
                )
                state = apply_records(state, [opening], 0)
        return replace(self, state=state)

    def leaders(self) -> dict[int, int]:
        """Return who leads each stream, or is to."""
        return {s.stream_id: intended_leader(s) for s in self.state.streams.values()}

    def takers(self) -> set[int]:
        """Return who may be given streams."""
        situation = self.situation
        able = {
            node_id
            for node_id in situation.ready
            if not self.state.nodes[node_id].is_fenced
            and node_id not in situation.leaving
            and situation.dead.get(node_id) != self.state.nodes[node_id].epoch
        }
        # Rather one that drains than nobody.
        return {n for n in able if not self.state.nodes[n].is_draining} or able


def assigned_by(records: list[r.Record]) -> dict[int, int]:
    return {
        stream_id: record.node_id
        for record in records
        if isinstance(record, r.AssignStreams)
        for stream_id in record.stream_ids
    }


@st.composite
def clusters(
    draw: st.DrawFn, *, is_healthy: bool = False, rates: st.SearchStrategy[float] | None = None
) -> Cluster:
    """Any cluster, in which node 0 is alive and looks at the others.

    A healthy one has nobody dead, fenced, draining or leaving, and node 0 is the controller.
    """
    nodes = draw(st.integers(1, 6))
    ids = st.integers(0, nodes - 1)
    rate = rates if rates is not None else st.sampled_from([0.0, 1e3, 1e6, 3e7])
    drawn = draw(st.lists(st.tuples(st.integers(0, 5), ids, ids, rate), max_size=16))
    count = len(drawn)
    others = st.sets(st.integers(1, nodes - 1)) if nodes > 1 else st.just(set[int]())
    fenced, dead, draining, leaving, starting = (
        set() if is_healthy else draw(others) for _ in range(5)
    )
    state = apply_records(
        MetadataImage(),
        [
            r.CreateTopic(name="t", topic_id=TOPIC),
            *(
                r.RegisterNode(node_id=n, epoch=0, incarnation=f"{n}", host="h", port=1)
                for n in range(nodes)
            ),
            *(r.CreateStream(stream_id=n, topic_id=TOPIC, partition=n) for n in range(count)),
        ],
        0,
    )
    holder = 0 if is_healthy else draw(st.integers(-1, nodes - 1))
    if holder >= 0:
        state = apply_records(state, [r.ControllerLease(node_id=holder, node_epoch=0, term=0)], 0)
    for stream_id, (story, first, second, _) in enumerate(drawn):
        state = apply_records(state, _story(stream_id, story, first, second), 0)
    changes: list[r.Record] = [r.DrainNode(node_id=n, epoch=0, is_draining=True) for n in draining]
    changes += [r.FenceNode(node_id=n, epoch=0) for n in fenced]
    state = apply_records(state, changes, 0)
    lives = set(range(nodes)) - fenced
    ready = frozenset(lives - dead - starting)
    situation = ClusterView(
        node_id=0,
        node_epoch=0,
        ready=ready,
        settled=ready if is_healthy else frozenset(n for n in ready if draw(st.booleans())),
        leaving=frozenset(leaving),
        dead={n: draw(st.integers(0, 1)) for n in sorted(dead)},
        may_lead=is_healthy or draw(st.booleans()),
        is_balance_due=is_healthy or draw(st.booleans()),
    )
    flows = dict(enumerate(flow for _, _, _, flow in drawn))
    return Cluster(state=state, situation=situation, rates=flows)


def _story(stream_id: int, story: int, first: int, second: int) -> list[r.Record]:
    """Return how a stream came to be new, assigned, open, on its way elsewhere, or closed."""
    assign = r.AssignStreams(node_id=first, stream_ids=(stream_id,))
    opening = r.OpenStream(stream_id=stream_id, epoch=0, node_id=first, node_epoch=0)
    further = r.AssignStreams(node_id=second, stream_ids=(stream_id,))
    closing = r.CloseStream(stream_id=stream_id, epoch=0)
    stories: list[list[r.Record]] = [
        [],
        [assign],
        [assign, opening],
        [opening],
        [assign, opening, further],
        [assign, opening, closing, further],
    ]
    return stories[story]


@given(clusters())
def test_only_the_controller_decides_and_what_it_decides_is_accepted(cluster: Cluster) -> None:
    state, situation = cluster.state, cluster.situation
    records, after = cluster.planned()
    if is_controller(state, 0, 0):
        term = state.controller.term
    elif is_lease_vacant(state, situation) and situation.may_lead:
        term = state.controller.term + 1
        assert records[0] == r.ControllerLease(node_id=0, node_epoch=0, term=term)
    else:
        assert not records
        return
    for record in records:
        assert isinstance(record, (r.ControllerLease, r.FenceNode, r.AssignStreams))
        assert record.term == term
    for node_id, epoch in situation.dead.items():
        if state.nodes[node_id].epoch == epoch:
            assert after.state.nodes[node_id].is_fenced
    fenced_now = [record.node_id for record in records if isinstance(record, r.FenceNode)]
    assert all(situation.dead.get(node_id) == 0 for node_id in fenced_now)


@given(clusters())
def test_nothing_is_assigned_to_who_cannot_or_should_not_lead(cluster: Cluster) -> None:
    records, _ = cluster.planned()
    assert set(assigned_by(records).values()) <= cluster.takers()


@given(clusters())
def test_a_stream_without_a_leader_gets_one_and_others_move_for_a_reason(cluster: Cluster) -> None:
    records, after = cluster.planned()
    takers, before = cluster.takers(), cluster.leaders()
    if not records:
        return
    assigned = assigned_by(records)
    bound = [n for n in before.values() if n in after.state.nodes and n >= 0]
    lives = {n for n in bound if not after.state.nodes[n].is_fenced}
    if takers:
        assert all(leader in lives | takers for leader in after.leaders().values())
    for stream_id in assigned:
        stream = cluster.state.stream(stream_id)
        owner = cluster.state.nodes.get(stream.node_id)
        is_moving = (
            stream.is_open
            and stream.node_id != before[stream_id]
            and owner is not None
            and not after.state.nodes[stream.node_id].is_fenced
        )
        is_led = before[stream_id] in lives
        is_on_its_way_out = before[stream_id] not in takers
        if is_moving and is_led and not is_on_its_way_out:
            raise AssertionError(f"stream {stream_id} is moved while it is being moved")


@given(clusters())
def test_what_was_planned_is_not_planned_again(cluster: Cluster) -> None:
    """Before anybody has moved: an entry of the log is enough to remember what is to be."""
    _, after = cluster.planned()
    settled = replace(after, situation=replace(after.situation, is_balance_due=False))
    again, _ = settled.planned()
    assert not again


@given(clusters())
def test_plans_come_to_an_end(cluster: Cluster) -> None:
    assume(cluster.takers())
    homes = [cluster.leaders()]
    for _ in range(ROUNDS_MAX):
        records, cluster = cluster.planned()
        if not records:
            break
        cluster = _recovered(cluster).moved()
        homes.append(cluster.leaders())
    else:
        raise AssertionError(f"no end after {ROUNDS_MAX} rounds")
    if is_controller(cluster.state, 0, 0):
        fenced = {known.node_id for known in cluster.state.nodes.values() if known.is_fenced}
        # Who starts keeps what it led.
        starting = set(cluster.state.nodes) - cluster.situation.ready - fenced
        assert set(cluster.leaders().values()) <= cluster.takers() | starting


def _recovered(cluster: Cluster) -> Cluster:
    """Return the cluster once the logs of the fenced are committed, by node 0."""
    state = cluster.state
    for known in list(state.nodes.values()):
        if known.is_fenced and not known.is_recovered:
            taking = r.CommitObjects(
                node_id=known.node_id,
                node_epoch=known.epoch,
                objects=(),
                wal_epoch=known.epoch + 1,
                taker_id=0,
                taker_epoch=0,
            )
            state = apply_records(state, [taking], 0)
    return replace(cluster, state=state)


@given(clusters(is_healthy=True))
def test_streams_do_not_go_to_and_fro(cluster: Cluster) -> None:
    """While the traffic stays as it is, a stream that has come somewhere stays there."""
    cluster = replace(cluster, situation=replace(cluster.situation, is_balance_due=False))
    _, cluster = cluster.planned()
    cluster = cluster.moved()
    cluster = replace(cluster, situation=replace(cluster.situation, is_balance_due=True))
    moves: dict[int, int] = {}
    for _ in range(ROUNDS_MAX):
        records, cluster = cluster.planned()
        if not records:
            break
        for stream_id in assigned_by(records):
            moves[stream_id] = moves.get(stream_id, 0) + 1
        cluster = cluster.moved()
    else:
        raise AssertionError(f"no end after {ROUNDS_MAX} rounds: {moves}")
    # Once to its preferred leader, once to where it is lighter.
    assert all(times <= 2 for times in moves.values())


@given(clusters(is_healthy=True, rates=st.just(0.0)))
def test_idle_streams_are_spread_evenly(cluster: Cluster) -> None:
    cluster = _at_rest(cluster)
    nodes, streams = len(cluster.state.nodes), len(cluster.state.streams)
    counts = [list(cluster.leaders().values()).count(n) for n in range(nodes)]
    average = streams / nodes
    assert all(abs(count - average) <= max(1.0, 0.1 * average) for count in counts)


@given(clusters(is_healthy=True))
def test_traffic_is_spread_as_evenly_as_single_streams_allow(cluster: Cluster) -> None:
    """The heaviest node is no heavier than the lightest by more than its lightest stream, or all
    are within the imbalance that is allowed.
    """
    cluster = _at_rest(cluster)
    nodes = list(cluster.state.nodes)
    leads: dict[int, list[int]] = {n: [] for n in nodes}
    for stream_id, node_id in cluster.leaders().items():
        leads[node_id].append(stream_id)
    weights = stream_weights(leads, cluster.loads())
    totals = {n: sum(weights[s] for s in leads[n]) for n in nodes}
    average = sum(totals.values()) / len(nodes)
    if all(abs(total - average) <= 0.1 * average + 1e-6 for total in totals.values()):
        return
    heavy = max(totals, key=lambda n: (totals[n], n))
    light = min(totals, key=lambda n: (totals[n], n))
    lightest = min(weights[s] for s in leads[heavy])
    assert lightest >= (totals[heavy] - totals[light]) / 2 - 1e-6


@given(clusters(is_healthy=True, rates=st.just(0.0)))
def test_a_new_node_takes_its_share_and_nobody_else_anything(cluster: Cluster) -> None:
    cluster = _at_rest(cluster)
    before, new = cluster.leaders(), len(cluster.state.nodes)
    joined = r.RegisterNode(node_id=new, epoch=0, incarnation="new", host="h", port=1)
    ready = cluster.situation.ready | {new}
    cluster = replace(
        cluster,
        state=apply_records(cluster.state, [joined], 0),
        situation=replace(cluster.situation, ready=ready, settled=ready),
    )
    records, cluster = cluster.planned()
    assigned = assigned_by(records)
    assert set(assigned.values()) <= {new}
    share = len(before) / (new + 1)
    assert len(assigned) >= share - max(1.0, 0.1 * share)
    assert all(n == before[s] for s, n in cluster.leaders().items() if s not in assigned)


@given(clusters(is_healthy=True), st.data())
def test_of_a_dead_node_only_its_own_streams_move(cluster: Cluster, data: st.DataObject) -> None:
    nodes = len(cluster.state.nodes)
    assume(nodes > 1)
    cluster = _at_rest(cluster)
    before = cluster.leaders()
    lost = data.draw(st.integers(1, nodes - 1))
    ready = cluster.situation.ready - {lost}
    cluster = replace(
        cluster,
        situation=replace(
            cluster.situation, ready=ready, settled=ready, dead={lost: 0}, is_balance_due=False
        ),
    )
    records, after = cluster.planned()
    orphans = {stream_id for stream_id, node_id in before.items() if node_id == lost}
    assert assigned_by(records).keys() == orphans
    counts = [list(after.leaders().values()).count(n) for n in ready]
    kept = [list(before.values()).count(n) for n in ready]
    spread = max(counts) - min(counts)
    assert spread <= max(1, max(kept) - min(kept))


def _at_rest(cluster: Cluster) -> Cluster:
    """Return the cluster when nothing is left to plan."""
    cluster = cluster.moved()
    for _ in range(ROUNDS_MAX):
        records, cluster = cluster.planned()
        if not records:
            return cluster
        cluster = cluster.moved()
    raise AssertionError(f"no end after {ROUNDS_MAX} rounds")
