"""SaslAuthenticate, key 36, versions 0-2, on a connection that waits for other requests.

1 session lifetime · 2 flexible. See `sasl_handshake`.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext

API = Api(
    key=36,
    name="SaslAuthenticate",
    versions=(0, 2),
    is_at_once=True,
    open_to_all="By it a client proves its name.",
)


def handle(request: Any, context: RequestContext) -> Any:
    """Return ILLEGAL_SASL_STATE."""
    return entity(
        context.response,
        "SaslAuthenticateResponse",
        error_code=ErrorCode.illegal_sasl_state,
        error_message="SaslAuthenticate request received after successful authentication",
        auth_bytes=b"",
    )
