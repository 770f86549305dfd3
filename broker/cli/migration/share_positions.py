"""Positions of share groups: the first offset of each partition that is not done (KIP-932), from
the coordinators of the source into the records that coordinators have here.

A record that was acknowledged beyond that offset at the source is delivered again here: no request
has the states of single records.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.cli.migration.group_positions import present
from lakehead.broker.cli.migration.source_brokers import (
    LOADING,
    SourceBrokers,
    SourceChannel,
    SourceMoved,
)
from lakehead.broker.coordinator.group.consumer.consumer_members import FIRST_EPOCH
from lakehead.broker.coordinator.group.consumer.consumer_record_formats import GroupEpoch
from lakehead.broker.coordinator.group.share.share_record_formats import (
    KnownPartitions,
    ShareGroupKey,
    ShareGroupValue,
    ShareRecordKind,
    StatePartitions,
    encode_share_key,
    encode_share_value,
)
from lakehead.broker.coordinator.share.record_formats import (
    ShareSnapshot,
    encode_key,
    encode_snapshot,
)
from lakehead.broker.coordinator.share.share_states import ShareStates
from lakehead.broker.partition.partition import SHARE_STATES_TOPIC
from lakehead.broker.protocol.messages import entity
from lakehead.broker.share.record_state import ShareState
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.backup.stored_batches import stored_batches
from lakehead.storage.errors import RequestRefused
from lakehead.storage.format.batch_writer import KeyValue
from lakehead.storage.format.records import iter_kafka_records
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import ObjectStore

_DESCRIBE, _DESCRIBE_NEWEST = 90, 1
_GROUPS_AT_ONCE = 100
_SHARE = "share"

ShareOffsets = Mapping[str, Mapping[tuple[str, int], int]]
"""The first offsets that are not done, by group, and by topic and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePositions:
    """The positions of the share groups of a source. `not_served` groups have some that the source
    does not give away: it is older than DescribeShareGroupOffsets.
    """

    groups: ShareOffsets
    not_served: int = 0


async def source_share_positions(brokers: SourceBrokers, topics: Collection[str]) -> SharePositions:
    """Return the positions of share groups in these topics. A partition of which a group has begun
    nothing has none. Raises as `SourceBrokers`.
    """

    async def send() -> SharePositions:
        by_node: dict[int, list[str]] = {}
        for one in await brokers.listed_groups():
            if one.kind == _SHARE:
                by_node.setdefault(one.node, []).append(one.name)
        found: dict[str, dict[tuple[str, int], int]] = {}
        not_served = 0
        for node, names in by_node.items():
            channel = await brokers.channel(node)
            if not channel.supports(_DESCRIBE, 0):
                not_served += len(names)
                continue
            for first in range(0, len(names), _GROUPS_AT_ONCE):
                found |= await _described(channel, names[first : first + _GROUPS_AT_ONCE], topics)
        return SharePositions(groups=found, not_served=not_served)

    return await brokers.tried(send)


async def _described(
    channel: SourceChannel, names: Collection[str], topics: Collection[str]
) -> dict[str, dict[tuple[str, int], int]]:
    def fields(module: Any) -> dict[str, Any]:
        return {
            "groups": [
                entity(module, "DescribeShareGroupOffsetsRequestGroup", group_id=one, topics=None)
                for one in names
            ]
        }

    name = "DescribeShareGroupOffsetsRequest"
    response = await channel.send(_DESCRIBE, _DESCRIBE_NEWEST, name, fields)
    found = {}
    for group in response.groups:
        code = group.error_code
        if code in LOADING:
            raise SourceMoved(f"share group {group.group_id}: {code.name.upper()}")
        if code is ErrorCode.group_id_not_found:
            continue  # it ended meanwhile
        if code is not ErrorCode.none:
            raise RequestRefused(
                f"share group {group.group_id}: the source responds {code.name.upper()}"
            )
        offsets = {
            (str(topic.topic_name), int(one.partition_index)): int(one.start_offset)
            for topic in group.topics
            if topic.topic_name in topics
            for one in topic.partitions
            if one.error_code is ErrorCode.none and one.start_offset >= 0
        }
        if offsets:
            found[str(group.group_id)] = offsets
    return found


async def stored_share_positions(
    store: ObjectStore, state: MetadataImage
) -> dict[SharePartitionKey, int]:
    """Return the positions of share groups that are in the store. Raises StorageError."""
    states = ShareStates()
    topic = state.topics.get(SHARE_STATES_TOPIC)
    for number in () if topic is None else topic.partitions:
        async for batch in stored_batches(store, state.stream(number)):
            for record in iter_kafka_records(batch):
                key = record.key or b""
                if record.value is None:
                    states.pop(key, None)
                else:
                    states[key] = record.value
    found = {key: one.state.start_offset for key, one in states.by_key.items()}
    return {key: offset for key, offset in found.items() if offset >= 0}


def imported_share_positions(
    groups: ShareOffsets, state: MetadataImage, end_of: Callable[[int], int]
) -> dict[SharePartitionKey, int]:
    """Return the positions that the share groups of the source have here. `end_of` returns the end
    of a stream: a position beyond it becomes that.
    """
    return {
        SharePartitionKey(group, bytes.fromhex(topic.topic_id), partition): min(
            offset, end_of(topic.partitions[partition])
        )
        for group, topic, partition, offset in present(groups, state)
    }


def state_record(key: SharePartitionKey, offset: int | None, time_ms: int) -> KeyValue:
    """Return the record by which a share-partition begins at an offset, or has none any more."""
    if offset is None:
        return encode_key(key), None
    begun = ShareState(offset, FIRST_EPOCH, leader_epoch=0, delivery_complete_count=0)
    snapshot = ShareSnapshot(epoch=0, state=begun, created_ms=time_ms, written_ms=time_ms)
    return encode_key(key), encode_snapshot(snapshot)


def group_records(group_id: str, partitions: Mapping[bytes, KnownPartitions]) -> list[KeyValue]:
    """Return the records of a share group without members that has begun these partitions, by topic
    id; without any of them, those that delete the group.
    """
    values: dict[ShareRecordKind, ShareGroupValue] = {
        ShareRecordKind.GROUP: GroupEpoch(epoch=FIRST_EPOCH),
        ShareRecordKind.PARTITIONS: StatePartitions(initialized=partitions),
    }
    return [
        (
            encode_share_key(ShareGroupKey(kind, group_id)),
            encode_share_value(value) if partitions else None,
        )
        for kind, value in values.items()
    ]
