"""ReadShareGroupStateSummary, key 87, versions 0 and 1: where share-partitions begin, for group
coordinators. v1: the number of offsets that are done (KIP-1226).
"""

from collections.abc import Mapping
from typing import Any

from lakehead.broker.api.share_states import OF_NODES, respond
from lakehead.broker.protocol.api import Api
from lakehead.broker.request_context import RequestContext
from lakehead.broker.share.record_state import NO_START_OFFSET
from lakehead.broker.share.share_partition_key import SharePartitionKey

API = Api(
    key=87,
    name="ReadShareGroupStateSummary",
    versions=(0, 1),
    is_internal=True,
    access=(OF_NODES,),
)

_FAILED = {
    "state_epoch": 0,
    "leader_epoch": 0,
    "start_offset": NO_START_OFFSET,
    "delivery_complete_count": -1,
}


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response."""
    coordinator = context.services.share_coordinator

    async def summary(key: SharePartitionKey, partition: Any) -> Mapping[str, Any]:
        state = await coordinator.summary(key, partition.leader_epoch)
        return {
            "state_epoch": state.state_epoch,
            "leader_epoch": state.leader_epoch,
            "start_offset": state.start_offset,
            "delivery_complete_count": state.delivery_complete_count,
        }

    return await respond(request, context, API.name, summary, _FAILED)
