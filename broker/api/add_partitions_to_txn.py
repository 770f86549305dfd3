"""AddPartitionsToTxn (key 24), versions 0 to 5: partitions take part in a transaction from now on.

2 PRODUCER_FENCED, which was INVALID_PRODUCER_EPOCH · 3 compact · 4 from nodes, for several
transactions, and to verify only (KIP-890) · 5 TRANSACTION_ABORTABLE, which Kafka also sends to
nodes at version 4.

Versions 4 and up are for nodes, and for principals that access rules grant CLUSTER_ACTION: others
get CLUSTER_AUTHORIZATION_FAILED, as on Kafka.

One partition that does not exist keeps the other partitions out too, with OPERATION_NOT_ATTEMPTED.
"""

from collections.abc import Collection, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import Turns
from lakehead.broker.coordinator.transaction.messages import (
    TV_0,
    Producer,
    TopicPartition,
)
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import error_code
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import CLUSTER_ACTION, WRITE_TOPIC, WRITE_TRANSACTIONAL_ID
from lakehead.storage.errors import LakeheadError
from lakehead.storage.metadata.state import INTERNAL_TOPICS

_OF_NODES = CLUSTER_ACTION.noted("From version 4 on, which nodes use; it has no other check.")
API = Api(
    key=24,
    name="AddPartitionsToTxn",
    versions=(0, 5),
    is_at_once=True,
    access=(_OF_NODES, WRITE_TRANSACTIONAL_ID, WRITE_TOPIC),
)

_FENCED_VERSION = 2
_BATCH_VERSION = 4


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, with a code for each partition, when the added partitions are
    durable.
    """
    if context.version >= _BATCH_VERSION:
        if not context.may_act_as_node(_OF_NODES):
            return entity(
                context.response,
                "AddPartitionsToTxnResponse",
                error_code=_OF_NODES.error,
                results_by_transaction=[],
            )
        results, turns = [], Turns()
        for requested in request.transactions:
            await turns.step(1 + sum(1 + len(topic.partitions) for topic in requested.topics))
            codes = await _for_node(requested, context)
            results.append(
                entity(
                    context.response,
                    "AddPartitionsToTxnResult",
                    transactional_id=requested.transactional_id,
                    topic_results=await _topics(requested.topics, codes, context, turns),
                )
            )
        return entity(
            context.response,
            "AddPartitionsToTxnResponse",
            error_code=ErrorCode.none,
            results_by_transaction=results,
        )
    topics = request.v3_and_below_topics
    codes = await _for_producer(request, context)
    return entity(
        context.response,
        "AddPartitionsToTxnResponse",
        results_by_topic_v3_and_below=await _topics(topics, codes, context, Turns()),
    )


async def _for_node(requested: Any, context: RequestContext) -> Mapping[TopicPartition, ErrorCode]:
    partitions = _partitions(requested.topics)
    missing = _missing(partitions, context)
    if missing:
        return missing
    return await context.services.transactions.verify_here(
        requested.transactional_id,
        Producer(requested.producer_id, requested.producer_epoch),
        partitions,
        is_adding=not requested.verify_only,
    )


async def _for_producer(
    request: Any, context: RequestContext
) -> Mapping[TopicPartition, ErrorCode]:
    partitions = _partitions(request.v3_and_below_topics)
    transactional_id = request.v3_and_below_transactional_id
    if not context.may(WRITE_TRANSACTIONAL_ID, transactional_id):
        return dict.fromkeys(partitions, WRITE_TRANSACTIONAL_ID.error)
    denied = {
        topic.name
        for topic in request.v3_and_below_topics
        if topic.name in INTERNAL_TOPICS or not context.may(WRITE_TOPIC, topic.name)
    }
    missing = _missing(partitions, context, denied)
    if missing:
        return missing
    try:
        await context.services.transaction_coordinator.add_partitions(
            transactional_id,
            Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
            partitions,
            TV_0,
        )
        code = ErrorCode.none
    except LakeheadError as error:
        code = error_code(error)
    if code is ErrorCode.producer_fenced and context.version < _FENCED_VERSION:
        code = ErrorCode.invalid_producer_epoch
    return dict.fromkeys(partitions, code)


def _partitions(topics: Any) -> list[TopicPartition]:
    return [(topic.name, index) for topic in topics for index in topic.partitions]


def _missing(
    partitions: Collection[TopicPartition],
    context: RequestContext,
    denied: Collection[str] = (),
) -> Mapping[TopicPartition, ErrorCode]:
    """Return the codes of a request with partitions that are `denied`, by their topics, or do not
    exist; nothing if there are none.
    """
    leaders = context.services.metadata_cache
    wrong = {}
    for where in partitions:
        if where[0] in denied:
            wrong[where] = WRITE_TOPIC.error
        elif not leaders.exists(where):
            wrong[where] = ErrorCode.unknown_topic_or_partition
    kept_out = ErrorCode.operation_not_attempted
    return {where: wrong.get(where, kept_out) for where in partitions} if wrong else {}


async def _topics(
    topics: Any,
    codes: Mapping[TopicPartition, ErrorCode],
    context: RequestContext,
    turns: Turns,
) -> list[Any]:
    results = []
    for topic in topics:
        await turns.step()
        partitions = []
        for index in topic.partitions:
            await turns.step()
            partitions.append(
                entity(
                    context.response,
                    "AddPartitionsToTxnPartitionResult",
                    partition_index=index,
                    partition_error_code=codes[topic.name, index],
                )
            )
        results.append(
            entity(
                context.response,
                "AddPartitionsToTxnTopicResult",
                name=topic.name,
                results_by_partition=partitions,
            )
        )
    return results
