"""Partitions that are about to come: which are waited for, how long, and who is woken."""

from dataclasses import replace

import pytest
from immutables import Map

from lakehead.broker.cluster.replica_manager import DELAY_S, DelayedRequests, is_arriving
from lakehead.broker.partition.partition import Topic
from lakehead.storage.metadata.state import MetadataImage, NodeState, StreamState

TOPIC_ID = "1" * 32
HERE, OLD = 1, 2
MOVING = StreamState(
    stream_id=7, topic_id=TOPIC_ID, partition=0, epoch=3, node_id=OLD, is_open=True, assigned=HERE
)


class SteppedClock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return 0


class World:
    """Node HERE, to which the only partition of a topic moves from node OLD."""

    def __init__(self) -> None:
        old = NodeState(node_id=OLD, epoch=0, incarnation="i", host="h", port=1, rack=None)
        here = replace(old, node_id=HERE)
        self.topic = Topic("t", TOPIC_ID)
        self.topic.extend([MOVING.stream_id])
        streams = MetadataImage().streams.set(MOVING.stream_id, MOVING)
        self.state = MetadataImage(nodes=Map({OLD: old, HERE: here}), streams=streams)
        self.clock = SteppedClock()
        self.delayed = DelayedRequests(lambda: self.state, HERE, self.clock)
        self.woken: list[str] = []

    def change(self, **fields: object) -> None:
        stream = replace(self.state.streams[MOVING.stream_id], **fields)  # type: ignore[arg-type]
        self.state = replace(self.state, streams=self.state.streams.set(stream.stream_id, stream))

    def is_expected(self) -> bool:
        return self.delayed.should_wait(self.topic, 0)

    def wait(self, name: str) -> None:
        self.delayed.add(MOVING.stream_id, lambda: self.woken.append(name))


@pytest.mark.parametrize(
    ("stream", "owner", "is_awaited"),
    [
        ({}, {}, True),
        ({"is_open": False}, {}, True),
        ({"is_open": False}, {"is_fenced": True}, True),
        ({"node_id": HERE}, {}, True),
        ({"node_id": -1, "is_open": False, "epoch": -1}, {}, True),
        ({}, {"is_fenced": True}, False),
        ({}, {"is_fenced": True, "wal_epoch": 1}, True),
        ({"assigned": OLD}, {}, False),
        ({"assigned": -1, "is_open": False}, {}, False),
    ],
)
def test_what_is_about_to_come(
    stream: dict[str, object], owner: dict[str, object], is_awaited: bool
) -> None:
    """A recovery may take long, and an assignment to others for ever."""
    world = World()
    world.change(**stream)
    old = replace(world.state.nodes[OLD], **owner)  # type: ignore[arg-type]
    world.state = replace(world.state, nodes=world.state.nodes.set(OLD, old))
    assert is_arriving(world.state, world.state.streams[MOVING.stream_id], HERE) is is_awaited
    assert world.is_expected() is is_awaited


def test_a_partition_is_waited_for_once() -> None:
    """All who ask share one time, which runs from the first; it begins anew with the next move."""
    world = World()
    assert world.is_expected()
    world.clock.seconds = DELAY_S - 0.01
    assert world.is_expected()
    world.clock.seconds = DELAY_S
    assert not world.is_expected()
    world.clock.seconds = 100 * DELAY_S
    assert not world.is_expected()
    world.delayed.complete(world.topic, 0)
    assert world.is_expected()


def test_partitions_that_do_not_exist_are_not_expected() -> None:
    world = World()
    assert not world.delayed.should_wait(world.topic, 1)
    assert not world.delayed.should_wait(world.topic, -1)
    world.state = replace(world.state, streams=world.state.streams.delete(MOVING.stream_id))
    assert not world.is_expected()


def test_all_who_wait_are_woken_once_in_order() -> None:
    world = World()
    for name in "abc":
        world.wait(name)
    world.delayed.complete(world.topic, 0)
    world.delayed.complete(world.topic, 0)
    assert world.woken == ["a", "b", "c"]


def test_who_waits_no_more_is_not_woken() -> None:
    world = World()

    def waiter() -> None:
        world.woken.append("gone")

    world.delayed.add(MOVING.stream_id, waiter)
    world.delayed.remove(MOVING.stream_id, waiter)
    world.delayed.remove(MOVING.stream_id, waiter)
    world.delayed.complete(world.topic, 0)
    assert world.woken == []


def test_who_waits_for_a_deleted_topic_is_told() -> None:
    world = World()
    world.wait("a")
    world.delayed.complete_topic(world.topic)
    assert world.woken == ["a"]
