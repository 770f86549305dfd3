"""DescribeLogDirs, key 35, versions 1-5: the storage of partitions.

v2: flexible. v3: an error of the whole response. v4: sizes of volumes (KIP-827): unknown, as object
stores have none. v5: cordoned directories (KIP-1066). There is one directory, the cluster's place
in the object store; each broker lists the partitions that it leads there, with their bytes in
objects. Data that is only in the write-ahead log is not counted.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import Turns
from lakehead.broker.cluster.cordons import is_cordoned
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DESCRIBE_CLUSTER

_DESCRIBED = DESCRIBE_CLUSTER.noted("Before version 3 a denial is an empty response.")
API = Api(key=35, name="DescribeLogDirs", versions=(1, 5), access=(_DESCRIBED,))

_EXTENTS_AT_ONCE = 1000


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response for the requested partitions that are led here; null requests all."""
    if not context.may(_DESCRIBED):
        code = _DESCRIBED.error
        return entity(context.response, "DescribeLogDirsResponse", error_code=code, results=[])
    registry = context.services.topics
    if request.topics is None:
        requested = {t.name: range(len(t.partitions)) for t in registry.by_name.values()}
    else:
        requested = {topic.topic: topic.partitions for topic in request.topics}
    topics, turns = [], Turns()
    for name, indexes in sorted(requested.items()):
        await turns.step()
        partitions = await _partitions(name, indexes, context, turns)
        if partitions:
            topics.append(
                entity(context.response, "DescribeLogDirsTopic", name=name, partitions=partitions)
            )
    directory = entity(
        context.response,
        "DescribeLogDirsResult",
        error_code=ErrorCode.none,
        log_dir=log_dir(context),
        topics=topics,
        is_cordoned=is_cordoned(context.services.state, context.services.node_id),
    )
    return entity(
        context.response, "DescribeLogDirsResponse", error_code=ErrorCode.none, results=[directory]
    )


def log_dir(context: RequestContext) -> str:
    """Return the one directory: the object store's address, without its options."""
    return context.services.store_uri.partition("?")[0]


async def _partitions(
    name: str, indexes: Sequence[int], context: RequestContext, turns: Turns
) -> list[Any]:
    found = []
    for index in indexes:
        await turns.step()
        partition = context.services.topics.partition(name, index)
        if partition is None:
            continue
        size = await _size(context.services.state.streams[partition.stream.stream_id].extents)
        found.append(
            entity(
                context.response,
                "DescribeLogDirsPartition",
                partition_index=index,
                partition_size=size,
                offset_lag=0,
                is_future_key=False,
            )
        )
    return found


async def _size(extents: Sequence[Any]) -> int:
    size = 0
    for number, extent in enumerate(extents):
        size += extent.size
        if not number % _EXTENTS_AT_ONCE:
            await asyncio.sleep(0)  # a stream may have a million
    return size
