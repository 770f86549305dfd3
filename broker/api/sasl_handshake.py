"""SaslHandshake, key 17, versions 0-1, on a connection that waits for other requests.

`lakehead.broker.network.authentication` serves it while a client authenticates. Here it comes too
late, too early after the last one, or on a listener without SASL.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext

API = Api(
    key=17,
    name="SaslHandshake",
    versions=(0, 1),
    is_at_once=True,
    open_to_all="By it a client begins to prove its name.",
)


def handle(request: Any, context: RequestContext) -> Any:
    """Return ILLEGAL_SASL_STATE."""
    code = ErrorCode.illegal_sasl_state
    return entity(context.response, "SaslHandshakeResponse", error_code=code, mechanisms=())
