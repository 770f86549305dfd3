"""The state of a record in a share group, and ranges of offsets with one state (KIP-932)."""

from enum import IntEnum
from typing import NamedTuple

NO_START_OFFSET = -1
"""No start offset is known: where the group begins is decided by `share.auto.offset.reset`."""


class RecordState(IntEnum):
    """Kafka's states; the values are those in `__share_group_state`."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    """Never delivered again; its dead letter is not written yet (KIP-1191)."""
    ARCHIVED = 4

    @property
    def is_terminal(self) -> bool:
        """Return true if nothing is left to be done with the record."""
        return self in {RecordState.ACKNOWLEDGED, RecordState.ARCHIVED}


class AcknowledgeType(IntEnum):
    """The verdict of a consumer on a record; the values are those in requests.

    A gap is an offset at which the consumer found no record: a control record, or one that log
    compaction removed. RENEW (KIP-1222) extends the acquisition lock.
    """

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class StateBatch(NamedTuple):
    """Offsets, first and last inclusive, with the same state and delivery count."""

    first_offset: int
    last_offset: int
    state: RecordState
    delivery_count: int


class ShareState(NamedTuple):
    """The durable state of a share-partition: of a partition in one share group.

    Offsets below `start_offset` are done. Those that no batch has were not delivered yet, or their
    delivery was never acknowledged. `delivery_complete_count` is the number of offsets from the
    start offset on that are done (KIP-1226), -1 where it is not known.
    """

    start_offset: int
    state_epoch: int = 0
    leader_epoch: int = -1
    delivery_complete_count: int = -1
    batches: tuple[StateBatch, ...] = ()

    def lag(self, end_offset: int | None) -> int | None:
        """Return the number of records that the group is yet to take of a partition that ends at
        `end_offset`; None if that is not known, or the group has not begun (KIP-1226).
        """
        if end_offset is None or min(self.start_offset, self.delivery_complete_count) < 0:
            return None
        return max(end_offset - self.start_offset - self.delivery_complete_count, 0)
