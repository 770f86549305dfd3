"""DeleteShareGroupOffsets, key 92, version 0: forget where a share group without members is in
topics (KIP-932).
"""

from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.share_offsets import change_group, find_topic
from lakehead.broker.api.turns import Turns
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DELETE_GROUP, READ_TOPIC

API = Api(
    key=92, name="DeleteShareGroupOffsets", versions=(0, 0), access=(DELETE_GROUP, READ_TOPIC)
)


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, once the deletions are durable."""
    turns = Turns()
    topics = []
    gone = []
    for requested in request.topics:
        await turns.step()
        topic, code = find_topic(context, requested.topic_name)
        if topic is not None and code is ErrorCode.none:
            gone.append(topic.id_bytes)
        topics.append(
            entity(
                context.response,
                "DeleteShareGroupOffsetsResponseTopic",
                topic_name=requested.topic_name,
                topic_id=None if topic is None else topic.uuid,
                error_code=code,
            )
        )
    change = partial(context.services.groups.delete_share_offsets, request.group_id, gone)
    return await change_group(context, DELETE_GROUP, request.group_id, change, topics)
