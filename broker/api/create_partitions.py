"""CreatePartitions, key 37, versions 0-3: give topics more partitions.

v1: throttling error code. v2: flexible. v3: throttled requests are refused.
Of a manual assignment the first broker that lives becomes the leader: there are no other replicas.
"""

from collections import Counter
from collections.abc import Collection
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.topic_rules import are_too_many, check_more_partitions, too_many_partitions
from lakehead.broker.api.turns import change_each
from lakehead.broker.deadline import Deadline
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, error_code, error_message
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import ALTER_TOPIC
from lakehead.storage.errors import LakeheadError

API = Api(key=37, name="CreatePartitions", versions=(0, 3), is_at_once=True, access=(ALTER_TOPIC,))
STRICT_QUOTA_SINCE = 3


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, with a code for each topic."""
    services = context.services
    named = Counter(topic.name for topic in request.topics)
    topics = {topic.name: topic for topic in request.topics}
    allowed = {name for name in topics if named[name] == 1 and context.may(ALTER_TOPIC, name)}
    is_too_much = are_too_many(_new_partitions(request, allowed, context))
    quota = context.mutation_quota(STRICT_QUOTA_SINCE)
    deadline = Deadline.of(request)

    async def result(topic: Any) -> Any:
        code, message = ErrorCode.none, None
        try:
            if named[topic.name] > 1:
                raise KafkaError(ErrorCode.invalid_request, "Duplicate topic name.")
            if topic.name not in allowed:
                raise KafkaError(ALTER_TOPIC.error)
            if is_too_much:
                raise too_many_partitions()
            replicas = None
            if topic.assignments is not None:
                replicas = [tuple(requested.broker_ids) for requested in topic.assignments]
            check_more_partitions(topic.name, topic.count, replicas, services.state)
            if not request.validate_only:
                known = services.state.topics[topic.name]
                quota.record(topic.count - len(known.partitions))
                await services.replication_control.add_partitions(
                    topic.name, topic.count, replicas or (), deadline
                )
        except (LakeheadError, TimeoutError) as error:
            code, message = error_code(error), error_message(error)
        return entity(
            context.response,
            "CreatePartitionsTopicResult",
            name=topic.name,
            error_code=code,
            error_message=message,
        )

    results = await change_each(
        topics.values(), result, lambda topic: 1 + len(topic.assignments or ())
    )
    return entity(context.response, "CreatePartitionsResponse", results=results)


def _new_partitions(request: Any, allowed: Collection[str], context: RequestContext) -> list[int]:
    known = context.services.state.topics
    return [
        topic.count - len(known[topic.name].partitions)
        for topic in request.topics
        if topic.name in known and topic.name in allowed
    ]
