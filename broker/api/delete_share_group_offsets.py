"""DeleteShareGroupOffsets, key 92, version 0: forget where a share group without members is in
topics (KIP-932).
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import Turns
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import error_code, error_message
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DELETE_GROUP, READ_TOPIC
from lakehead.storage.errors import LakeheadError

API = Api(
    key=92, name="DeleteShareGroupOffsets", versions=(0, 0), access=(DELETE_GROUP, READ_TOPIC)
)


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, once the deletions are durable."""
    module, turns = context.response, Turns()
    topics = []
    gone = []
    for requested in request.topics:
        await turns.step()
        topic = context.services.topics.by_name.get(requested.topic_name)
        code = ErrorCode.none
        if not context.may(READ_TOPIC, requested.topic_name):
            code = READ_TOPIC.error
        elif topic is None:
            code = ErrorCode.unknown_topic_or_partition
        else:
            gone.append(topic.id_bytes)
        topics.append(
            entity(
                module,
                "DeleteShareGroupOffsetsResponseTopic",
                topic_name=requested.topic_name,
                topic_id=None if topic is None else topic.uuid,
                error_code=code,
            )
        )
    try:
        context.check(DELETE_GROUP, request.group_id)
        await context.services.groups.delete_share_offsets(request.group_id, gone)
    except (LakeheadError, TimeoutError) as error:
        return entity(
            module,
            "DeleteShareGroupOffsetsResponse",
            error_code=error_code(error),
            error_message=error_message(error),
            responses=[],
        )
    return entity(
        module, "DeleteShareGroupOffsetsResponse", error_code=ErrorCode.none, responses=topics
    )
