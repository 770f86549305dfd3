"""DeleteTopics, key 20, versions 1-6: remove topics, their records and groups' offsets of them.

v1: throttle time. v4: flexible. v5: error messages. v6: topics by id.
"""

from collections import Counter
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import change_each
from lakehead.broker.deadline import Deadline
from lakehead.broker.partition.partition import Topic
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, error_code, error_message
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DELETE_IN_CLUSTER, DELETE_TOPIC, DESCRIBE_TOPIC
from lakehead.storage.errors import LakeheadError

_IN_CLUSTER = DELETE_IN_CLUSTER.silent("A denial leaves it to DELETE of each topic.")
_NAMED = DESCRIBE_TOPIC.noted(
    "A denial hides if a topic exists, and the name of one that is given by its id."
)
API = Api(
    key=20,
    name="DeleteTopics",
    versions=(1, 6),
    access=(_IN_CLUSTER, _NAMED, DELETE_TOPIC),
)

STRICT_QUOTA_SINCE = 5
_TOPIC_ID_VERSION = 6


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, with a code for each topic, once it is deleted from the metadata."""
    if context.version >= _TOPIC_ID_VERSION:
        requested = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        requested = [(name, None) for name in request.topic_names]
    named = Counter(requested)
    quota = context.mutation_quota(STRICT_QUOTA_SINCE)
    deadline = Deadline.of(request)

    async def result(requested: tuple[Any, Any]) -> Any:
        name, topic_id = requested
        code, message = ErrorCode.none, None
        try:
            if named[name, topic_id] > 1:
                word = "id" if name is None else "name"
                raise KafkaError(ErrorCode.invalid_request, f"Duplicate topic {word}.")
            topic = _find(name, topic_id, context)
            if not context.may(_IN_CLUSTER) and not context.may(DELETE_TOPIC, topic.name):
                if name is None and context.may(_NAMED, topic.name):
                    name = topic.name
                raise KafkaError(DELETE_TOPIC.error)
            quota.record(len(topic.stream_ids))
            await context.services.replication_control.delete(topic.topic_id, deadline)
            name, topic_id = topic.name, topic.uuid
        except (LakeheadError, TimeoutError) as error:
            code, message = error_code(error), error_message(error)
        return entity(
            context.response,
            "DeletableTopicResult",
            name=name,
            topic_id=topic_id,
            error_code=code,
            error_message=message,
        )

    responses = await change_each(named, result, lambda _: 1)
    return entity(context.response, "DeleteTopicsResponse", responses=responses)


def _find(name: str | None, topic_id: Any, context: RequestContext) -> Topic:
    if not context.services.settings.delete_topic_enable:
        raise KafkaError(ErrorCode.topic_deletion_disabled)
    if name is not None and topic_id is not None:
        raise KafkaError(
            ErrorCode.invalid_request, "You may not specify both topic name and topic id."
        )
    if name is None and topic_id is None:
        raise KafkaError(ErrorCode.invalid_request, "Neither topic name nor id were specified.")
    if topic_id is not None:
        topic = context.services.topics.find(topic_id.bytes)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_id)
        return topic
    assert name is not None
    if not context.may(_IN_CLUSTER):
        context.check(_NAMED, name)
    topic = context.services.topics.find(name)
    if topic is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition)
    return topic
