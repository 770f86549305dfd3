"""The topics that groups may subscribe to, as one version of the metadata has them."""

import hashlib
import struct
from collections.abc import Collection, Iterable
from typing import NamedTuple

from lakehead.storage.metadata.state import MetadataImage

_HASH = struct.Struct(">q")
_FIELDS = struct.Struct(">16sii")


class KnownTopic(NamedTuple):
    """A topic with its id (16 bytes)."""

    name: str
    topic_id: bytes
    partition_count: int


class TopicCatalog:
    """Topics by name and by id. A catalog never changes; there is another after a change."""

    def __init__(self, image: MetadataImage) -> None:
        self.version = image.next_entry
        """The number of the metadata entry that is not known yet."""
        self._topics = image.topics
        self._names = image.topic_names

    def is_of(self, image: MetadataImage) -> bool:
        """Return true if the image has the same topics."""
        return image.topics is self._topics

    @property
    def names(self) -> Collection[str]:
        """The names of all topics."""
        return self._topics.keys()

    def find(self, name: str) -> KnownTopic | None:
        """Return the topic of a name."""
        topic = self._topics.get(name)
        if topic is None:
            return None
        return KnownTopic(name, bytes.fromhex(topic.topic_id), len(topic.partitions))

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with an id."""
        return self._names.get(topic_id.hex())

    def found(self, names: Iterable[str]) -> list[KnownTopic]:
        """Return those of the topics that exist, by name."""
        found = (self.find(name) for name in sorted(names))
        return [topic for topic in found if topic is not None]

    def hash_of(self, names: Iterable[str]) -> int:
        """Return a number of 64 bits that changes with the ids and partitions of these topics; 0 if
        none of them exists. It does not matter to which topics Kafka gives which number.
        """
        digest = hashlib.blake2b(digest_size=_HASH.size)
        topics = self.found(names)
        for topic in topics:
            name = topic.name.encode()
            digest.update(_FIELDS.pack(topic.topic_id, topic.partition_count, len(name)) + name)
        return int(_HASH.unpack(digest.digest())[0]) if topics else 0
