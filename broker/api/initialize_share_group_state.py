"""InitializeShareGroupState, key 83, version 0: begin new states of share-partitions, at an offset
(-1: by share.auto.offset.reset).
"""

from collections.abc import Mapping
from typing import Any

from lakehead.broker.api.share_states import OF_NODES, respond
from lakehead.broker.protocol.api import Api
from lakehead.broker.request_context import RequestContext
from lakehead.broker.share.share_partition_key import SharePartitionKey

API = Api(
    key=83,
    name="InitializeShareGroupState",
    versions=(0, 0),
    is_internal=True,
    access=(OF_NODES,),
)


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, once all that was begun is durable."""
    coordinator = context.services.share_coordinator

    async def initialize(key: SharePartitionKey, partition: Any) -> Mapping[str, Any]:
        await coordinator.initialize(key, partition.state_epoch, partition.start_offset)
        return {}

    return await respond(request, context, API.name, initialize)
