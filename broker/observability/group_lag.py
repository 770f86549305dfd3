"""The lag of consumer groups: how far their committed offsets are behind the ends of partitions."""

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from lakehead.broker.coordinator.group.group_metadata import Offsets
from lakehead.broker.coordinator.group.record_formats import CommittedOffset
from lakehead.broker.observability.observed_node import ObservedNode

GROUPS_SHOWN = 1_000
"""Groups with a lag in the metrics: those with the largest lags."""


class PartitionLag(NamedTuple):
    """The lag of a committed offset. `is_exact` is false where another node leads the partition:
    `end` is then that of its objects, and may be too small.
    """

    topic: str
    partition: int
    committed: CommittedOffset
    end: int
    is_exact: bool

    @property
    def records(self) -> int:
        """Offsets from the committed one to the end."""
        return max(self.end - self.committed.offset, 0)


def partition_lags(node: ObservedNode, offsets: Offsets) -> Iterator[PartitionLag]:
    """Yield the lag of each committed offset of a partition that exists."""
    state = node.state
    for (name, partition), committed in list(offsets.items()):
        topic = state.topics.get(name)
        if topic is None or partition >= len(topic.partitions):
            continue
        led = node.topics.partition(name, partition)
        if led is not None:
            yield PartitionLag(name, partition, committed, led.high_watermark, is_exact=True)
        else:
            end = state.streams[topic.partitions[partition]].end_offset
            yield PartitionLag(name, partition, committed, end, is_exact=False)


def group_lags(node: ObservedNode) -> dict[str, int]:
    """Return the lag of the groups that this node coordinates and that have committed offsets, in
    records; of `GROUPS_SHOWN` groups at most, those with the largest lags. Any thread may call it.
    """
    lags = (
        (sum(one.records for one in partition_lags(node, offsets)), group)
        for group, offsets in node.groups.committed()
    )
    return {group: lag for lag, group in heapq.nlargest(GROUPS_SHOWN, lags)}
