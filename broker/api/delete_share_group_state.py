"""DeleteShareGroupState, key 86, version 0: delete the state of share-partitions."""

from collections.abc import Mapping
from typing import Any

from lakehead.broker.api.share_states import OF_NODES, respond
from lakehead.broker.protocol.api import Api
from lakehead.broker.request_context import RequestContext
from lakehead.broker.share.share_partition_key import SharePartitionKey

API = Api(
    key=86, name="DeleteShareGroupState", versions=(0, 0), is_internal=True, access=(OF_NODES,)
)


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, once the deletions are durable."""
    coordinator = context.services.share_coordinator

    async def delete(key: SharePartitionKey, _partition: Any) -> Mapping[str, Any]:
        await coordinator.delete(key)
        return {}

    return await respond(request, context, API.name, delete)
