"""Committed offsets that are corrected in a restored cluster, before it begins.

A backup holds each partition as it was at about one moment, not at exactly the same one: a group
may have committed an offset of records that are not in it. Without a correction the group would
pass over the next records that get these offsets. So such an offset becomes the end of its
partition.
"""

from collections.abc import Sequence
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
from lakehead.broker.partition.partition import OFFSETS_TOPIC
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
    """Return the records to append to the streams of `__consumer_offsets`, by stream id: the
    offsets that groups have committed beyond the ends of partitions, as those ends.

    Raises ObjectNotFound, StoreUnavailable, CorruptObject, UnsupportedFormat.
    """
    topic = state.topics.get(OFFSETS_TOPIC)
    found: dict[int, list[KeyValue]] = {}
    scope = TaskScope(log_failure)
    try:
        for stream_id in () if topic is None else topic.partitions:
            stream = state.stream(stream_id)
            if stream.start_offset == stream.end_offset:
                continue
            batches = [batch async for batch in stored_batches(store, stream)]
            log = CoordinatorLog(
                _StoredLog(state=stream, batches=batches), clock, scope, name=OFFSETS_TOPIC
            )
            await log.replay()
            corrections: list[KeyValue] = [
                (key, value)
                async for key, stored in log.values()
                if (value := _corrected(state, key, stored)) is not None
            ]
            if corrections:
                found[stream_id] = corrections
    finally:
        await scope.close()
    return found


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
