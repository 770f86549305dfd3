"""InitProducerId (key 22), versions 0 to 6.

2 compact · 3 the producer's own id and epoch (KIP-360) · 6 two-phase commit fields.

Gives an id that nobody has, with epoch 0, to an idempotent producer that comes back with its id
too: the old one expires by itself. Left out: transactional ids, refused with
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which every client takes as final and shows.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from broker.protocol.api import Api, RequestContext
from broker.protocol.errors import error_code
from broker.protocol.messages import entity
from storage.errors import LakeheadError

API = Api(key=22, name="InitProducerId", versions=(0, 6))


async def handle(request: Any, context: RequestContext) -> Any:
    """Return a producer id and epoch."""
    if request.transactional_id is not None:
        error = (
            ErrorCode.transactional_id_authorization_failed
            if request.transactional_id
            else ErrorCode.invalid_request
        )
        return _answer(context, error, -1, -1)
    known_id = getattr(request, "producer_id", -1)
    known_epoch = getattr(request, "producer_epoch", -1)
    if (known_id == -1) != (known_epoch == -1):
        return _answer(context, ErrorCode.invalid_request, -1, -1)
    try:
        producer_id = await context.node.producer_ids.take()
    except LakeheadError as error:
        return _answer(context, error_code(error), -1, -1)
    return _answer(context, ErrorCode.none, producer_id, 0)


def _answer(context: RequestContext, error: ErrorCode, producer_id: int, epoch: int) -> Any:
    return entity(
        context.response,
        "InitProducerIdResponse",
        error_code=error,
        producer_id=producer_id,
        producer_epoch=epoch,
    )
