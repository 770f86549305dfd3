"""Topics that Kafka keeps for itself, and names of topics that metrics take for the same."""

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
"""Only brokers write to them; their coordinators keep them short themselves."""


def unified_name(name: str) -> str:
    """Return a topic's name as metrics have it, where '.' and '_' are the same (as Kafka's
    `Topic.unifyCollisionChars`).
    """
    return name.replace(".", "_")


def may_collide(name: str) -> bool:
    """Whether another name can be the same to metrics (as Kafka's `Topic.hasCollisionChars`)."""
    return "." in name or "_" in name
