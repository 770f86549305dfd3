"""DescribeProducers (key 61), version 0: the producers that partitions know, and their open
transactions (KIP-664): how `kafka-transactions` finds those that hang.

The time of a producer is that of its last append here, not a timestamp of its records.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import Turns
from lakehead.broker.partition.partition import Partition, is_valid_name
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, error_code
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import READ_TOPIC
from lakehead.storage.errors import LakeheadError

API = Api(key=61, name="DescribeProducers", versions=(0, 0), access=(READ_TOPIC,))

_CHEAP = 20
"""Elements handled in one step: only their number is noted."""


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, with the producers of each partition."""
    is_leader = await context.services.session.ensure()
    module, turns = context.response, Turns()

    async def one_result(name: str, index: int) -> Any:
        partition = _result(name, index, context, is_leader=is_leader)
        await turns.step(1 + len(partition.active_producers))
        return partition

    requested: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        await turns.step(1 + len(topic.partition_indexes) // _CHEAP)
        requested.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics = []
    for name, indexes in requested.items():
        await turns.step()
        partitions = [await one_result(name, index) for index in indexes]
        topics.append(entity(module, "TopicResponse", name=name, partitions=partitions))
    return entity(module, "DescribeProducersResponse", topics=topics)


def _result(name: str, index: int, context: RequestContext, *, is_leader: bool) -> Any:
    error, message, producers = ErrorCode.none, None, []
    try:
        topic = context.services.topics.find(name)
        if topic is None and not is_valid_name(name):
            raise KafkaError(ErrorCode.invalid_topic_exception)
        context.check(READ_TOPIC, name)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        if not is_leader:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        producers = _producers(topic.served(index), context)
    except LakeheadError as caught:
        error = error_code(caught)
        message = caught.message if isinstance(caught, KafkaError) else str(caught)
    return entity(
        context.response,
        "PartitionResponse",
        partition_index=index,
        error_code=error,
        error_message=message,
        active_producers=producers,
    )


def _producers(partition: Partition, context: RequestContext) -> list[Any]:
    return [
        entity(
            context.response,
            "ProducerState",
            producer_id=producer_id,
            producer_epoch=entry.epoch,
            last_sequence=entry.last_sequence,
            last_timestamp=entry.timestamp,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_start_offset=entry.transaction_start,
        )
        for producer_id, entry in partition.producers
    ]
