"""DescribeShareGroupOffsets, key 90, versions 0-1: the start offsets of share groups (KIP-932).

v1: the lag (KIP-1226); -1 where the leader of a partition does not respond.
"""

import contextlib
from collections.abc import Iterable
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import Turns
from lakehead.broker.coordinator.group.share.share_record_formats import KnownPartitions
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, error_code, error_message
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DESCRIBE_GROUP, DESCRIBE_TOPIC
from lakehead.broker.share.record_state import NO_START_OFFSET, ShareState
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.errors import LakeheadError

_LEFT_OUT = DESCRIBE_TOPIC.noted("A denial leaves a topic out when all are requested.")
API = Api(
    key=90,
    name="DescribeShareGroupOffsets",
    versions=(0, 1),
    access=(DESCRIBE_GROUP, _LEFT_OUT),
)

_LAG_VERSION = 1
_NO_LAG = -1


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response for each group."""
    groups, turns = [], Turns()
    for requested in request.groups:
        await turns.step()
        try:
            topics = await _topics(requested, context, turns)
        except (LakeheadError, TimeoutError) as error:
            groups.append(_group(requested.group_id, [], context, error))
        else:
            groups.append(_group(requested.group_id, topics, context))
    return entity(context.response, "DescribeShareGroupOffsetsResponse", groups=groups)


def _group(
    group_id: str, topics: list[Any], context: RequestContext, error: Exception | None = None
) -> Any:
    return entity(
        context.response,
        "DescribeShareGroupOffsetsResponseGroup",
        group_id=group_id,
        topics=topics,
        error_code=ErrorCode.none if error is None else error_code(error),
        error_message=None if error is None else error_message(error),
    )


async def _topics(requested: Any, context: RequestContext, turns: Turns) -> list[Any]:
    """Return the requested topics, or all of which the group has a state. Raises KafkaError."""
    context.check(DESCRIBE_GROUP, requested.group_id)
    if requested.topics is None:
        partitions_known = await _initialized(requested.group_id, context)
        wanted = [
            (known.name, sorted(known.indexes))
            for known in partitions_known
            if context.may(_LEFT_OUT, known.name)
        ]
    else:
        wanted = [(topic.topic_name, list(topic.partitions)) for topic in requested.topics]
    topics = []
    for name, indexes in wanted:
        topic = context.services.topics.by_name.get(name)
        partitions = []
        for index in indexes:
            await turns.step()
            partitions.append(await _partition(requested.group_id, name, index, context))
        topics.append(
            entity(
                context.response,
                "DescribeShareGroupOffsetsResponseTopic",
                topic_name=name,
                topic_id=None if topic is None else topic.uuid,
                partitions=partitions,
            )
        )
    return topics


async def _initialized(group_id: str, context: RequestContext) -> Iterable[KnownPartitions]:
    """Return the partitions that a group has a state of: none for a group that does not exist."""
    try:
        group = await context.services.groups.share_group(group_id)
    except KafkaError as error:
        if error.code is ErrorCode.group_id_not_found:
            return ()
        raise
    return group.partitions.initialized.values()


async def _partition(group_id: str, name: str, index: int, context: RequestContext) -> Any:
    services = context.services
    topic = services.topics.by_name.get(name)
    state = ShareState(NO_START_OFFSET)
    is_allowed = context.may(_LEFT_OUT, name)
    if is_allowed and topic is not None:
        # As in Kafka no offset is no error, whatever the reason.
        with contextlib.suppress(LakeheadError, TimeoutError):
            key = SharePartitionKey(group_id, topic.id_bytes, index)
            state = await services.share_states.summary(key)
    return entity(
        context.response,
        "DescribeShareGroupOffsetsResponsePartition",
        partition_index=index,
        start_offset=state.start_offset,
        leader_epoch=max(state.leader_epoch, 0),
        lag=await _lag(name, index, state, context),
        error_code=ErrorCode.none if is_allowed else _LEFT_OUT.error,
    )


async def _lag(name: str, index: int, state: ShareState, context: RequestContext) -> int:
    """Return the number of records that the group is yet to take."""
    if context.version < _LAG_VERSION or state.start_offset == NO_START_OFFSET:
        return _NO_LAG
    lag = state.lag(await context.services.partition_ends.end(name, index))
    return _NO_LAG if lag is None else lag
