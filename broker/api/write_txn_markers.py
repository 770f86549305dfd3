"""WriteTxnMarkers (key 27), versions 1 and 2: transaction coordinators end transactions in the
partitions that this node leads; so does an operator, with `kafka-transactions abort` (KIP-664).

1 compact · 2 transaction version (KIP-1228).

Each partition has a code of its own, once its marker is durable. A marker that could not be written
(this node does not lead the partition any more, its WAL is full) is sent again by the coordinator.
Markers in `__consumer_offsets` commit or drop the offsets of the transaction.

An operator's request looks like that of any client. So a request without the proof of a node may
only abort, and only by a coordinator epoch that the partition knows, which is what
`kafka-transactions abort` sends: it commits nothing, and fences no coordinator. For any other
marker of a client the code is CLUSTER_AUTHORIZATION_FAILED.
"""

import asyncio
from functools import partial
from types import ModuleType
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import Turns
from lakehead.broker.partition.partition import OFFSETS_TOPIC, Partition
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, error_code
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import ALTER_CLUSTER, CLUSTER_ACTION
from lakehead.broker.services import BrokerServices
from lakehead.storage.errors import LakeheadError

_ALTERING = ALTER_CLUSTER.silent("A denial leaves it to CLUSTER_ACTION.")
_OF_NODES = CLUSTER_ACTION.noted("Of a client that is not a node, only certain aborts are taken.")
API = Api(key=27, name="WriteTxnMarkers", versions=(1, 2), access=(_ALTERING, _OF_NODES))

Outcome = asyncio.Future[ErrorCode]


async def handle(request: Any, context: RequestContext) -> Any:
    """Write every marker, then respond when all of them are durable."""
    module = context.response
    turns = Turns()
    begun = []
    is_allowed = context.may(_ALTERING) or context.may(_OF_NODES)
    for marker in request.markers:
        await turns.step()
        topics = [
            (
                topic.name,
                await _begin_all(context, marker, topic, turns, is_allowed=is_allowed),
            )
            for topic in marker.topics
        ]
        begun.append((marker, topics))
    markers = []
    for marker, topics in begun:
        await turns.step()
        results = [await _result(name, outcomes, module, turns) for name, outcomes in topics]
        markers.append(
            entity(
                module,
                "WritableTxnMarkerResult",
                producer_id=marker.producer_id,
                topics=results,
            )
        )
    return entity(module, "WriteTxnMarkersResponse", markers=markers)


async def _result(
    name: str, outcomes: list[tuple[int, Outcome]], module: ModuleType, turns: Turns
) -> Any:
    await turns.step()
    partitions = []
    for index, outcome in outcomes:
        await turns.step()
        partitions.append(
            entity(
                module,
                "WritableTxnMarkerPartitionResult",
                partition_index=index,
                error_code=await outcome,
            )
        )
    return entity(module, "WritableTxnMarkerTopicResult", name=name, partitions=partitions)


async def _begin_all(
    context: RequestContext, marker: Any, topic: Any, turns: Turns, *, is_allowed: bool
) -> list[tuple[int, Outcome]]:
    await turns.step()
    begun = []
    for index in topic.partition_indexes:
        await turns.step()
        begun.append((index, _begin(context, marker, topic.name, index, is_allowed=is_allowed)))
    return begun


def _begin(
    context: RequestContext, marker: Any, name: str, index: int, *, is_allowed: bool
) -> Outcome:
    """Append one marker; return what will be known of it."""
    services = context.services
    outcome: Outcome = asyncio.get_running_loop().create_future()
    done = partial(_done, services, marker, name, index, outcome)
    try:
        if not is_allowed:
            raise KafkaError(_OF_NODES.error)
        topic = services.topics.find(name)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        partition = topic.served(index)
        if context.is_stranger:
            _check_abort(partition, marker)
        partition.end_transaction(
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            is_commit=marker.transaction_result,
            on_done=done,
            transaction_version=getattr(marker, "transaction_version", 0),
        )
    except LakeheadError as error:
        outcome.set_result(error_code(error))
    return outcome


def _check_abort(partition: Partition, marker: Any) -> None:
    """Raise KafkaError unless it is a marker that a client may have written."""
    entry = partition.producers.get(marker.producer_id)
    known = 0 if entry is None else max(0, entry.coordinator_epoch)
    if marker.transaction_result or marker.coordinator_epoch > known:
        raise KafkaError(ErrorCode.cluster_authorization_failed)


def _done(
    services: BrokerServices,
    marker: Any,
    name: str,
    index: int,
    outcome: Outcome,
    error: Exception | None,
) -> None:
    """Record that a marker is durable, or that its outcome is unknown."""
    if error is None and name == OFFSETS_TOPIC:
        services.groups.transaction_ended(
            index, marker.producer_id, is_commit=marker.transaction_result
        )
    if not outcome.done():  # the request may be given up by then
        outcome.set_result(ErrorCode.none if error is None else error_code(error))
