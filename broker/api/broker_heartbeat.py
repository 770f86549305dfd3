"""BrokerHeartbeat, key 63, version 0: reports between nodes; see
`lakehead.broker.cluster.heartbeat`.

Not listed in ApiVersions: clients have no use for it. Left out: the log directories of versions 1
and 2, since a node has none.
"""

from lakehead.broker.cluster.heartbeat import decode_heartbeat, encode_heartbeat_response
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.frame import RequestHeader
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import CLUSTER_ACTION

_OF_NODES = CLUSTER_ACTION.noted("By the proof of a node alone: no access rule grants it.")
API = Api(key=63, name="BrokerHeartbeat", versions=(0, 0), is_internal=True, access=(_OF_NODES,))


def start(frame: memoryview, header: RequestHeader, context: RequestContext) -> bool:
    """Start a request; see `FrameHandler`. Raises MalformedFrame."""
    heartbeat = decode_heartbeat(frame, header.body)
    lifecycle = context.services.lifecycle
    response = lifecycle.handle_heartbeat(heartbeat, is_from_node=context.is_from_node)
    context.connection.slot().complete([encode_heartbeat_response(response, header.correlation_id)])
    return True
