"""Kafka protocol server: turns Kafka requests into operations on streams of `storage`."""

__version__ = "0.1.0"
