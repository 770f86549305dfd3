"""DescribeCluster, key 60, versions 0-2: the brokers, and the controller among them (KIP-700).

v1: endpoint types (KIP-919); only brokers respond here. v2: fenced brokers (KIP-1073).
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.authorized_operations import NOT_REQUESTED, NOTHING, on_cluster
from lakehead.broker.cluster.metadata_image import controller_id
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DESCRIBE_CLUSTER

_SHOWN_OPERATIONS = DESCRIBE_CLUSTER.silent(
    "A denial shows no operations of the cluster; its nodes are shown to every client."
)
API = Api(key=60, name="DescribeCluster", versions=(0, 2), access=(_SHOWN_OPERATIONS,))

_BROKERS, _CONTROLLERS = 1, 2


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response from the metadata."""
    state = context.services.metadata.state
    endpoint_type = getattr(request, "endpoint_type", _BROKERS)
    if endpoint_type != _BROKERS:
        code = ErrorCode.unsupported_endpoint_type
        if endpoint_type == _CONTROLLERS:
            code = ErrorCode.mismatched_endpoint_type
        return entity(
            context.response,
            "DescribeClusterResponse",
            error_code=code,
            error_message="This is a broker's listener: it describes brokers.",
            endpoint_type=_BROKERS,
            cluster_id="",
            brokers=[],
        )
    wants_fenced = getattr(request, "include_fenced_brokers", False)
    brokers = [
        entity(
            context.response,
            "DescribeClusterBroker",
            broker_id=node.node_id,
            **address._asdict(),
            rack=node.rack,
            is_fenced=node.is_fenced,
        )
        for _, node in sorted(state.nodes.items())
        if (wants_fenced or not node.is_fenced)
        and (address := context.address_of(node)) is not None
    ]
    operations = NOT_REQUESTED
    if request.include_cluster_authorized_operations:
        operations = on_cluster(context) if context.may(_SHOWN_OPERATIONS) else NOTHING
    return entity(
        context.response,
        "DescribeClusterResponse",
        error_code=ErrorCode.none,
        error_message=None,
        endpoint_type=_BROKERS,
        cluster_id=state.cluster_id,
        controller_id=controller_id(state, context.services.node_id),
        brokers=brokers,
        cluster_authorized_operations=operations,
    )
