"""Who is thought alive and dead: the state machine alone, told what happened when."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from lakehead.broker.cluster.heartbeat import NodeLoad
from lakehead.broker.cluster.membership import Membership, Standing
from lakehead.storage.metadata.state import NodeState

INTERVAL, SESSION = 0.5, 3.0


def registered(*nodes: tuple[int, int]) -> dict[int, NodeState]:
    """The registry of (node id, epoch) pairs."""
    return {
        node_id: NodeState(
            node_id=node_id, epoch=epoch, incarnation="", host="h", port=1, rack=None
        )
        for node_id, epoch in nodes
    }


def members(own: int, others: Iterable[int], *, heard_at: float = 0.0) -> Membership:
    """A node among others that all serve, were reached, and were heard at one time."""
    membership = Membership(own, interval_s=INTERVAL, session_s=SESSION, now=heard_at)
    membership.follow(registered((own, 0), *((node_id, 0) for node_id in others)), heard_at)
    for node_id in others:
        membership.heard(node_id, 0, heard_at)
        membership.reached(node_id, 0)
    return membership


def hear(membership: Membership, nodes: Iterable[int], now: float) -> None:
    for node_id in nodes:
        membership.heard(node_id, 0, now)


def test_silence_lasts_a_session_before_it_means_death() -> None:
    membership = members(0, [1, 2])
    for now in (0.5, 1.0, 2.0, 2.99):
        hear(membership, [1], now)
    assert membership.standing(2, 0.99) is Standing.ALIVE
    assert membership.standing(2, 1.0) is Standing.SUSPECT
    assert membership.standing(2, 2.99) is Standing.SUSPECT
    assert membership.standing(2, 3.0) is Standing.DEAD
    assert membership.view(3.0).dead == {2: 0}


def test_a_node_that_takes_connections_and_says_nothing_hangs() -> None:
    """Two thirds of a session, and long enough after the look for an answer to have come."""
    membership = members(0, [1, 2])
    hear(membership, [1], 1.9)
    assert membership.silent(0.99) == []
    assert membership.silent(1.0) == [2]
    membership.accepted(2, 0, 1.0)
    assert membership.silent(1.2) == []
    assert membership.standing(2, 1.99) is Standing.SUSPECT
    assert membership.standing(2, 2.0) is Standing.DEAD


def test_a_late_look_leaves_time_for_an_answer_and_a_session_is_enough_anyway() -> None:
    membership = members(0, [1, 2])
    hear(membership, [1], 2.5)
    membership.accepted(2, 0, 1.5)
    assert membership.standing(2, 2.49) is Standing.SUSPECT
    assert membership.standing(2, 2.5) is Standing.DEAD
    membership = members(0, [1, 2])
    hear(membership, [1], 2.9)
    membership.accepted(2, 0, 2.8)
    assert membership.standing(2, 2.99) is Standing.SUSPECT
    assert membership.standing(2, 3.0) is Standing.DEAD


def test_a_sign_of_life_makes_an_earlier_look_worthless() -> None:
    membership = members(0, [1, 2])
    hear(membership, [1], 3.9)
    membership.accepted(2, 0, 1.0)
    membership.heard(2, 0, 1.1)
    assert membership.standing(2, 3.2) is Standing.SUSPECT
    assert membership.silent(3.2) == [2]


def test_nobody_looks_at_a_node_that_starts() -> None:
    membership = members(0, [1, 2])
    membership.heard(2, 0, 0.0, is_starting=True)
    assert membership.silent(2.0) == [1]


def test_an_address_that_goes_on_refusing_means_death_after_half_an_interval() -> None:
    membership = members(0, [1, 2])
    membership.refused(2, 0, 0.1)
    membership.refused(2, 0, 0.3)
    assert membership.standing(2, 0.34) is Standing.SUSPECT
    assert membership.standing(2, 0.35) is Standing.DEAD


def test_a_sign_of_life_takes_a_refusal_back() -> None:
    membership = members(0, [1, 2])
    membership.refused(2, 0, 0.1)
    assert membership.heard(2, 0, 0.3)
    assert membership.standing(2, 0.7) is Standing.ALIVE


def test_clients_are_not_sent_to_a_node_whose_connection_ended_until_it_is_heard() -> None:
    membership = members(0, [1, 2])
    membership.lost(2, 0, 0.1)
    assert membership.unreachable() == {2}
    assert membership.standing(2, 0.1) is Standing.ALIVE
    membership.heard(2, 0, 0.2)
    assert membership.unreachable() == frozenset()


def test_a_node_that_starts_refuses_connections_and_is_not_dead() -> None:
    membership = members(0, [1])
    membership.follow(registered((0, 0), (1, 0), (2, 0)), 1.0)
    now = 1.0
    for step in range(20):
        now = 1.0 + step * 0.5
        membership.heard(1, 0, now)
        membership.heard(2, 0, now, is_starting=True)
        membership.refused(2, 0, now + 0.1)
    assert membership.standing(2, now + 0.4) is Standing.ALIVE
    assert 2 not in membership.view(now + 0.4).ready


def test_a_node_that_never_spoke_has_a_session_from_its_registration() -> None:
    membership = members(0, [1])
    membership.follow(registered((0, 0), (1, 0), (2, 0)), 10.0)
    hear(membership, [1], 12.9)
    assert membership.standing(2, 12.9) is not Standing.DEAD
    assert membership.standing(2, 13.0) is Standing.DEAD


def test_what_an_earlier_epoch_did_says_nothing_of_the_next() -> None:
    membership = members(0, [1, 2])
    membership.refused(2, 0, 0.1)
    membership.follow(registered((0, 0), (1, 0), (2, 1)), 0.5)
    assert not membership.heard(2, 0, 0.6)
    hear(membership, [1], 3.0)
    assert membership.standing(2, 3.4) is Standing.SUSPECT
    assert membership.view(3.5).dead == {2: 1}


def test_a_fenced_node_is_no_member_any_more() -> None:
    membership = members(0, [1, 2])
    assert membership.follow(registered((0, 0), (1, 0)), 1.0)
    assert membership.standing(2, 1.0) is Standing.DEAD
    assert membership.view(10.0).dead.keys() == {1}
    assert not membership.follow(registered((0, 0), (1, 0)), 2.0)


def test_whom_others_hear_is_alive_though_the_line_to_it_is_cut() -> None:
    membership, now = members(0, [1, 2]), 0.0
    for step in range(1, 20):
        now = step * INTERVAL
        membership.heard(1, 0, now)
        membership.vouched(((2, 100),), now)
        membership.turn(now)
        assert membership.standing(2, now) is Standing.ALIVE
    assert membership.heard_lately(now) == ((1, 0),)  # and this node does not vouch for it
    last = now - 0.1
    hear(membership, [1], last + 2.5)
    assert membership.standing(2, last + 2.9) is Standing.SUSPECT
    assert membership.standing(2, last + 3.0) is Standing.DEAD


def test_an_address_that_refuses_this_node_alone_is_not_gone() -> None:
    membership = members(0, [1, 2])
    membership.lost(2, 0, 0.1)
    membership.refused(2, 0, 0.101)
    for step in range(20):  # the others are asked as soon as the connection has ended
        now = 0.102 + step * INTERVAL
        membership.vouched(((2, 450),), now)
        membership.refused(2, 0, now)
        membership.turn(now)
        assert membership.standing(2, now + INTERVAL - 0.01) is Standing.SUSPECT
        assert 2 in membership.unreachable()


def test_what_others_said_before_the_connection_ended_does_not_slow_detection() -> None:
    membership = members(0, [1, 2])
    membership.vouched(((2, 0),), 0.09)
    membership.lost(2, 0, 0.1)
    membership.refused(2, 0, 0.101)
    assert membership.standing(2, 0.352) is Standing.DEAD


def test_nobody_vouches_for_a_node_whose_connection_has_just_ended() -> None:
    membership = members(0, [1, 2])
    membership.lost(2, 0, 0.1)
    assert membership.heard_lately(0.1) == ((1, 100),)


def test_who_hears_less_than_half_waits_a_session_more() -> None:
    alone, others = members(0, [1, 2]), members(1, [0, 2])
    hear(others, [2], 3.0)
    assert others.standing(0, 3.0) is Standing.DEAD
    assert alone.standing(1, 5.9) is Standing.SUSPECT
    assert alone.standing(1, 6.0) is Standing.DEAD


def test_of_two_halves_the_one_with_the_lowest_id_goes_first() -> None:
    lower, higher = members(0, [1]), members(1, [0])
    assert lower.standing(1, 3.0) is Standing.DEAD
    assert higher.standing(0, 3.99) is Standing.SUSPECT
    assert higher.standing(0, 4.0) is Standing.DEAD


def test_who_is_refused_by_most_others_waits_a_little_for_them_to_go_first() -> None:
    """A wall that refuses looks like processes that are gone; two intervals settle who is right."""
    cut_off, other = members(0, [1, 2]), members(1, [0, 2])
    for node_id in (1, 2):
        cut_off.refused(node_id, 0, 0.1)
    other.refused(0, 0, 0.1)
    assert other.standing(0, 0.35) is Standing.DEAD
    assert cut_off.view(1.34).dead == {}
    assert cut_off.view(1.36).dead.keys() == {1, 2}


def test_who_falls_silent_one_after_the_other_is_counted_together() -> None:
    """Heartbeats of different nodes come at different times; the line was cut for all at once."""
    membership = members(0, [1, 2])
    membership.heard(2, 0, 0.4)
    assert membership.view(3.0).dead == {}
    assert membership.view(5.9).dead == {}
    assert membership.view(6.4).dead.keys() == {1, 2}


def test_who_slept_does_not_take_the_others_for_dead() -> None:
    membership = members(0, [1, 2])
    membership.turn(0.25)
    assert membership.turn(10.25) > 8.9
    assert not membership.view(10.25).dead
    hear(membership, [1], 10.5)
    assert not membership.turn(10.5)
    hear(membership, [1], 14.0)
    assert membership.view(14.5).dead.keys() == {2}


def test_a_node_that_is_heard_and_never_reached_is_not_ready() -> None:
    """Clients would be sent to an address at which nobody answers."""
    membership = members(0, [1])
    membership.follow(registered((0, 0), (1, 0), (2, 0)), 0.0)
    membership.heard(2, 0, 0.1)
    assert membership.standing(2, 0.2) is Standing.ALIVE
    assert set(membership.view(0.2).ready) == {1}
    membership.reached(2, 0)
    assert set(membership.view(0.2).ready) == {1, 2}


def test_leaving_and_starting_nodes_are_not_ready() -> None:
    membership = members(0, [1, 2, 3])
    assert membership.heard(1, 0, 0.5, is_leaving=True)
    assert membership.heard(2, 0, 0.5, is_starting=True)
    view = membership.view(0.6)
    assert set(view.leaving) == {1}
    assert set(view.ready) == {3}


def test_a_load_stays_known_while_answers_bring_none() -> None:
    membership = members(0, [1])
    membership.heard(1, 0, 0.5, load=NodeLoad(cpu=0.5))
    membership.heard(1, 0, 0.6)
    assert membership.view(0.6).loads[1].cpu == 0.5


@given(st.lists(st.floats(0.01, 2.9), max_size=30), st.data())
def test_who_is_heard_within_each_session_is_never_dead(
    gaps: list[float], data: st.DataObject
) -> None:
    membership = members(0, [1, 2, 3])
    now = 0.0
    for gap in gaps:
        before, now = now, now + gap
        asked = before + data.draw(st.floats(0, gap))
        assert 1 not in membership.view(asked).dead
        membership.turn(asked)
        membership.heard(1, 0, now)


@given(st.lists(st.tuples(st.integers(1, 4), st.floats(0, 1)), max_size=40))
def test_silence_in_the_end_is_death_whatever_came_before(
    events: list[tuple[int, float]],
) -> None:
    membership, now = members(0, [1, 2, 3, 4]), 0.0
    for node_id, gap in events:
        now += gap
        membership.turn(now)
        if gap > 0.5:
            membership.refused(node_id, 0, now)
        else:
            membership.heard(node_id, 0, now)
    for step in range(20):
        membership.turn(now + step * INTERVAL)
    assert membership.view(now + 2 * SESSION + INTERVAL).dead.keys() == {1, 2, 3, 4}


def test_calm_ends_well_before_anybody_can_be_dead() -> None:
    """Who looks once an interval while it is calm, and then often, is late for no death."""
    membership = members(0, [1, 2])
    assert membership.is_calm(0.99)
    hear(membership, [1], 0.9)
    assert not membership.is_calm(1.0)
    assert membership.standing(2, 1.0 + INTERVAL) is not Standing.DEAD


def test_a_lost_or_a_refused_connection_ends_the_calm_at_once() -> None:
    membership = members(0, [1, 2])
    membership.lost(2, 0, 0.1)
    assert not membership.is_calm(0.1)
    hear(membership, [2], 0.2)
    assert membership.is_calm(0.2)
    membership.refused(2, 0, 0.3)
    assert not membership.is_calm(0.3)
    assert membership.standing(2, 0.3) is not Standing.DEAD
