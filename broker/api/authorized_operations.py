"""The operations that a client may do, as bits in responses (KIP-430).

Bits are numbers of Kafka's operations. Without access rules a client may do every operation that
resources of the type have.
"""

from collections.abc import Mapping

from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType

NOT_REQUESTED = -(2**31)
"""The value in responses to requests without this question."""
NOTHING = 0

_OF_CONFIGS = (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)
_OPERATIONS: Mapping[ResourceType, tuple[AclOperation, ...]] = {
    ResourceType.TOPIC: (
        *(AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE),
        *(AclOperation.ALTER, AclOperation.DESCRIBE, *_OF_CONFIGS),
    ),
    ResourceType.GROUP: (
        *(AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE, *_OF_CONFIGS),
    ),
    ResourceType.CLUSTER: (
        *(AclOperation.CREATE, AclOperation.ALTER, AclOperation.DESCRIBE),
        *(AclOperation.CLUSTER_ACTION, *_OF_CONFIGS, AclOperation.IDEMPOTENT_WRITE),
    ),
}
"""The operations that resources of a type have, as Kafka's AclEntry lists them."""


def on_topic(name: str, context: RequestContext) -> int:
    """Return the operations that the client may do on a topic."""
    return _bits(ResourceType.TOPIC, name, context)


def on_group(name: str, context: RequestContext) -> int:
    """Return the operations that the client may do on a group."""
    return _bits(ResourceType.GROUP, name, context)


def on_cluster(context: RequestContext) -> int:
    """Return the operations that the client may do on the cluster."""
    return _bits(ResourceType.CLUSTER, CLUSTER_NAME, context)


def _bits(resource_type: ResourceType, name: str, context: RequestContext) -> int:
    authorizer = context.services.authorizer
    return sum(
        1 << operation
        for operation in _OPERATIONS[resource_type]
        if context.is_from_node
        or authorizer.authorize(
            context.principal, context.client_host, operation, resource_type, name
        )
    )
