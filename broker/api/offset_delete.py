"""OffsetDelete, key 47, version 0: forget committed offsets of a group (KIP-496).

A group with members keeps the offsets of topics that they subscribe to. Which those are is in
members' metadata, in the format of the consumer protocol.
"""

import struct
from typing import Any

from kio.schema.errors import ErrorCode

from broker.coordinator.group.coordinator import GroupDescription
from broker.protocol.api import Api, RequestContext
from broker.protocol.errors import error_code
from broker.protocol.messages import entity
from storage.errors import LakeheadError

API = Api(key=47, name="OffsetDelete", versions=(0, 0))

_CONSUMER = "consumer"


async def handle(request: Any, context: RequestContext) -> Any:
    """Answer for each partition."""
    try:
        group = await context.node.groups.describe(request.group_id)
        if group is None:
            return _response(ErrorCode.group_id_not_found, [], context)
        if group.snapshot.members and group.snapshot.protocol_type != _CONSUMER:
            return _response(ErrorCode.non_empty_group, [], context)
        subscribed = _subscribed_topics(group)
        offsets = await context.node.groups.offsets(request.group_id)
        where = [
            (topic.name, partition.partition_index)
            for topic in request.topics
            if topic.name not in subscribed
            for partition in topic.partitions
        ]
        await context.node.groups.delete_offsets(
            request.group_id, [place for place in where if place in offsets]
        )
    except (LakeheadError, TimeoutError) as error:
        return _response(error_code(error), [], context)
    topics = [_topic(topic, subscribed, context) for topic in request.topics]
    return _response(ErrorCode.none, topics, context)


def _topic(topic: Any, subscribed: set[str], context: RequestContext) -> Any:
    code = ErrorCode.none
    if topic.name in subscribed:
        code = ErrorCode.group_subscribed_to_topic
    partitions = [
        entity(
            context.response,
            "OffsetDeleteResponsePartition",
            partition_index=partition.partition_index,
            error_code=code,
        )
        for partition in topic.partitions
    ]
    return entity(
        context.response, "OffsetDeleteResponseTopic", name=topic.name, partitions=partitions
    )


def _response(code: ErrorCode, topics: list[Any], context: RequestContext) -> Any:
    return entity(context.response, "OffsetDeleteResponse", error_code=code, topics=topics)


def _subscribed_topics(group: GroupDescription) -> set[str]:
    """Return the topics in members' subscriptions: version i16, then an array of strings."""
    topics: set[str] = set()
    for member in group.snapshot.members:
        try:
            topics.update(_topics(member.subscription))
        except (struct.error, UnicodeDecodeError):
            continue  # not of a consumer that we know: it says nothing about topics
    return topics


def _topics(subscription: bytes) -> list[str]:
    _, count = struct.unpack_from(">hi", subscription)
    position, topics = 6, []
    for _ in range(count):
        (size,) = struct.unpack_from(">h", subscription, position)
        position += 2
        topics.append(subscription[position : position + size].decode())
        position += size
    return topics
