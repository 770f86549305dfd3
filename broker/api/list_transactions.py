"""ListTransactions (key 66), versions 0 to 2: the transactional ids of this node (KIP-664).

1 those that have been open for long · 2 a regular expression that the whole id matches (KIP-1152).
"""

import asyncio
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import in_turns
from lakehead.broker.coordinator.transaction.messages import Transaction, TransactionState
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, error_code
from lakehead.broker.protocol.messages import entity
from lakehead.broker.protocol.patterns import InvalidPattern, Pattern
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DESCRIBE_TRANSACTIONAL_ID
from lakehead.storage.errors import LakeheadError

_LISTED = DESCRIBE_TRANSACTIONAL_ID.silent("A denial leaves a transactional id out.")
API = Api(key=66, name="ListTransactions", versions=(0, 2), access=(_LISTED,))

_LABELS = frozenset(state.label for state in TransactionState)


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, with the transactions that pass every filter."""
    code, found = ErrorCode.none, list[Transaction]()
    unknown = [name for name in request.state_filters if name not in _LABELS]
    now_ms = context.services.clock.now_ms()
    try:
        known = await context.services.transaction_coordinator.list_all()
        # Off the event loop: the list may be long, and a pattern may be hostile.
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(None, _selected, known, request, now_ms)
    except LakeheadError as error:
        code, unknown = error_code(error), []
    return entity(
        context.response,
        "ListTransactionsResponse",
        error_code=code,
        unknown_state_filters=unknown,
        transaction_states=[
            entity(
                context.response,
                "TransactionState",
                transactional_id=one.transactional_id,
                producer_id=one.producer_id,
                transaction_state=one.state.label,
            )
            async for one in in_turns(found)
            if context.may(_LISTED, one.transactional_id)
        ],
    )


def _selected(known: list[Transaction], request: Any, now_ms: int) -> list[Transaction]:
    """Return those that pass every filter. Raises INVALID_REGULAR_EXPRESSION."""
    text = getattr(request, "transactional_id_pattern", None)
    try:
        pattern = Pattern(text) if text else None
    except InvalidPattern as error:
        raise KafkaError(ErrorCode.invalid_regular_expression, str(error)) from error
    producers, states = request.producer_id_filters, request.state_filters
    longer_than_ms = getattr(request, "duration_filter", -1)
    return [
        one
        for one in known
        if (not producers or one.producer_id in producers)
        and (not states or one.state.label in states)
        and (longer_than_ms < 0 or now_ms - one.start_ms > longer_than_ms)
        and (pattern is None or pattern.matches(one.transactional_id))
    ]
