"""ListConfigResources, key 74, versions 0-1: the resources with configs (KIP-1000, KIP-1142).

v0: client metrics alone. v1: resources of the requested types, or of
every type.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.config_changes import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    GROUP,
    RESOURCE_TYPES,
    TOPIC,
)
from lakehead.broker.api.turns import in_turns
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DESCRIBE_CONFIGS_OF_CLUSTER

API = Api(
    key=74, name="ListConfigResources", versions=(0, 1), access=(DESCRIBE_CONFIGS_OF_CLUSTER,)
)


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response from the metadata."""
    if not context.may(DESCRIBE_CONFIGS_OF_CLUSTER):
        code = DESCRIBE_CONFIGS_OF_CLUSTER.error
        return entity(
            context.response, "ListConfigResourcesResponse", error_code=code, config_resources=[]
        )
    wanted = {CLIENT_METRICS}
    if context.version >= 1:
        wanted = set(request.resource_types) or set(RESOURCE_TYPES)
    if not wanted <= RESOURCE_TYPES:
        code = ErrorCode.unsupported_version
        return entity(
            context.response, "ListConfigResourcesResponse", error_code=code, config_resources=[]
        )
    state = context.services.metadata.state
    brokers = [str(node_id) for node_id in sorted(state.nodes)]
    names = {
        TOPIC: sorted(state.topics),
        BROKER: brokers,
        BROKER_LOGGER: brokers,
        CLIENT_METRICS: sorted(state.client_metrics_configs),
        GROUP: sorted(state.group_configs),
    }
    found = ((kind, name) for kind in sorted(wanted) for name in names.get(kind, []))
    return entity(
        context.response,
        "ListConfigResourcesResponse",
        error_code=ErrorCode.none,
        config_resources=[
            entity(context.response, "ConfigResource", resource_name=name, resource_type=kind)
            async for kind, name in in_turns(found)
        ],
    )
