"""A share coordinator's shard: whatever was written, trimmed, lost and read again, each offset has
its highest delivery count and state, and neither epochs nor start offsets ever go back.
"""

import asyncio
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.share.shard import ShareShard, StateWrite
from lakehead.broker.coordinator.share.state_batches import combined
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.share.record_state import RecordState, ShareState, StateBatch
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.clock import SystemClock
from lakehead.storage.tasks import TaskScope
from tests.property.test_coordinator_log import ListPartition, crash, open_log, settled
from tests.support.repetitions import examples

KEYS = [SharePartitionKey("g", bytes(16), index) for index in range(2)]
END = 24

offsets = st.integers(0, END - 1)
batches = st.builds(
    lambda first, size, state, count: StateBatch(first, min(first + size, END - 1), state, count),
    offsets,
    st.integers(0, 6),
    st.sampled_from([one for one in RecordState if one is not RecordState.ACQUIRED]),
    st.integers(1, 3),
)
starts = st.just(-1) | offsets
writes = st.builds(
    StateWrite,
    state_epoch=st.integers(-1, 2),
    leader_epoch=st.integers(-1, 3),
    start_offset=starts,
    delivery_complete_count=st.integers(-1, 5),
    batches=st.lists(batches, max_size=4).map(tuple),
)
events = st.lists(
    st.tuples(
        st.sampled_from(KEYS),
        writes | st.tuples(st.just("initialize"), st.integers(0, 2)) | st.just("delete"),
    ),
    max_size=30,
)
Offsets = dict[int, tuple[int, RecordState]]


def spread(state: Sequence[StateBatch]) -> Offsets:
    found: Offsets = {}
    for one in state:
        for offset in range(one.first_offset, one.last_offset + 1):
            assert offset not in found
            found[offset] = one.delivery_count, one.state
    assert list(found) == sorted(found)
    return found


def added(known: Offsets, more: Sequence[StateBatch], start: int) -> Offsets:
    found = dict(known)
    for one in more:
        for offset in range(one.first_offset, one.last_offset + 1):
            now = one.delivery_count, one.state
            found[offset] = max(found.get(offset, now), now)
    return {offset: one for offset, one in found.items() if offset >= start}


@given(st.lists(batches, max_size=12), starts)
def test_batches_are_put_together_offset_by_offset(some: list[StateBatch], start: int) -> None:
    whole = combined((), some, start)
    assert spread(whole) == added({}, some, start)
    assert combined(whole, some, start) == whole, "a write that comes twice changes something"
    for one, other in pairwise(whole):
        assert one.last_offset + 1 < other.first_offset or one[2:] != other[2:]


class Model:
    """States as they should be."""

    def __init__(self) -> None:
        self.states: dict[SharePartitionKey, tuple[int, int, int, Offsets]] = {}
        """Start offset, state epoch, leader epoch, offsets."""

    def perform(self, key: SharePartitionKey, event: object) -> ErrorCode:
        known = self.states.get(key)
        if event == "delete":
            self.states.pop(key, None)
        elif isinstance(event, StateWrite):
            if known is None:
                return ErrorCode.invalid_request
            start, state_epoch, leader_epoch, offsets = known
            if -1 != event.leader_epoch < leader_epoch:
                return ErrorCode.fenced_leader_epoch
            if -1 != event.state_epoch < state_epoch:
                return ErrorCode.fenced_state_epoch
            start = max(start, event.start_offset)
            leader_epoch = max(leader_epoch, event.leader_epoch)
            offsets = added(offsets, event.batches, start)
            self.states[key] = start, state_epoch, leader_epoch, offsets
        elif isinstance(event, tuple):
            epoch = event[1]
            if known is not None and epoch < known[1]:
                return ErrorCode.fenced_state_epoch
            if known is None or epoch > known[1]:
                self.states[key] = 5, epoch, 0 if known is None else known[2], {}
        return ErrorCode.none


def told(state: ShareState | None) -> tuple[int, int, int, Offsets] | None:
    if state is None:
        return None
    return state.start_offset, state.state_epoch, state.leader_epoch, spread(state.batches)


async def perform(shard: ShareShard, key: SharePartitionKey, event: object) -> ErrorCode:
    try:
        if event == "delete":
            shard.delete(key)
        elif isinstance(event, StateWrite):
            shard.write(key, event)
        elif isinstance(event, tuple):
            shard.initialize(key, event[1], 5)
    except KafkaError as error:
        return error.code
    return ErrorCode.none


async def run(wanted: Sequence[tuple[SharePartitionKey, object]], seed: int) -> None:
    rng = random.Random(seed)
    scope = TaskScope(crash)
    partition = ListPartition()
    shard = ShareShard(open_log(partition, scope), SystemClock(), 3, lambda _topic: True)
    model = Model()
    for key, event in wanted:
        assert await perform(shard, key, event) is model.perform(key, event)
        if rng.random() < 0.5:
            assert told(shard.find(key)) == model.states.get(key)
        if rng.random() < 0.3:
            await asyncio.sleep(0)
        partition.stream.confirm(rng.randrange(3))
        if rng.random() < 0.2:  # the coordinator moves
            shard.close(ErrorCode.not_coordinator)
            await settled(partition.stream)
            shard = ShareShard(open_log(partition, scope), SystemClock(), 3, lambda _topic: True)
            await shard.load()
    for key in KEYS:
        assert told(shard.find(key)) == model.states.get(key)
    await settled(partition.stream)
    again = ShareShard(open_log(partition, scope), SystemClock(), 3, lambda _topic: True)
    await again.load()
    for key in KEYS:
        assert told(again.find(key)) == model.states.get(key)
    gone = ShareShard(open_log(partition, scope), SystemClock(), 3, lambda _topic: False)
    await gone.load()
    assert [gone.find(key) for key in KEYS] == [None, None]
    await scope.close()


@settings(deadline=None, max_examples=examples(300))
@given(events, st.integers(0, 2**16))
def test_states_outlive_trims_and_moves(
    wanted: list[tuple[SharePartitionKey, object]], seed: int
) -> None:
    asyncio.run(run(wanted, seed))


@pytest.mark.parametrize("updates_max", [0, 10], ids=["snapshots", "updates"])
async def test_a_write_that_comes_late_does_not_bring_back_what_is_done(updates_max: int) -> None:
    scope = TaskScope(crash)
    partition = ListPartition()
    [key, _] = KEYS

    def open_shard() -> ShareShard:
        return ShareShard(
            open_log(partition, scope), SystemClock(), updates_max, lambda _topic: True
        )

    shard = open_shard()
    shard.initialize(key, 1, 5)
    done, free = RecordState.ACKNOWLEDGED, RecordState.AVAILABLE
    early = StateWrite(1, 1, 5, 0, (StateBatch(5, 8, done, 1), StateBatch(9, 12, free, 1)))
    shard.write(key, early)
    shard.write(key, StateWrite(1, 1, 10, 0, (StateBatch(9, 9, done, 2),)))
    before = shard.find(key)
    shard.write(key, early)
    assert shard.find(key) == before
    await settled(partition.stream)
    again = open_shard()
    await again.load()
    assert again.find(key) == before
    await scope.close()


async def test_a_request_to_begin_a_state_that_comes_twice_or_late_costs_no_verdict() -> None:
    scope = TaskScope(crash)
    partition = ListPartition()
    shard = ShareShard(open_log(partition, scope), SystemClock(), 10, lambda _topic: True)
    [key, _] = KEYS
    shard.initialize(key, 2, -1)
    done = StateBatch(5, 8, RecordState.ACKNOWLEDGED, 1)
    shard.write(key, StateWrite(2, 1, 5, 4, (done,)))
    before = shard.find(key)
    again = shard.initialize(key, 2, -1)
    assert shard.find(key) == before
    await asyncio.sleep(0)
    assert not again.done(), "it responds before the state is durable"
    await settled(partition.stream)
    assert again.result() is None
    shard.initialize(key, 3, 0)
    assert shard.find(key) == ShareState(0, 3, 1, 0)
    await scope.close()
