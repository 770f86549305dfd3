"""Shared by the APIs of delegation tokens (KIP-48): permitted connections, and times."""

from datetime import UTC, datetime, timedelta

from kio.schema.errors import ErrorCode

from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.principal import ANONYMOUS
from lakehead.broker.security.security_protocol import SecurityProtocol

NO_TIME_MS = -1
"""In responses with an error."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def refusal(context: RequestContext) -> ErrorCode:
    """Return the error of a request from this connection; `none` if it is allowed.

    The client has to be authenticated, and not by a token.
    """
    listener, principal = context.services.listeners.all[context.listener], context.principal
    protocol = listener.protocol
    is_unknown = protocol is SecurityProtocol.SSL and principal == ANONYMOUS
    if principal.is_token_authenticated or protocol is SecurityProtocol.PLAINTEXT or is_unknown:
        return ErrorCode.delegation_token_request_not_allowed
    if not context.services.delegation_tokens.is_enabled:
        return ErrorCode.delegation_token_auth_disabled
    return ErrorCode.none


def moment(milliseconds: int) -> datetime:
    """Return a time as kio's responses have it."""
    return _EPOCH + timedelta(milliseconds=milliseconds)
