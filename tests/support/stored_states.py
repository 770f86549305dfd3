"""The states of one partition in its uploads, kept as the metadata says that they count."""

from lakehead.broker.partition.producer_state import ProducerStates
from lakehead.broker.partition.producer_table import LIMITS, ProducerLimits
from lakehead.storage.format.partition_state import StateSnapshot, put_together

TINY = ProducerLimits(whole_bytes=0, share_bytes=60, active=1, shard_size=2)
"""Each upload has a producer or two beside what changed; there are many shards at once."""


class StoredStates:
    """What uploads carry of a partition's state, and what is left of it."""

    def __init__(self, limits: ProducerLimits = LIMITS) -> None:
        self.limits = limits
        self.end = 0
        self.since = -1
        self.kept: list[tuple[int, StateSnapshot]] = []
        self.sizes: list[int] = []

    def states(self) -> ProducerStates:
        """Return the states of a partition that is new."""
        return ProducerStates(since=-1, end_offset=self.end, limits=self.limits)

    def upload(self, states: ProducerStates, end: int) -> None:
        """Upload what came since the last one; nothing, if there is nothing."""
        if end == self.end:
            return
        snapshot = states.snapshot(self.end, end)
        assert snapshot.since <= self.end
        self.since = self.end if snapshot.since < 0 else max(self.since, snapshot.since)
        self.kept = [one for one in (*self.kept, (end, snapshot)) if one[0] > self.since]
        self.sizes.append(len(snapshot.data))
        self.end = end

    def merge(self, first: int, count: int) -> None:
        """Put states of neighbours together, as jobs do with their objects."""
        some = self.kept[first : first + count]
        if some:
            state = put_together([snapshot for _, snapshot in some])
            self.kept[first : first + count] = [(some[-1][0], state)]

    def restore(self) -> ProducerStates:
        """Return the states as the next leader learns them."""
        return ProducerStates.restore(
            [snapshot.data for _, snapshot in self.kept],
            since=self.since,
            end_offset=self.end,
            limits=self.limits,
        )
