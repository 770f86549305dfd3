"""DeleteShareGroupOffsets, key 92, version 0: forget where a share group without members is in
topics (KIP-932).
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.share_offsets import change_group, find_topic
from lakehead.broker.api.turns import Turns
from lakehead.broker.partition.partition import Topic
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DELETE_GROUP, READ_TOPIC

API = Api(
    key=92, name="DeleteShareGroupOffsets", versions=(0, 0), access=(DELETE_GROUP, READ_TOPIC)
)

_NO_OFFSETS = "There is no offset information to delete."


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, once the deletions are durable. A topic of which the group has no
    offset is UNKNOWN_TOPIC_OR_PARTITION.
    """
    turns = Turns()
    found: list[tuple[str, Topic | None, ErrorCode]] = []
    for requested in request.topics:
        await turns.step()
        found.append((requested.topic_name, *find_topic(context, requested.topic_name)))

    async def change() -> list[Any]:
        named = [topic.id_bytes for _, topic, code in found if topic and code is ErrorCode.none]
        deleted = await context.services.groups.delete_share_offsets(request.group_id, named)
        topics = []
        for name, topic, code in found:
            topic_id = topic.uuid if topic is not None and topic.id_bytes in deleted else None
            message = None
            if topic_id is None and code is ErrorCode.none:
                code, message = ErrorCode.unknown_topic_or_partition, _NO_OFFSETS
            topics.append(
                entity(
                    context.response,
                    "DeleteShareGroupOffsetsResponseTopic",
                    topic_name=name,
                    topic_id=topic_id,
                    error_code=code,
                    error_message=message,
                )
            )
        return topics

    return await change_group(context, DELETE_GROUP, request.group_id, change)
