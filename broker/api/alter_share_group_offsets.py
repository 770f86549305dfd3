"""AlterShareGroupOffsets, key 91, version 0: have a share group without members begin elsewhere
(KIP-932).
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.share_offsets import change_group, find_topic
from lakehead.broker.api.turns import Turns
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import READ_GROUP, READ_TOPIC
from lakehead.broker.share.share_partition_key import SharePartitionKey

API = Api(key=91, name="AlterShareGroupOffsets", versions=(0, 0), access=(READ_GROUP, READ_TOPIC))


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, once all new states are durable. Only a request that names a topic makes
    a group.
    """
    module, turns = context.response, Turns()
    offsets: dict[SharePartitionKey, int] = {}
    topics = []
    makes_group = False
    for requested in request.topics:
        await turns.step(1 + len(requested.partitions))
        topic, topic_code = find_topic(context, requested.topic_name)
        makes_group = makes_group or topic_code is ErrorCode.none
        partitions = []
        for one in requested.partitions:
            code = topic_code
            if topic is not None and code is ErrorCode.none:
                if 0 <= one.partition_index < len(topic.partitions):
                    key = SharePartitionKey(request.group_id, topic.id_bytes, one.partition_index)
                    offsets[key] = one.start_offset
                else:
                    code = ErrorCode.unknown_topic_or_partition
            partitions.append(
                entity(
                    module,
                    "AlterShareGroupOffsetsResponsePartition",
                    partition_index=one.partition_index,
                    error_code=code,
                )
            )
        topics.append(
            entity(
                module,
                "AlterShareGroupOffsetsResponseTopic",
                topic_name=requested.topic_name,
                topic_id=None if topic is None else topic.uuid,
                partitions=partitions,
            )
        )

    async def change() -> list[Any]:
        await context.services.groups.set_share_offsets(
            request.group_id, offsets, makes_group=makes_group
        )
        return topics

    return await change_group(context, READ_GROUP, request.group_id, change)
