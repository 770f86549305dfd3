"""CreateDelegationToken, key 38, versions 1-3: a token for oneself, or for another owner (KIP-48).

2 flexible · 3 owner and requester (KIP-373).
"""

import base64
from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.token_rules import NO_TIME_MS, moment, refusal
from lakehead.broker.deadline import Deadline
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import error_code
from lakehead.broker.protocol.messages import entity, milliseconds
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import CREATE_TOKENS
from lakehead.broker.security.delegation_tokens import later
from lakehead.broker.security.principal import USER, KafkaPrincipal
from lakehead.storage.errors import LakeheadError
from lakehead.storage.metadata.records import DelegationTokenUpsert, Record
from lakehead.storage.metadata.state import MetadataImage

_CREATE = CREATE_TOKENS.noted("Of a token for another owner.")
API = Api(key=38, name="CreateDelegationToken", versions=(1, 3), is_at_once=True, access=(_CREATE,))


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the token once it is in the metadata."""
    owner = _owner(request, context.principal)
    code = _fault(request, context, owner)
    if code is not ErrorCode.none:
        return _response(context, owner, code, None)
    token = _token(request, context, owner)

    def plan(_: MetadataImage) -> Sequence[Record]:
        return (token,)

    try:
        async with Deadline().limit():
            await context.services.metadata.commit_with(plan)
    except (LakeheadError, TimeoutError) as error:
        return _response(context, owner, error_code(error), None)
    return _response(context, owner, ErrorCode.none, token)


def _owner(request: Any, requester: KafkaPrincipal) -> KafkaPrincipal:
    name = getattr(request, "owner_principal_name", None)
    if not name:
        return requester
    return KafkaPrincipal(request.owner_principal_type or "", name)


def _fault(request: Any, context: RequestContext, owner: KafkaPrincipal) -> ErrorCode:
    code = refusal(context)
    if code is ErrorCode.delegation_token_request_not_allowed:
        return code
    is_own = owner[:2] == context.principal[:2]
    if not is_own and not context.may(_CREATE, str(owner)):
        return ErrorCode.delegation_token_authorization_failed
    if any(one.principal_type != USER or not one.principal_name for one in request.renewers):
        return ErrorCode.invalid_principal_type
    if owner.principal_type != USER:
        return code if code is not ErrorCode.none else ErrorCode.invalid_principal_type
    return code


def _token(request: Any, context: RequestContext, owner: KafkaPrincipal) -> DelegationTokenUpsert:
    tokens, now_ms = context.services.delegation_tokens, context.services.clock.now_ms()
    lifetime_ms = tokens.max_lifetime_ms
    if (wanted_ms := milliseconds(request.max_lifetime)) > 0:
        lifetime_ms = min(lifetime_ms, wanted_ms)
    max_ms = later(now_ms, lifetime_ms)
    return DelegationTokenUpsert(
        token_id=_token_id(context.services.rng.getrandbits(128)),
        owner=str(owner),
        requester=str(context.principal),
        renewers=tuple(f"{one.principal_type}:{one.principal_name}" for one in request.renewers),
        issue_ms=now_ms,
        expiry_ms=min(max_ms, later(now_ms, tokens.expiry_time_ms)),
        max_ms=max_ms,
    )


def _token_id(bits: int) -> str:
    """Return 128 random bits as Kafka writes them: 22 characters of URL-safe Base64."""
    return base64.urlsafe_b64encode(bits.to_bytes(16, "big")).rstrip(b"=").decode()


def _response(
    context: RequestContext,
    owner: KafkaPrincipal,
    code: ErrorCode,
    token: DelegationTokenUpsert | None,
) -> Any:
    requester = context.principal
    return entity(
        context.response,
        "CreateDelegationTokenResponse",
        error_code=code,
        principal_type=owner.principal_type,
        principal_name=owner.name,
        token_requester_principal_type=requester.principal_type,
        token_requester_principal_name=requester.name,
        issue_timestamp=moment(token.issue_ms if token else NO_TIME_MS),
        expiry_timestamp=moment(token.expiry_ms if token else NO_TIME_MS),
        max_timestamp=moment(token.max_ms if token else NO_TIME_MS),
        token_id=token.token_id if token else "",
        hmac=context.services.delegation_tokens.hmac_of(token.token_id) if token else b"",
    )
