"""DescribeDelegationToken, key 41, versions 1-3: tokens and their HMACs (KIP-48).

2 flexible · 3 requesters (KIP-373). A client sees the tokens that it owns, requested or may renew,
and those that access rules let it describe.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.token_rules import refusal
from lakehead.broker.api.turns import Turns
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DESCRIBE_TOKEN, DESCRIBE_TOKENS
from lakehead.broker.security.delegation_tokens import is_of
from lakehead.broker.security.principal import KafkaPrincipal
from lakehead.storage.metadata.state import DelegationToken

_TOKEN = DESCRIBE_TOKEN.silent("A denial leaves it to DESCRIBE_TOKENS of its owner.")
_OWNER = DESCRIBE_TOKENS.silent("A denial leaves a token of others out.")
API = Api(
    key=41,
    name="DescribeDelegationToken",
    versions=(1, 3),
    is_at_once=True,
    access=(_TOKEN, _OWNER),
)


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the tokens from the metadata; null owners request all."""
    code, turns = refusal(context), Turns()
    found = list[Any]()
    if code is ErrorCode.none and request.owners != ():
        owners = None
        if request.owners is not None:
            owners = [f"{one.principal_type}:{one.principal_name}" for one in request.owners]
        for _, token in sorted(context.services.state.delegation_tokens.items()):
            await turns.step(1 + len(owners or ()))
            if (owners is None or is_of(token, owners)) and _may_see(token, context):
                found.append(_described(token, context))
    return entity(
        context.response,
        "DescribeDelegationTokenResponse",
        error_code=code,
        tokens=found,
    )


def _may_see(token: DelegationToken, context: RequestContext) -> bool:
    return (
        is_of(token, [str(context.principal)])
        or context.may(_TOKEN, token.token_id)
        or context.may(_OWNER, token.owner)
    )


def _described(token: DelegationToken, context: RequestContext) -> Any:
    owner, requester = KafkaPrincipal.parse(token.owner), KafkaPrincipal.parse(token.requester)
    renewers = [KafkaPrincipal.parse(one) for one in token.renewers]
    module = context.response
    return entity(
        module,
        "DescribedDelegationToken",
        principal_type=owner.principal_type,
        principal_name=owner.name,
        token_requester_principal_type=requester.principal_type,
        token_requester_principal_name=requester.name,
        issue_timestamp=token.issue_ms,
        expiry_timestamp=token.expiry_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=context.services.delegation_tokens.hmac_of(token.token_id),
        renewers=[
            entity(
                module,
                "DescribedDelegationTokenRenewer",
                principal_type=one.principal_type,
                principal_name=one.name,
            )
            for one in renewers
        ],
    )
