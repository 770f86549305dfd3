"""ReadShareGroupState, key 84, version 0: the state of share-partitions, for the leaders of the
partitions. A leader's epoch fences those before it.
"""

from collections.abc import Mapping
from typing import Any

from lakehead.broker.api.share_states import OF_NODES, respond
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.share.record_state import NO_START_OFFSET
from lakehead.broker.share.share_partition_key import SharePartitionKey

API = Api(key=84, name="ReadShareGroupState", versions=(0, 0), is_internal=True, access=(OF_NODES,))

_FAILED = {"state_epoch": 0, "start_offset": NO_START_OFFSET, "state_batches": ()}


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, once all epochs are noted."""
    coordinator = context.services.share_coordinator

    async def read(key: SharePartitionKey, partition: Any) -> Mapping[str, Any]:
        state = await coordinator.read(key, partition.leader_epoch)
        batches = [
            entity(
                context.response,
                "StateBatch",
                first_offset=one.first_offset,
                last_offset=one.last_offset,
                delivery_state=one.state,
                delivery_count=one.delivery_count,
            )
            for one in state.batches
        ]
        return {
            "state_epoch": state.state_epoch,
            "start_offset": state.start_offset,
            "state_batches": tuple(batches),
        }

    return await respond(request, context, API.name, read, _FAILED)
