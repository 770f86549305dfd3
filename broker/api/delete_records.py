"""DeleteRecords, key 21, versions 0-2: move the start of partitions forward (KIP-107).

v2: flexible. Offset -1 stands for the high watermark. The response comes when the new start is in
the metadata: it does not go back.
"""

from itertools import islice
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import Turns, change_each
from lakehead.broker.configs.entries import broker_values, topic_value
from lakehead.broker.deadline import Deadline
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, error_code
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DELETE_TOPIC
from lakehead.storage.errors import LakeheadError

API = Api(key=21, name="DeleteRecords", versions=(0, 2), access=(DELETE_TOPIC,))

_HIGH_WATERMARK = -1

_Requested = tuple[str, Any, bool]
"""The name of a topic, one of its partitions, and whether the client may delete its records."""


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, with the new start offset of each partition."""
    requested, turns, deadline = list[_Requested](), Turns(), Deadline.of(request)
    for topic in request.topics:
        await turns.step(1 + len(topic.partitions))
        is_allowed = context.may(DELETE_TOPIC, topic.name)
        requested += [(topic.name, one, is_allowed) for one in topic.partitions]

    async def result(wanted: _Requested) -> Any:
        (name, partition, is_allowed), low_watermark, code = wanted, -1, ErrorCode.none
        try:
            if not is_allowed:
                raise KafkaError(DELETE_TOPIC.error)
            async with deadline.limit():
                low_watermark = await _delete(name, partition, context)
        except (LakeheadError, TimeoutError) as error:
            code = error_code(error)
        return entity(
            context.response,
            "DeleteRecordsPartitionResult",
            partition_index=partition.partition_index,
            low_watermark=low_watermark,
            error_code=code,
        )

    results = iter(await change_each(requested, result, lambda _: 1))
    topics = [
        entity(
            context.response,
            "DeleteRecordsTopicResult",
            name=topic.name,
            partitions=list(islice(results, len(topic.partitions))),
        )
        for topic in request.topics
    ]
    return entity(context.response, "DeleteRecordsResponse", topics=topics)


async def _delete(name: str, requested: Any, context: RequestContext) -> int:
    services = context.services
    topic = services.topics.find(name)
    if topic is None or not 0 <= requested.partition_index < len(topic.partitions):
        raise KafkaError(ErrorCode.unknown_topic_or_partition)
    if topic.is_internal:
        raise KafkaError(ErrorCode.invalid_topic_exception)
    partition = topic.partitions[requested.partition_index]
    if partition is None:
        raise KafkaError(ErrorCode.not_leader_or_follower)
    known = services.state.topics.get(name)
    values = broker_values(services.state, services.settings)
    policy = topic_value("cleanup.policy", {} if known is None else known.configs, values)
    if policy == "compact":
        raise KafkaError(ErrorCode.policy_violation)
    offset = partition.high_watermark if requested.offset == _HIGH_WATERMARK else requested.offset
    if not 0 <= offset <= partition.high_watermark:
        raise KafkaError(ErrorCode.offset_out_of_range)
    await partition.stream.trim(offset)
    low_watermark: int = partition.log_start_offset
    return low_watermark
