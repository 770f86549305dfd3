"""The common part of AlterShareGroupOffsets and DeleteShareGroupOffsets: topics are looked up, then
the group is changed in those that the client may change.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.partition.partition import Topic
from lakehead.broker.protocol.errors import KafkaError, error_code, error_message
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import READ_TOPIC, Access
from lakehead.storage.errors import LakeheadError


def find_topic(context: RequestContext, name: str) -> tuple[Topic | None, ErrorCode]:
    """Return a topic, None if there is none, and the code of its part of the response."""
    topic = context.services.topics.by_name.get(name)
    if not context.may(READ_TOPIC, name):
        return topic, READ_TOPIC.error
    return topic, ErrorCode.unknown_topic_or_partition if topic is None else ErrorCode.none


async def change_group(
    context: RequestContext,
    access: Access,
    group_id: str,
    change: Callable[[], Awaitable[Sequence[Any]]],
) -> Any:
    """Change a group, if the client may; return the response, which has the topics that `change`
    returns, or the error of the group.
    """
    name, code, message = f"{context.api.name}Response", ErrorCode.none, None
    topics: Sequence[Any] = ()
    try:
        context.check(access, group_id)
        if not group_id:
            raise KafkaError(ErrorCode.invalid_group_id)
        topics = await change()
    except (LakeheadError, TimeoutError) as error:
        code, message = error_code(error), error_message(error)
    return entity(
        context.response, name, error_code=code, error_message=message, responses=tuple(topics)
    )
