"""Positions of groups that are corrected in a restored cluster, before it begins.

A backup holds each partition as it was at about one moment, not at exactly the same one: a group
may have committed an offset of records that are not in it. Without a correction the group would
pass over the next records that get these offsets. So such an offset becomes the end of its
partition. A share group's state has nothing of offsets from the end on either: they would count as
done.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from lakehead.broker.coordinator.group.record_formats import (
    OffsetKey,
    decode_key,
    decode_offset,
    encode_offset,
)
from lakehead.broker.coordinator.log import CoordinatorLog
from lakehead.broker.coordinator.record_reader import UnknownRecord
from lakehead.broker.coordinator.share.record_formats import encode_key as encode_share_key
from lakehead.broker.coordinator.share.record_formats import encode_snapshot
from lakehead.broker.coordinator.share.share_states import ShareStates, StoredState
from lakehead.broker.partition.partition import OFFSETS_TOPIC, SHARE_STATES_TOPIC
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.backup.stored_batches import stored_batches
from lakehead.storage.clock import Clock
from lakehead.storage.errors import RequestRefused
from lakehead.storage.format.batch_writer import KeyValue
from lakehead.storage.metadata.state import MetadataImage, StreamState
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.tasks import TaskScope, log_failure


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredLog:
    """A partition of an internal topic that no node leads, as a coordinator's log reads it: both
    the partition and its stream.
    """

    state: StreamState
    batches: Sequence[memoryview]

    @property
    def stream(self) -> "_StoredLog":
        return self

    @property
    def start_offset(self) -> int:
        return self.state.start_offset

    @property
    def confirmed_offset(self) -> int:
        return self.state.end_offset

    @property
    def next_offset(self) -> int:
        return self.state.end_offset

    @property
    def object_count(self) -> int:
        return len(self.state.extents)

    async def fetch(self, _offset: int, _max_bytes: int) -> list[memoryview]:
        """Return all batches: they are read once, from the start."""
        return list(self.batches)

    async def trim(self, _offset: int) -> None:
        self.append()

    def append(self, *_arguments: object) -> NoReturn:
        raise RequestRefused("nothing is appended to a log that no node leads")

    plan = perform = append


async def corrected_offsets(
    store: ObjectStore, state: MetadataImage, clock: Clock
) -> dict[int, list[KeyValue]]:
    """Return the records to append to the streams of `__consumer_offsets` and of
    `__share_group_state`, by stream id: the positions of groups beyond the ends of partitions, as
    those ends.

    Raises ObjectNotFound, StoreUnavailable, CorruptObject, UnsupportedFormat.
    """
    found: dict[int, list[KeyValue]] = {}
    scope = TaskScope(log_failure)
    try:
        async for stream_id, stored in _logs(store, state, OFFSETS_TOPIC):
            log = CoordinatorLog(stored, clock, scope, name=OFFSETS_TOPIC)
            await log.replay()
            found[stream_id] = [
                (key, value)
                async for key, committed in log.values()
                if (value := _corrected(state, key, committed)) is not None
            ]
        async for stream_id, stored in _logs(store, state, SHARE_STATES_TOPIC):
            log = CoordinatorLog(stored, clock, scope, name=SHARE_STATES_TOPIC)
            states = ShareStates()
            log.keep_in(states)
            await log.replay()
            found[stream_id] = [
                (encode_share_key(key), value)
                for key, one in states.by_key.items()
                if (value := _corrected_share(state, key, one, clock.now_ms())) is not None
            ]
    finally:
        await scope.close()
    return {stream_id: records for stream_id, records in found.items() if records}


async def _logs(
    store: ObjectStore, state: MetadataImage, topic: str
) -> AsyncIterator[tuple[int, _StoredLog]]:
    """Yield the partitions of an internal topic that have records, by stream id."""
    known = state.topics.get(topic)
    for stream_id in () if known is None else known.partitions:
        stream = state.stream(stream_id)
        if stream.start_offset < stream.end_offset:
            batches = [batch async for batch in stored_batches(store, stream)]
            yield stream_id, _StoredLog(state=stream, batches=batches)


def _corrected(state: MetadataImage, key: bytes, stored: bytes) -> bytes | None:
    """Return the value of a committed offset that has to change; None: it stays as it is."""
    try:
        about = decode_key(key)
        if not isinstance(about, OffsetKey):
            return None
        committed = decode_offset(stored)
    except UnknownRecord:
        return None
    topic = state.topics.get(about.topic)
    if topic is None or about.partition >= len(topic.partitions):
        return None
    end = state.stream(topic.partitions[about.partition]).end_offset
    return encode_offset(replace(committed, offset=end)) if committed.offset > end else None


def _corrected_share(
    state: MetadataImage, key: SharePartitionKey, stored: StoredState, now_ms: int
) -> bytes | None:
    """Return the snapshot of a share-partition that has to change; None: it stays as it is."""
    topic = state.topic_by_id(key.topic_id.hex())
    if topic is None or key.partition >= len(topic.partitions):
        return None
    end, share = state.stream(topic.partitions[key.partition]).end_offset, stored.state
    batches = tuple(
        one._replace(last_offset=min(one.last_offset, end - 1))
        for one in share.batches
        if one.first_offset < end
    )
    if share.start_offset <= end and batches == share.batches:
        return None
    done = share.delivery_complete_count
    if done >= 0:
        done = sum(
            one.last_offset - one.first_offset + 1 for one in batches if one.state.is_terminal
        )
    corrected = share._replace(
        start_offset=min(share.start_offset, end), delivery_complete_count=done, batches=batches
    )
    epoch = stored.snapshot.epoch + 1
    return encode_snapshot(
        replace(stored.snapshot, epoch=epoch, state=corrected, written_ms=now_ms)
    )
