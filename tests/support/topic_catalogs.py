"""Topics for consumer groups, without a broker."""

import hashlib
from collections.abc import Mapping

from immutables import Map

from lakehead.broker.coordinator.group.topic_catalog import TopicCatalog
from lakehead.storage.metadata.state import MetadataImage, TopicState


def topic_id(name: str, generation: int = 0) -> bytes:
    """Return the id of the topic of a name; a topic that is made again has another generation."""
    return hashlib.blake2b(f"{name} {generation}".encode(), digest_size=16).digest()


def image(
    partitions: Mapping[str, int], *, version: int = 1, generations: Mapping[str, int] | None = None
) -> MetadataImage:
    """Return metadata with topics of so many partitions."""
    ids = {name: topic_id(name, (generations or {}).get(name, 0)).hex() for name in partitions}
    return MetadataImage(
        next_entry=version,
        topics=Map(
            {
                name: TopicState(name=name, topic_id=ids[name], partitions=tuple(range(count)))
                for name, count in partitions.items()
            }
        ),
        topic_names=Map({one: name for name, one in ids.items()}),
    )


def catalog(partitions: Mapping[str, int], *, version: int = 1) -> TopicCatalog:
    """Return topics of so many partitions."""
    return TopicCatalog(image(partitions, version=version))
