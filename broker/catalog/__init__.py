"""The topics of the cluster on one node, and which of their partitions it leads."""

from lakehead.broker.catalog.catalog import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicCatalog

__all__ = ["OFFSETS_TOPIC", "TRANSACTIONS_TOPIC", "TopicCatalog"]
