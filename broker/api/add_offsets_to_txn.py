"""AddOffsetsToTxn (key 25), versions 0 to 4: a group's offsets take part in a transaction.

2 PRODUCER_FENCED, which was INVALID_PRODUCER_EPOCH · 3 compact · 4 TRANSACTION_ABORTABLE.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.transaction.messages import TV_0, Producer
from lakehead.broker.partition.partition import OFFSETS_TOPIC
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import error_code
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import READ_GROUP, WRITE_TRANSACTIONAL_ID
from lakehead.storage.errors import LakeheadError

API = Api(
    key=25, name="AddOffsetsToTxn", versions=(0, 4), access=(WRITE_TRANSACTIONAL_ID, READ_GROUP)
)

_FENCED_VERSION = 2


async def handle(request: Any, context: RequestContext) -> Any:
    """Add the partition in which the group is kept."""
    services = context.services
    try:
        context.check(WRITE_TRANSACTIONAL_ID, request.transactional_id)
        context.check(READ_GROUP, request.group_id)
        index = await services.groups.partition_for(request.group_id)
        await services.transaction_coordinator.add_partitions(
            request.transactional_id,
            Producer(request.producer_id, request.producer_epoch),
            [(OFFSETS_TOPIC, index)],
            TV_0,
        )
        code = ErrorCode.none
    except LakeheadError as error:
        code = error_code(error)
    if code is ErrorCode.producer_fenced and context.version < _FENCED_VERSION:
        code = ErrorCode.invalid_producer_epoch
    return entity(context.response, "AddOffsetsToTxnResponse", error_code=code)
