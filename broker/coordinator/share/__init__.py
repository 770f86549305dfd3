"""The share coordinator: the durable state of share-partitions."""
