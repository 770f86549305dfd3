"""OffsetCommit, key 8, versions 2-10: commit offsets of a group; the response means that they are
durable.

v2-4: a retention time, -1 for the broker's (KIP-211). v6: leader epochs (KIP-320). v7: static
members. v8: flexible. v9: member epochs of KIP-848, GROUP_ID_NOT_FOUND. v10: topic ids.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, TypeAlias, cast

from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.record_formats import CommittedOffset
from lakehead.broker.coordinator.group.shard import GroupShard
from lakehead.broker.partition.partition import Topic
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import error_code
from lakehead.broker.protocol.messages import entity, milliseconds
from lakehead.broker.request_context import Deferred, RequestContext
from lakehead.broker.security.access import READ_GROUP, READ_TOPIC
from lakehead.storage.errors import LakeheadError

API = Api(
    key=8,
    name="OffsetCommit",
    versions=(2, 10),
    is_at_once=True,
    access=(READ_GROUP, READ_TOPIC),
)

_Codes: TypeAlias = dict[tuple[int, int], ErrorCode]
"""By the topic's place in the request and the partition."""
_EPOCH_VERSION = 9
_TOPIC_ID_VERSION = 10


def handle(request: Any, context: RequestContext) -> Any:
    """Check every partition, store the valid ones in one batch, return the response for each."""
    if not context.may(READ_GROUP, request.group_id):
        denied: _Codes = {
            (position, partition.partition_index): READ_GROUP.error
            for position, requested in enumerate(request.topics)
            for partition in requested.partitions
        }
        return _response(request, denied, context)
    shard = _shard(request, context)
    return _load_and_handle(request, context) if shard is None else _handle(request, context, shard)


def _shard(request: Any, context: RequestContext) -> GroupShard | ErrorCode | None:
    """Return the group's shard, or why there is none here; None while it is loaded."""
    try:
        return context.services.groups.shard(request.group_id)
    except LakeheadError as error:
        return error_code(error)


async def _load_and_handle(request: Any, context: RequestContext) -> Any:
    with contextlib.suppress(LakeheadError):  # the check says so
        await context.services.groups.loaded(request.group_id)
    shard = _shard(request, context)
    response = _handle(request, context, shard or ErrorCode.coordinator_load_in_progress)
    return await response if isinstance(response, Deferred) else response


def _handle(request: Any, context: RequestContext, shard: GroupShard | ErrorCode) -> Any:
    codes: _Codes = {}
    offsets: dict[tuple[str, int], CommittedOffset] = {}
    now_ms = context.services.clock.now_ms()
    refused = shard if isinstance(shard, ErrorCode) else None
    for position, requested in enumerate(request.topics):
        topic = _find_topic(requested, context)
        name = getattr(requested, "name", "") if topic is None else topic.name
        is_allowed = not name or context.may(READ_TOPIC, name)
        for partition in requested.partitions:
            code = _missing(topic, partition, context) if is_allowed else READ_TOPIC.error
            if code is ErrorCode.none:
                if refused is None:  # Kafka checks the group last
                    refused = _refused(request, context, cast(GroupShard, shard))
                code = refused
            if code is ErrorCode.none and _is_too_long(partition, context):
                code = ErrorCode.offset_metadata_too_large
            codes[position, partition.partition_index] = code
            if code is ErrorCode.none:
                assert topic is not None
                where = topic.name, partition.partition_index
                offsets[where] = _committed(request, topic, partition, now_ms)
    if not offsets:
        return _response(request, codes, context)

    def finish(stored: asyncio.Future[None]) -> Any:
        error = stored.exception()
        return _response(request, codes if error is None else _failed(codes, error), context)

    assert not isinstance(shard, ErrorCode)
    try:
        stored = context.services.groups.commit_in(shard, request.group_id, offsets)
    except LakeheadError as error:
        return _response(request, _failed(codes, error), context)
    return Deferred(stored, finish)


def _failed(codes: _Codes, error: BaseException) -> _Codes:
    failed = error_code(error)
    return {key: failed if code is ErrorCode.none else code for key, code in codes.items()}


def _refused(request: Any, context: RequestContext, shard: GroupShard) -> ErrorCode:
    try:
        return shard.check_commit(
            request.group_id,
            request.member_id,
            getattr(request, "group_instance_id", None),
            request.generation_id_or_member_epoch,
            _places(request, context),
            has_epochs=context.version >= _EPOCH_VERSION,
        )
    except LakeheadError as error:
        return error_code(error)


def _places(request: Any, context: RequestContext) -> Iterator[tuple[bytes, int]]:
    """Yield the partitions that may be committed, of (topic id, index)."""
    for requested in request.topics:
        topic = _find_topic(requested, context)
        if topic is None or not context.may(READ_TOPIC, topic.name):
            continue
        for partition in requested.partitions:
            is_there = _missing(topic, partition, context) is ErrorCode.none
            if is_there and not _is_too_long(partition, context):
                yield topic.id_bytes, partition.partition_index


def _find_topic(requested: Any, context: RequestContext) -> Topic | None:
    if context.version < _TOPIC_ID_VERSION:
        return context.services.topics.find(requested.name)
    return (
        None
        if requested.topic_id is None
        else context.services.topics.find(requested.topic_id.bytes)
    )


def _missing(topic: Topic | None, partition: Any, context: RequestContext) -> ErrorCode:
    if topic is None:
        if context.version >= _TOPIC_ID_VERSION:
            return ErrorCode.unknown_topic_id
        return ErrorCode.unknown_topic_or_partition
    if not 0 <= partition.partition_index < len(topic.partitions):
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.none


def _is_too_long(partition: Any, context: RequestContext) -> bool:
    metadata = partition.committed_metadata or ""
    return len(metadata) > context.services.settings.offset_metadata_max_bytes


def _committed(request: Any, topic: Topic, partition: Any, now_ms: int) -> CommittedOffset:
    retention = getattr(request, "retention_time", None)
    retention_ms = -1 if retention is None else milliseconds(retention)
    return CommittedOffset(
        offset=partition.committed_offset,
        leader_epoch=getattr(partition, "committed_leader_epoch", -1),
        metadata=partition.committed_metadata or "",
        commit_timestamp_ms=now_ms,
        expire_timestamp_ms=now_ms + retention_ms if retention_ms >= 0 else -1,
        topic_id=topic.id_bytes,
    )


def _response(request: Any, codes: _Codes, context: RequestContext) -> Any:
    topics = []
    for position, requested in enumerate(request.topics):
        partitions = [
            entity(
                context.response,
                "OffsetCommitResponsePartition",
                partition_index=partition.partition_index,
                error_code=codes[position, partition.partition_index],
            )
            for partition in requested.partitions
        ]
        topics.append(
            entity(
                context.response,
                "OffsetCommitResponseTopic",
                name=getattr(requested, "name", None),
                topic_id=getattr(requested, "topic_id", None),
                partitions=partitions,
            )
        )
    return entity(context.response, "OffsetCommitResponse", topics=topics)
