"""OffsetForLeaderEpoch (key 23), versions 2 to 4.

3 replica id · 4 compact.

Consumers request the end of an epoch to learn whether the records that they read are still there.
Epochs are stream epochs, one for each owner; acknowledged records are never cut off, so the
response never makes a consumer go back.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import Turns
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, error_code
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import CLUSTER_ACTION, DESCRIBE_TOPIC
from lakehead.storage.errors import LakeheadError

_AS_NODE = CLUSTER_ACTION.silent("A denial leaves it to DESCRIBE of each topic.")
API = Api(key=23, name="OffsetForLeaderEpoch", versions=(2, 4), access=(_AS_NODE, DESCRIBE_TOPIC))


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the end of an epoch for each requested partition."""
    module, turns = context.response, Turns()

    async def one_result(name: str, requested: Any, *, is_allowed: bool) -> Any:
        await turns.step()
        return _result(name, requested, context, is_allowed=is_allowed)

    topics = []
    for topic in request.topics:
        await turns.step()
        name = topic.topic
        is_allowed = context.may(_AS_NODE) or context.may(DESCRIBE_TOPIC, name)
        partitions = [
            await one_result(name, requested, is_allowed=is_allowed)
            for requested in topic.partitions
        ]
        topics.append(
            entity(module, "OffsetForLeaderTopicResult", topic=topic.topic, partitions=partitions)
        )
    return entity(module, "OffsetForLeaderEpochResponse", topics=topics)


def _result(name: str, requested: Any, context: RequestContext, *, is_allowed: bool) -> Any:
    error, epoch, end_offset = ErrorCode.none, -1, -1
    try:
        if not is_allowed:
            raise KafkaError(DESCRIBE_TOPIC.error)
        topic = context.services.topics.by_name.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        partition = topic.served(requested.partition)
        partition.check_epoch(requested.current_leader_epoch)
        epoch, end_offset = partition.end_offset_for_epoch(requested.leader_epoch)
    except LakeheadError as caught:
        error = error_code(caught)
    return entity(
        context.response,
        "EpochEndOffset",
        error_code=error,
        partition=requested.partition,
        leader_epoch=epoch,
        end_offset=end_offset,
    )
