"""EndTxn (key 26), versions 0 to 5: commit or abort a transaction.

2 PRODUCER_FENCED, which was INVALID_PRODUCER_EPOCH · 3 compact · 4 TRANSACTION_ABORTABLE · 5 each
transaction has an epoch of its own, and the response bears the next one (KIP-890).

The response comes when the decision is durable; markers are written to the partitions after that.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.transaction.messages import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    TV_0,
    TV_2,
    Producer,
)
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import error_code
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import WRITE_TRANSACTIONAL_ID
from lakehead.storage.errors import LakeheadError

API = Api(key=26, name="EndTxn", versions=(0, 5), access=(WRITE_TRANSACTIONAL_ID,))

_FENCED_VERSION = 2
_EPOCH_VERSION = 5


async def handle(request: Any, context: RequestContext) -> Any:
    """End the transaction; return what the producer is from now on."""
    is_bumping = context.version >= _EPOCH_VERSION
    try:
        context.check(WRITE_TRANSACTIONAL_ID, request.transactional_id)
        producer = await context.services.transaction_coordinator.end(
            request.transactional_id,
            Producer(request.producer_id, request.producer_epoch),
            TV_2 if is_bumping else TV_0,
            is_commit=request.committed,
        )
        code = ErrorCode.none
    except LakeheadError as error:
        producer, code = Producer(NO_PRODUCER_ID, NO_EPOCH), error_code(error)
    if code is ErrorCode.producer_fenced and context.version < _FENCED_VERSION:
        code = ErrorCode.invalid_producer_epoch
    return entity(
        context.response,
        "EndTxnResponse",
        error_code=code,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )
