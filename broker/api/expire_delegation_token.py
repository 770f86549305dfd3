"""ExpireDelegationToken, key 40, versions 1-2: end a token, at once or at a time (KIP-48).

2 flexible. A negative time removes the token at once.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.token_changes import change_token
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.messages import milliseconds
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.delegation_tokens import later
from lakehead.storage.metadata.state import DelegationToken

API = Api(
    key=40,
    name="ExpireDelegationToken",
    versions=(1, 2),
    is_at_once=True,
    open_to_all="The owner and the renewers of a token may end it.",
)


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the new end of the token, once it is in the metadata."""
    period_ms = milliseconds(request.expiry_time_period)

    def new_expiry_ms(token: DelegationToken, now_ms: int) -> int | None:
        if period_ms < 0:
            return None
        if token.has_expired(now_ms):
            raise KafkaError(ErrorCode.delegation_token_expired)
        return min(token.max_ms, later(now_ms, period_ms))

    return await change_token(request.hmac, context, "ExpireDelegationTokenResponse", new_expiry_ms)
