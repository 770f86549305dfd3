"""InitProducerId (key 22), versions 0 to 6.

2 compact · 3 the producer's own id and epoch (KIP-360) · 4 PRODUCER_FENCED, which was
INVALID_PRODUCER_EPOCH · 5 TRANSACTION_ABORTABLE · 6 two-phase commit (KIP-939).

An idempotent producer gets an unused id with epoch 0, also when it comes back with its id: the old
id expires by itself. A transactional producer gets the id of its transactional id, with the next
epoch. Left out: two-phase commit, refused as Kafka does if it is not enabled.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.transaction.coordinator import InitRequest
from lakehead.broker.coordinator.transaction.messages import NO_EPOCH, NO_PRODUCER_ID, Producer
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, error_code
from lakehead.broker.protocol.messages import entity, milliseconds
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import (
    IDEMPOTENT_WRITE,
    TWO_PHASE_COMMIT,
    WRITE_TOPIC,
    WRITE_TRANSACTIONAL_ID,
)
from lakehead.storage.errors import LakeheadError

_WITHOUT_ID = IDEMPOTENT_WRITE.noted(
    "Without a transactional id, unless the client may write to some topic."
)
_SOME_TOPIC = WRITE_TOPIC.silent(
    "Without a transactional id: to any one topic, if IDEMPOTENT_WRITE is denied."
)
API = Api(
    key=22,
    name="InitProducerId",
    versions=(0, 6),
    access=(WRITE_TRANSACTIONAL_ID, TWO_PHASE_COMMIT, _SOME_TOPIC, _WITHOUT_ID),
)

_FENCED_VERSION = 4


async def handle(request: Any, context: RequestContext) -> Any:
    """Return a producer id and epoch."""
    try:
        producer = await _producer(request, context)
        code = ErrorCode.none
    except LakeheadError as error:
        producer, code = Producer(NO_PRODUCER_ID, NO_EPOCH), error_code(error)
    if code is ErrorCode.producer_fenced and context.version < _FENCED_VERSION:
        code = ErrorCode.invalid_producer_epoch
    return entity(
        context.response,
        "InitProducerIdResponse",
        error_code=code,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )


def _check_access(request: Any, context: RequestContext) -> None:
    if request.transactional_id is None:
        if not context.may_for_some(_SOME_TOPIC):
            context.check(_WITHOUT_ID)
        return
    context.check(WRITE_TRANSACTIONAL_ID, request.transactional_id)
    if getattr(request, "enable2_pc", False):
        context.check(TWO_PHASE_COMMIT, request.transactional_id)


async def _producer(request: Any, context: RequestContext) -> Producer:
    _check_access(request, context)
    known = Producer(
        getattr(request, "producer_id", NO_PRODUCER_ID),
        getattr(request, "producer_epoch", NO_EPOCH),
    )
    if (known.producer_id == NO_PRODUCER_ID) != (known.epoch == NO_EPOCH):
        raise KafkaError(ErrorCode.invalid_request)
    if getattr(request, "keep_prepared_txn", False):
        raise KafkaError(ErrorCode.unsupported_version)
    if request.transactional_id is None:
        return Producer(await context.services.producer_ids.take(), 0)
    if getattr(request, "enable2_pc", False):
        raise KafkaError(ErrorCode.transactional_id_authorization_failed)
    return await context.services.transaction_coordinator.init_producer_id(
        InitRequest(
            transactional_id=request.transactional_id,
            timeout_ms=milliseconds(request.transaction_timeout),
            expected=None if known.epoch == NO_EPOCH else known,
        )
    )
