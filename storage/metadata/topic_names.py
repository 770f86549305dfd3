"""Topics that Kafka keeps for itself."""

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
"""Only brokers write to them; their coordinators keep them short themselves."""
