"""ListTransactions (key 66), versions 0 and 1: the transactional ids of this node (KIP-664).

1 those that have been open for long. Left out: version 2, with a regular expression for ids:
without a linear-time matcher a hostile one would stop the node.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from broker.coordinator.transaction.messages import Transaction, TransactionState
from broker.protocol.api import Api, RequestContext
from broker.protocol.errors import error_code
from broker.protocol.messages import entity
from storage.errors import LakeheadError

API = Api(key=66, name="ListTransactions", versions=(0, 1))

_LABELS = frozenset(state.label for state in TransactionState)


async def handle(request: Any, context: RequestContext) -> Any:
    """Answer with those that pass every filter."""
    code = ErrorCode.none
    try:
        found = await context.node.transaction_coordinator.list_all()
    except LakeheadError as error:
        code, found = error_code(error), []
    return entity(
        context.response,
        "ListTransactionsResponse",
        error_code=code,
        unknown_state_filters=[name for name in request.state_filters if name not in _LABELS],
        transaction_states=[
            entity(
                context.response,
                "TransactionState",
                transactional_id=one.transactional_id,
                producer_id=one.producer_id,
                transaction_state=one.state.label,
            )
            for one in found
            if _passes(one, request, context)
        ],
    )


def _passes(one: Transaction, request: Any, context: RequestContext) -> bool:
    longer_than_ms = getattr(request, "duration_filter", -1)
    if request.producer_id_filters and one.producer_id not in request.producer_id_filters:
        return False
    if request.state_filters and one.state.label not in request.state_filters:
        return False
    return longer_than_ms < 0 or context.node.clock.now_ms() - one.start_ms > longer_than_ms
