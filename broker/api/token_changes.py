"""Shared by RenewDelegationToken and ExpireDelegationToken: find the token, check, commit."""

from collections.abc import Callable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.token_rules import NO_TIME_MS, moment, refusal
from lakehead.broker.deadline import Deadline
from lakehead.broker.protocol.errors import KafkaError, error_code
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.delegation_tokens import may_change
from lakehead.storage.errors import LakeheadError
from lakehead.storage.metadata.records import DelegationTokenDelete, DelegationTokenUpsert, Record
from lakehead.storage.metadata.state import DelegationToken, MetadataImage

NewExpiry = Callable[[DelegationToken, int], int | None]
"""Returns when a token expires from now on; None: it is removed. Raises KafkaError."""


async def change_token(
    token_hmac: bytes,
    context: RequestContext,
    response: str,
    new_expiry_ms: NewExpiry,
    *,
    expired_first: bool = False,
) -> Any:
    """Change when a token expires and return the response. With `expired_first` an expired token is
    reported before the principal is checked, as Kafka does when it renews.
    """
    code, tokens = refusal(context), context.services.delegation_tokens
    now_ms, expiry_ms = context.services.clock.now_ms(), NO_TIME_MS

    def plan(state: MetadataImage) -> Sequence[Record]:
        nonlocal expiry_ms
        token = tokens.find(state, token_hmac)
        if token is None:
            raise KafkaError(ErrorCode.delegation_token_not_found)
        if expired_first:
            new_expiry_ms(token, now_ms)
        if not may_change(token, context.principal):
            raise KafkaError(ErrorCode.delegation_token_owner_mismatch)
        changed = new_expiry_ms(token, now_ms)
        expiry_ms = now_ms if changed is None else changed
        if changed is None:
            return (DelegationTokenDelete(token_id=token.token_id),)
        return (
            DelegationTokenUpsert(
                token_id=token.token_id,
                owner=token.owner,
                requester=token.requester,
                renewers=token.renewers,
                issue_ms=token.issue_ms,
                expiry_ms=changed,
                max_ms=token.max_ms,
            ),
        )

    if code is ErrorCode.none:
        try:
            async with Deadline().limit():
                await context.services.metadata.commit_with(plan)
        except (LakeheadError, TimeoutError) as error:
            code, expiry_ms = error_code(error), NO_TIME_MS
    return entity(context.response, response, error_code=code, expiry_timestamp=moment(expiry_ms))
