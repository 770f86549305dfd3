"""Dead letters: records of a share-partition that are given up, and go to another topic (KIP-1191).

A dead letter has headers that say where its record is, how often it was delivered, and the reason.
It has the record's key and value too, if the group wants that; the record's own headers are not
copied.
"""

from enum import Enum
from typing import NamedTuple

from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.format.batch_writer import Headers


class Reason(Enum):
    """The reason of a dead letter; the values are Kafka's texts."""

    REJECTED = "Offset rejected by client."
    DELIVERIES_USED_UP = "Offset delivery count exceeded the threshold."


class DeadLetters(NamedTuple):
    """Offsets, first and last inclusive, whose records were given up for one reason."""

    first_offset: int
    last_offset: int
    delivery_count: int
    reason: Reason

    @property
    def records(self) -> int:
        """The number of records."""
        return self.last_offset - self.first_offset + 1


def headers(key: SharePartitionKey, topic: str, letters: DeadLetters, offset: int) -> Headers:
    """Return the headers of a dead letter, of the record of `topic` at `offset`."""
    texts = {
        "topic": topic,
        "partition": str(key.partition),
        "offset": str(offset),
        "group": key.group_id,
        "delivery.count": str(letters.delivery_count),
        "message": letters.reason.value,
    }
    return [(f"__dlq.errors.{name}", text.encode()) for name, text in texts.items()]
