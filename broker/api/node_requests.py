"""What only nodes may ask of nodes."""

from lakehead.broker.request_context import RequestContext


def is_stranger(context: RequestContext) -> bool:
    """Whether a request is not proven to come from a node of this cluster, though the cluster has a
    secret by which nodes prove it. One at a feature level without a secret believes as it did.
    """
    return bool(context.services.state.node_secret) and not context.is_from_node
