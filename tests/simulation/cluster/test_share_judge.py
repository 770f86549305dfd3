"""The judge of share groups takes a record for done by a verdict that may have ended it."""

from types import SimpleNamespace
from typing import cast

import pytest

from lakehead.broker.share.led_share_partition import LedSharePartition
from lakehead.broker.share.record_state import AcknowledgeType, ShareState
from lakehead.broker.share.share_partition import AcquiredRecords, AcquireRequest
from lakehead.broker.share.share_partition_key import SharePartitionKey
from tests.simulation.cluster.cluster_world import ClusterWorld
from tests.simulation.cluster.member import Member
from tests.simulation.cluster.share_judge import ShareJudge, Verdict
from tests.simulation.ledger import Violation

KEY = SharePartitionKey("crew", bytes(16), 0)
NODE = "0.0"


class World:
    """One leader, and a judge that raises what it finds."""

    def __init__(self) -> None:
        streams = {1: SimpleNamespace(epoch=0)}
        self.oracle = SimpleNamespace(state=SimpleNamespace(streams=streams))
        self.judge = SimpleNamespace(reads=lambda member, stream_id: None)
        self.shares = ShareJudge(cast("ClusterWorld", self))
        self.shares.deliveries_max["crew"] = 5

    def fail(self, error: Exception) -> None:
        raise error

    def begin(self, state_epoch: int, start_offset: int) -> None:
        """An operator moves the group."""
        self.shares.initialized(KEY, state_epoch, start_offset)
        self.load(state_epoch, start_offset)

    def load(self, state_epoch: int, start_offset: int) -> None:
        state = ShareState(
            start_offset=start_offset,
            state_epoch=state_epoch,
            leader_epoch=state_epoch,
            delivery_complete_count=0,
            batches=(),
        )
        self.shares.loaded(NODE, KEY, self.shares.loading(KEY), state)

    def give(self, member_id: str, *, count: int = 1, at_s: float = 0.0) -> None:
        """A member gets record 0."""
        node = SimpleNamespace(name=NODE, clock=SimpleNamespace(monotonic=lambda: at_s))
        stream = SimpleNamespace(stream_id=1, epoch=0)
        led = SimpleNamespace(key=KEY, partition=SimpleNamespace(stream=stream))
        request = SimpleNamespace(member_id=member_id, deadline_ms=1000)
        self.shares.acquired(
            cast(Member, node),
            cast(LedSharePartition, led),
            cast(AcquireRequest, request),
            [AcquiredRecords(0, 0, count)],
        )

    def accept(self, member_id: str, state_epoch: int) -> Verdict:
        verdict = Verdict(KEY, member_id, {0: AcknowledgeType.ACCEPT}, {0: 1}, state_epoch)
        self.shares.sent(verdict)
        return verdict


@pytest.mark.parametrize("again", ["a", "b"])
def test_a_verdict_from_before_a_group_was_moved_counts_for_its_member_alone(again: str) -> None:
    """The verdict names no epoch: the leader takes it for the delivery that the member has now."""
    world = World()
    world.begin(1, 0)
    world.give("a")
    world.begin(2, 0)
    world.give(again)
    world.accept("a", 1)
    if again == "a":
        world.load(2, 1)
    else:
        with pytest.raises(Violation, match="from 1, and 0 is not done"):
            world.load(2, 1)


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_verdict_on_another_members_record_is_confirmed_after_a_move_alone(
    is_moved: bool,
) -> None:
    """The record is before the start of the new state: the verdict has no effect, as in Kafka."""
    world = World()
    world.begin(1, 0)
    world.give("a")
    world.give("b", count=2, at_s=2.0)
    verdict = world.accept("a", 1)
    if is_moved:
        world.begin(2, 1)
        world.shares.confirm(verdict)
    else:
        with pytest.raises(Violation, match=r"a has ended crew:.* 0, which .*'b'"):
            world.shares.confirm(verdict)


def test_a_load_of_an_earlier_leadership_that_ends_late_says_nothing_of_deliveries() -> None:
    """A node led, and leads again: it forgets none of what it has given out since."""
    world = World()
    before = world.shares.loading(KEY)
    world.begin(2, 0)
    world.give("a")
    late = ShareState(
        start_offset=0, state_epoch=2, leader_epoch=1, delivery_complete_count=0, batches=()
    )
    world.shares.loaded(NODE, KEY, before, late)
    world.give("a", count=2, at_s=2.0)
