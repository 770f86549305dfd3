"""The judge of consumer groups finds a partition with two members and a commit that goes back, and
no more than that.
"""

from typing import cast

import pytest

from tests.simulation.cluster.cluster_world import ClusterWorld
from tests.simulation.cluster.consumer_judge import ConsumerJudge
from tests.simulation.ledger import Violation

SESSION_S = 6.0


class World:
    """The time, and a judge that raises what it finds."""

    def __init__(self) -> None:
        self.virtual_s = 0.0
        self.judge = ConsumerJudge(cast("ClusterWorld", self), SESSION_S)

    def fail(self, error: Exception) -> None:
        raise error

    def adopt(self, member_id: str, *, is_heard: bool) -> None:
        if is_heard:
            self.judge.beats(member_id, self.virtual_s)
        self.judge.adopt(0, member_id)


def test_a_partition_has_one_member_while_its_coordinator_hears_of_it() -> None:
    world = World()
    world.adopt("a", is_heard=True)
    world.virtual_s += SESSION_S - 1
    with pytest.raises(Violation, match="b gets partition 0, which a has"):
        world.adopt("b", is_heard=True)


def test_a_member_that_wakes_up_after_its_session_takes_no_partition() -> None:
    world = World()
    world.adopt("a", is_heard=True)
    world.virtual_s += SESSION_S
    world.adopt("b", is_heard=True)
    world.virtual_s += 0.5
    world.adopt("a", is_heard=False)
    with pytest.raises(Violation, match="c gets partition 0, which b has"):
        world.adopt("c", is_heard=True)
    world.virtual_s += SESSION_S
    world.adopt("c", is_heard=True)


def test_a_commit_that_was_sent_after_a_greater_one_was_taken_goes_back() -> None:
    judge = World().judge
    judge.commit(0, "a", 45, judge.committed(0))
    with pytest.raises(Violation, match="b has committed 37 of partition 0 after 45"):
        judge.commit(0, "b", 37, judge.committed(0))


def test_a_member_that_slept_may_hear_late_of_a_commit() -> None:
    judge = World().judge
    before = judge.committed(0)
    judge.commit(0, "b", 45, judge.committed(0))
    judge.commit(0, "a", 37, before)
    assert judge.committed(0) == 45
