"""The key of a share-partition: a partition of a topic, in a share group."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

_ID_SIZE = 16


class SharePartitionKey(NamedTuple):
    """A group, a topic's id (16 bytes) and the index of a partition."""

    group_id: str
    topic_id: bytes
    partition: int

    @property
    def text(self) -> str:
        """The key as FindCoordinator has it, by which the share coordinator is chosen."""
        topic_id = urlsafe_b64encode(self.topic_id).decode().rstrip("=")
        return f"{self.group_id}:{topic_id}:{self.partition}"


def parse_key(text: str) -> SharePartitionKey:
    """Return the key of a text. Raises ValueError."""
    group_id, topic_id, partition = text.rsplit(":", 2)
    decoded = urlsafe_b64decode(f"{topic_id}==".encode("ascii"))
    if not group_id or len(decoded) != _ID_SIZE:
        raise ValueError(f"{text} is not a group, a topic id and a partition")
    return SharePartitionKey(group_id, decoded, int(partition))
