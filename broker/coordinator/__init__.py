"""Coordinators: consumer groups and their committed offsets, kept as Kafka keeps them."""
