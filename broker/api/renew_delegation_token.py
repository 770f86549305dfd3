"""RenewDelegationToken, key 39, versions 1-2: extend the life of a token (KIP-48). 2 flexible."""

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
    key=39,
    name="RenewDelegationToken",
    versions=(1, 2),
    is_at_once=True,
    open_to_all="The owner and the renewers of a token may renew it.",
)


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the new end of the token, once it is in the metadata."""
    period_ms = context.services.delegation_tokens.expiry_time_ms
    if (wanted_ms := milliseconds(request.renew_period)) > 0:
        period_ms = min(period_ms, wanted_ms)

    def new_expiry_ms(token: DelegationToken, now_ms: int) -> int:
        if token.has_expired(now_ms):
            raise KafkaError(ErrorCode.delegation_token_expired)
        return min(token.max_ms, later(now_ms, period_ms))

    return await change_token(
        request.hmac, context, "RenewDelegationTokenResponse", new_expiry_ms, expired_first=True
    )
