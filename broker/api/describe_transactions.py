"""DescribeTransactions (key 65), version 0: the state of transactional ids (KIP-664)."""

from datetime import UTC, datetime, timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import Turns
from lakehead.broker.coordinator.transaction.messages import Transaction
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import error_code
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DESCRIBE_TOPIC, DESCRIBE_TRANSACTIONAL_ID
from lakehead.storage.errors import LakeheadError

_LISTED = DESCRIBE_TOPIC.silent("A denial leaves a topic out.")
API = Api(
    key=65,
    name="DescribeTransactions",
    versions=(0, 0),
    access=(DESCRIBE_TRANSACTIONAL_ID, _LISTED),
)

_STATE_STEPS = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response for each transactional id."""
    states, turns = [], Turns()
    for transactional_id in dict.fromkeys(request.transactional_ids):
        states.append(await _state(transactional_id, context))
        await turns.step(_STATE_STEPS + sum(len(topic.partitions) for topic in states[-1].topics))
    return entity(context.response, "DescribeTransactionsResponse", transaction_states=states)


async def _state(transactional_id: str, context: RequestContext) -> Any:
    try:
        context.check(DESCRIBE_TRANSACTIONAL_ID, transactional_id)
        found = await context.services.transaction_coordinator.describe(transactional_id)
    except LakeheadError as error:
        nothing = Transaction(
            transactional_id=transactional_id,
            producer_id=0,
            producer_epoch=0,
            timeout_ms=0,
            updated_ms=0,
            start_ms=0,
        )
        return _entity(nothing, "", error_code(error), context)
    return _entity(found, found.state.label, ErrorCode.none, context)


def _entity(found: Transaction, label: str, code: ErrorCode, context: RequestContext) -> Any:
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(found.partitions):
        by_topic.setdefault(topic, []).append(index)
    return entity(
        context.response,
        "TransactionState",
        error_code=code,
        transactional_id=found.transactional_id,
        transaction_state=label,
        transaction_timeout=found.timeout_ms,
        transaction_start_time=_EPOCH + timedelta(milliseconds=found.start_ms),
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[
            entity(context.response, "TopicData", topic=topic, partitions=indexes)
            for topic, indexes in by_topic.items()
            if context.may(_LISTED, topic)
        ],
    )
