"""The content of a cluster, from its metadata log: topics, partitions, offsets, and the objects
that hold them.

Read-only, and one snapshot: open a catalog again to see later changes. It needs no broker.
"""

import random
from dataclasses import dataclass
from pathlib import Path

from lakehead.lake.errors import DataLoss
from lakehead.lake.positions import TopicPartition
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError, UnknownTopic
from lakehead.storage.format.stream_object import AbortedTransaction
from lakehead.storage.metadata.extents import Extent
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.state import MetadataImage, TopicState
from lakehead.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLog:
    """A partition's records that lie in objects: offsets [start_offset, end_offset), by extent.

    `aborted` are transactions whose records do not count. The partition's state is in extents that
    reach beyond `state_from`, -1 without any, trimmed ones (`state_extents`) among them.
    """

    id: TopicPartition
    topic_id: str
    stream_id: int
    start_offset: int
    end_offset: int
    extents: tuple[Extent, ...]
    aborted: tuple[AbortedTransaction, ...] = ()
    state_from: int = -1
    state_extents: tuple[Extent, ...] = ()


async def open_metadata(store: ObjectStore) -> MetadataLog:
    """Return a cluster's metadata log, to be read. Raises as `Catalog.open`."""
    log = await MetadataLog.open(
        store, writer_id="reader", clock=SystemClock(), rng=random.Random(0)
    )
    if not log.state.next_entry:
        raise SettingsError(
            f"there is no Lakehead cluster at {store.uri}: path must name the object store of a "
            f"broker, as it prints it when it is ready{_hint(store.uri)}"
        )
    return log


def _hint(uri: str) -> str:
    """Return the store of a broker whose data folder was given in place of it."""
    inner = Path(uri.removeprefix("file:")) / "store"
    if uri.startswith("file:") and (inner / "meta").is_dir():
        return f": did you mean {inner}?"
    return ""


class Catalog:
    """A snapshot of a cluster's metadata."""

    def __init__(self, state: MetadataImage, uri: str) -> None:
        self.state = state
        self.uri = uri

    @classmethod
    async def open(cls, store: ObjectStore) -> "Catalog":
        """Read the metadata log.

        Raises SettingsError where there is no cluster, UnsupportedFormat, CorruptObject,
        StoreUnavailable.
        """
        log = await open_metadata(store)
        return cls(log.state, store.uri)

    def topics(self) -> tuple[str, ...]:
        """Return the names of all topics, sorted."""
        return tuple(sorted(self.state.topics))

    def topic(self, name: str) -> TopicState:
        """Return a topic. Raises UnknownTopic."""
        try:
            return self.state.topics[name]
        except KeyError:
            raise UnknownTopic(f"topic {name!r} does not exist in {self.uri}") from None

    def partitions(self, topic: str) -> tuple[PartitionLog, ...]:
        """Return the partitions of a topic, by number. Raises UnknownTopic."""
        count = len(self.topic(topic).partitions)
        return tuple(self.partition(TopicPartition(topic, number)) for number in range(count))

    def partition(self, id_: TopicPartition) -> PartitionLog:
        """Return one partition, up to its first inherited tail, whose records are in no object yet.
        Raises UnknownTopic, DataLoss (the topic has no such partition).
        """
        topic = self.topic(id_.topic)
        if not 0 <= id_.partition < len(topic.partitions):
            raise DataLoss(
                f"topic {id_.topic!r} has partitions 0 to {len(topic.partitions) - 1}, "
                f"not {id_.partition}"
            )
        stream = self.state.stream(topic.partitions[id_.partition])
        return PartitionLog(
            id=id_,
            topic_id=topic.topic_id,
            stream_id=stream.stream_id,
            start_offset=stream.start_offset,
            end_offset=self.state.uploaded_end(stream),
            extents=tuple(self.state.uploaded_extents(stream)),
            state_from=stream.state_from,
            state_extents=tuple(stream.state_extents),
        )
