"""AlterReplicaLogDirs, key 34, versions 1-2: move replicas to another directory (KIP-113).

v2: flexible. There is one directory, the cluster's place in the object store (see
`describe_log_dirs`): what is led here lies there already, and no other is known.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.describe_log_dirs import log_dir
from lakehead.broker.api.turns import Turns
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import ALTER_CLUSTER

API = Api(key=34, name="AlterReplicaLogDirs", versions=(1, 2), access=(ALTER_CLUSTER,))


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, with a code for each partition."""
    found: dict[str, dict[int, ErrorCode]] = {}
    turns = Turns()
    is_allowed = context.may(ALTER_CLUSTER)
    for directory in request.dirs:
        await turns.step()
        for topic in directory.topics:
            await turns.step()
            codes = found.setdefault(topic.name, {})
            for index in topic.partitions:
                await turns.step()
                codes[index] = (
                    _code(directory.path, topic.name, index, context)
                    if is_allowed
                    else ALTER_CLUSTER.error
                )
    results = []
    for name, codes in found.items():
        partitions = []
        for index, code in codes.items():
            await turns.step()
            partitions.append(
                entity(
                    context.response,
                    "AlterReplicaLogDirPartitionResult",
                    partition_index=index,
                    error_code=code,
                )
            )
        await turns.step()
        results.append(
            entity(
                context.response,
                "AlterReplicaLogDirTopicResult",
                topic_name=name,
                partitions=partitions,
            )
        )
    return entity(context.response, "AlterReplicaLogDirsResponse", results=results)


def _code(path: str, name: str, index: int, context: RequestContext) -> ErrorCode:
    if path != log_dir(context):
        return ErrorCode.log_dir_not_found
    if context.services.topics.partition(name, index) is None:
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.none
