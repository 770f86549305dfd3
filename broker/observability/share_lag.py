"""The lag of a share group (KIP-932, KIP-1226): how far it is behind in each partition."""

import contextlib
from typing import NamedTuple

from lakehead.broker.observability.observed_node import ObservedNode
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.share.record_state import NO_START_OFFSET, RecordState, ShareState
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.errors import LakeheadError
from lakehead.storage.tasks import for_each

PARTITIONS_MAX = 500
"""Partitions of a group that are looked at: each is a request to its leader."""
_AT_ONCE = 16


class ShareLag(NamedTuple):
    """A partition of a share group. Offsets below `start_offset` are done, and `done` of those from
    it on; -1: not known, or the group has not begun. `end` is None if the leader did not respond.
    `acquired` and `waiting` are records that members hold, and that wait for another delivery; None
    where another node leads the partition.
    """

    topic: str
    partition: int
    start_offset: int
    done: int
    end: int | None
    acquired: int | None
    waiting: int | None

    @property
    def records(self) -> int | None:
        """Records that the group is yet to take, as DescribeShareGroupOffsets has it; None if that
        is not known.
        """
        return ShareState(self.start_offset, delivery_complete_count=self.done).lag(self.end)


async def share_lags(node: ObservedNode, group_id: str) -> list[ShareLag]:
    """Return the partitions of a share group that this node coordinates, `PARTITIONS_MAX` at most.
    Raises KafkaError.
    """
    group = await node.groups.share_group(group_id)
    wanted = [
        (known.name, index)
        for known in group.partitions.initialized.values()
        for index in sorted(known.indexes)
    ]
    found: list[ShareLag] = []

    async def look(place: tuple[str, int]) -> None:
        if (lag := await _lag(node, group_id, *place)) is not None:
            found.append(lag)

    await for_each(sorted(wanted)[:PARTITIONS_MAX], look, at_once=_AT_ONCE)
    return sorted(found, key=lambda one: (one.topic, one.partition))


async def _lag(node: ObservedNode, group_id: str, name: str, index: int) -> ShareLag | None:
    topic = node.topics.by_name.get(name)
    if topic is None:
        return None
    key = SharePartitionKey(group_id, topic.id_bytes, index)
    state = ShareState(NO_START_OFFSET)
    with contextlib.suppress(LakeheadError, TimeoutError, KafkaError):
        state = await node.services.share_states.summary(key)
    start_offset, done = state.start_offset, state.delivery_complete_count
    acquired = waiting = None
    if (led := node.share_partitions.find(key)) is not None:
        # The stored start offset moves with the next change that is stored.
        start_offset, done = led.machine.start_offset, led.machine.delivery_complete_count
        acquired = waiting = 0
        for batch in led.machine.batches:
            if batch.state is RecordState.ACQUIRED:
                acquired += len(batch)
            elif batch.state is RecordState.AVAILABLE:
                waiting += len(batch)
    return ShareLag(
        topic=name,
        partition=index,
        start_offset=start_offset,
        done=done,
        end=await node.services.partition_ends.end(name, index),
        acquired=acquired,
        waiting=waiting,
    )
