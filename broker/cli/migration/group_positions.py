"""Committed offsets of groups, as the log of their coordinator has them in the store."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import TypeVar

from lakehead.broker.cli.migration.source_cluster import SourcePosition
from lakehead.broker.coordinator.group.record_formats import (
    CommittedOffset,
    OffsetKey,
    decode_key,
    decode_offset,
)
from lakehead.broker.partition.partition import OFFSETS_TOPIC
from lakehead.storage.backup.stored_batches import stored_batches
from lakehead.storage.format.records import iter_kafka_records
from lakehead.storage.metadata.state import MetadataImage, TopicState
from lakehead.storage.object_store import ObjectStore

P = TypeVar("P")

Positions = Mapping[OffsetKey, CommittedOffset]
"""Committed offsets without their times, and without leader epochs: those of the source mean
nothing here.
"""

BY_NAMES = attrgetter("group_id", "topic", "partition")
"""The order of keys of committed offsets."""


async def stored_positions(
    store: ObjectStore, state: MetadataImage
) -> dict[OffsetKey, CommittedOffset]:
    """Return the committed offsets that are in the store. Raises StorageError."""
    found: dict[OffsetKey, CommittedOffset] = {}
    topic = state.topics.get(OFFSETS_TOPIC)
    for number in () if topic is None else topic.partitions:
        async for batch in stored_batches(store, state.stream(number)):
            for record in iter_kafka_records(batch):
                key = decode_key(record.key or b"")
                if not isinstance(key, OffsetKey):
                    continue
                if record.value is None:
                    found.pop(key, None)
                else:
                    committed = decode_offset(record.value)
                    found[key] = replace(committed, leader_epoch=-1, commit_timestamp_ms=-1)
    return found


def imported_positions(
    groups: Mapping[str, Mapping[tuple[str, int], SourcePosition]],
    state: MetadataImage,
    end_of: Callable[[int], int],
) -> dict[OffsetKey, CommittedOffset]:
    """Return what the groups of the source have here. `end_of` returns the end of a stream: a
    position beyond it becomes that, since the next records get these offsets.
    """
    return {
        OffsetKey(group_id=group, topic=topic.name, partition=partition): CommittedOffset(
            offset=min(position.offset, end_of(topic.partitions[partition])),
            metadata=position.metadata,
            topic_id=bytes.fromhex(topic.topic_id),
        )
        for group, topic, partition, position in present(groups, state)
    }


def present(
    groups: Mapping[str, Mapping[tuple[str, int], P]], state: MetadataImage
) -> Iterator[tuple[str, TopicState, int, P]]:
    """Yield group, topic, partition and position of those that groups of the source have in
    partitions that are here: others were made since the topics were listed.
    """
    for group, positions in groups.items():
        for (name, partition), position in positions.items():
            topic = state.topics.get(name)
            if topic is not None and partition < len(topic.partitions):
                yield group, topic, partition, position
