"""Requests about the states of share-partitions, which all are made alike: a group, its topics by
id, and of each some partitions, of which each gets a response of its own.

Nodes send them, and principals that access rules grant CLUSTER_ACTION may: others get
CLUSTER_AUTHORIZATION_FAILED for each partition, as on Kafka. They are not listed in ApiVersions.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import Turns
from lakehead.broker.protocol.errors import KafkaError, error_code, error_message
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import CLUSTER_ACTION
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.errors import LakeheadError

OF_NODES = CLUSTER_ACTION.noted("Nodes use it; it has no other check.")

Handle = Callable[[SharePartitionKey, Any], Awaitable[Mapping[str, Any]]]
"""Returns the fields of the response to (share-partition, partition of the request)."""

_NO_ID = b"\0" * 16


async def respond(
    request: Any,
    context: RequestContext,
    name: str,
    handle: Handle,
    failed: Mapping[str, Any] | None = None,
) -> Any:
    """Return the response of the API `name` ("ReadShareGroupState"); `failed` has the fields of a
    partition that has an error. Partitions are handled together, each in the order of the request.
    """
    module, turns = context.response, Turns()
    is_allowed = context.may_act_as_node(OF_NODES)
    results = []
    for topic in request.topics:
        topic_id = _NO_ID if topic.topic_id is None else topic.topic_id.bytes
        begun = []
        async with asyncio.TaskGroup() as group:
            for partition in topic.partitions:
                await turns.step()
                key = SharePartitionKey(request.group_id, topic_id, partition.partition)
                work = _result(key, partition, handle, failed or {}, is_allowed=is_allowed)
                begun.append(group.create_task(work))
        partitions = [entity(module, "PartitionResult", **one.result()) for one in begun]
        results.append(
            entity(module, _result_name(name), topic_id=topic.topic_id, partitions=partitions)
        )
    return entity(module, f"{name}Response", results=results)


async def _result(
    key: SharePartitionKey,
    partition: Any,
    handle: Handle,
    failed: Mapping[str, Any],
    *,
    is_allowed: bool,
) -> dict[str, Any]:
    try:
        if not is_allowed:
            raise KafkaError(OF_NODES.error)
        fields = await handle(key, partition)
    except (LakeheadError, TimeoutError) as error:
        return {
            "partition": key.partition,
            "error_code": error_code(error),
            "error_message": error_message(error),
            **failed,
        }
    return {"partition": key.partition, "error_code": ErrorCode.none, **fields}


def _result_name(name: str) -> str:
    """Return the name of the entity of a topic: ReadStateResult of ReadShareGroupState."""
    return f"{name.replace('ShareGroup', '')}Result"
