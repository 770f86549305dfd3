"""DescribeUserScramCredentials, key 50, version 0: the credentials of users (KIP-554).

Null or an empty list requests every user. Secrets are never sent.
"""

from collections import Counter
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import Turns
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DESCRIBE_CLUSTER
from lakehead.broker.security.sasl.scram import SCRAM_MECHANISMS

API = Api(
    key=50,
    name="DescribeUserScramCredentials",
    versions=(0, 0),
    is_at_once=True,
    access=(DESCRIBE_CLUSTER,),
)


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response from the metadata."""
    if not context.may(DESCRIBE_CLUSTER):
        return entity(
            context.response,
            "DescribeUserScramCredentialsResponse",
            error_code=DESCRIBE_CLUSTER.error,
            error_message=None,
            results=[],
        )
    users = {user for user, _ in context.services.state.scram_credentials}
    named = Counter(user.name for user in request.users or ())
    results, turns = [], Turns()
    for name in named or sorted(users):
        await turns.step()
        code, message = ErrorCode.none, None
        if named[name] > 1:
            code = ErrorCode.duplicate_resource
            message = f"Cannot describe SCRAM credentials for the same user twice: {name}"
        elif name not in users:
            code = ErrorCode.resource_not_found
            message = f"Attempt to describe a user credential that does not exist: {name}"
        results.append(_result(name, code, message, context))
    return entity(
        context.response,
        "DescribeUserScramCredentialsResponse",
        error_code=ErrorCode.none,
        error_message=None,
        results=results,
    )


def _result(name: str, code: ErrorCode, message: str | None, context: RequestContext) -> Any:
    credentials = context.services.state.scram_credentials
    infos = [
        entity(
            context.response,
            "CredentialInfo",
            mechanism=mechanism.number,
            iterations=credentials[name, mechanism.name].iterations,
        )
        for mechanism in SCRAM_MECHANISMS.values()
        if code is ErrorCode.none and (name, mechanism.name) in credentials
    ]
    return entity(
        context.response,
        "DescribeUserScramCredentialsResult",
        user=name,
        error_code=code,
        error_message=message,
        credential_infos=infos,
    )
