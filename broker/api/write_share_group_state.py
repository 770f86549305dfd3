"""WriteShareGroupState, key 85, versions 0 and 1: new states of records in share-partitions, by the
leaders of the partitions. v1: the number of offsets that are done (KIP-1226).
"""

from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.share_states import OF_NODES, respond
from lakehead.broker.coordinator.share.shard import StateWrite
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.request_context import RequestContext
from lakehead.broker.share.record_state import RecordState, StateBatch
from lakehead.broker.share.share_partition_key import SharePartitionKey

API = Api(
    key=85, name="WriteShareGroupState", versions=(0, 1), is_internal=True, access=(OF_NODES,)
)


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, once all of it is durable."""
    coordinator = context.services.share_coordinator

    async def write(key: SharePartitionKey, partition: Any) -> Mapping[str, Any]:
        requested = StateWrite(
            partition.state_epoch,
            partition.leader_epoch,
            partition.start_offset,
            getattr(partition, "delivery_complete_count", -1),
            tuple(_batch(one) for one in partition.state_batches),
        )
        await coordinator.write(key, requested)
        return {}

    return await respond(request, context, API.name, write)


def _batch(one: Any) -> StateBatch:
    """Return a batch of the request. Raises INVALID_REQUEST."""
    try:
        state = RecordState(one.delivery_state)
    except ValueError as error:
        raise KafkaError(ErrorCode.invalid_request, str(error)) from error
    if not 0 <= one.first_offset <= one.last_offset:
        raise KafkaError(ErrorCode.invalid_request, "a batch ends before it begins")
    return StateBatch(one.first_offset, one.last_offset, state, one.delivery_count)
