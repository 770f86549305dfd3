"""OffsetDelete, key 47, version 0: forget committed offsets of a group (KIP-496).

A group with members keeps the offsets of topics that they subscribe to.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.consumer_protocol import CONSUMER
from lakehead.broker.coordinator.group.group_metadata import GroupKind, Topics
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import error_code
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DELETE_GROUP, READ_TOPIC
from lakehead.storage.errors import LakeheadError

API = Api(
    key=47,
    name="OffsetDelete",
    versions=(0, 0),
    is_at_once=True,
    access=(DELETE_GROUP, READ_TOPIC),
)


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, with a code for each partition."""
    groups = context.services.groups
    try:
        context.check(DELETE_GROUP, request.group_id)
        if not request.group_id:
            return _response(ErrorCode.invalid_group_id, [], context)
        group = await groups.describe(request.group_id)
        if group is None or group.kind is GroupKind.SHARE:
            return _response(ErrorCode.group_id_not_found, [], context)
        if group.has_members and group.protocol_type != CONSUMER:
            return _response(ErrorCode.non_empty_group, [], context)
        subscribed = group.consumed
        offsets = await groups.offsets(request.group_id)
        where = [
            (topic.name, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
        ]
        denied = {t.name for t in request.topics if not context.may(READ_TOPIC, t.name)}
        codes = {
            place: READ_TOPIC.error if place[0] in denied else _code(place, subscribed, context)
            for place in where
        }
        gone = [p for p, code in codes.items() if code is ErrorCode.none and p in offsets]
        await groups.delete_offsets(request.group_id, gone)
    except (LakeheadError, TimeoutError) as error:
        return _response(error_code(error), [], context)
    topics = [_topic(topic, codes, context) for topic in request.topics]
    return _response(ErrorCode.none, topics, context)


def _code(place: tuple[str, int], subscribed: Topics, context: RequestContext) -> ErrorCode:
    if not context.services.metadata_cache.exists(place):
        return ErrorCode.unknown_topic_or_partition
    if place[0] in subscribed:
        return ErrorCode.group_subscribed_to_topic
    return ErrorCode.none


def _topic(topic: Any, codes: dict[tuple[str, int], ErrorCode], context: RequestContext) -> Any:
    partitions = [
        entity(
            context.response,
            "OffsetDeleteResponsePartition",
            partition_index=partition.partition_index,
            error_code=codes[topic.name, partition.partition_index],
        )
        for partition in topic.partitions
    ]
    return entity(
        context.response, "OffsetDeleteResponseTopic", name=topic.name, partitions=partitions
    )


def _response(code: ErrorCode, topics: list[Any], context: RequestContext) -> Any:
    return entity(context.response, "OffsetDeleteResponse", error_code=code, topics=topics)
