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
from lakehead.storage.errors import LakeheadError

API = Api(key=23, name="OffsetForLeaderEpoch", versions=(2, 4))


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the end of an epoch for each requested partition."""
    module, turns = context.response, Turns()

    async def answer(name: str, asked: Any) -> Any:
        await turns.step()
        return _answer(name, asked, context)

    topics = []
    for topic in request.topics:
        await turns.step()
        partitions = [await answer(topic.topic, asked) for asked in topic.partitions]
        topics.append(
            entity(module, "OffsetForLeaderTopicResult", topic=topic.topic, partitions=partitions)
        )
    return entity(module, "OffsetForLeaderEpochResponse", topics=topics)


def _answer(name: str, asked: Any, context: RequestContext) -> Any:
    error, epoch, end_offset = ErrorCode.none, -1, -1
    try:
        topic = context.services.topics.by_name.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        partition = topic.served(asked.partition)
        partition.check_epoch(asked.current_leader_epoch)
        if asked.leader_epoch <= partition.leader_epoch:
            epoch, end_offset = partition.end_offset_for_epoch(asked.leader_epoch)
    except LakeheadError as caught:
        error = error_code(caught)
    return entity(
        context.response,
        "EpochEndOffset",
        error_code=error,
        partition=asked.partition,
        leader_epoch=epoch,
        end_offset=end_offset,
    )
