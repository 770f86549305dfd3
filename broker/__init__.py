"""Kafka protocol server: turns Kafka requests into operations on streams of `lakehead.storage`."""
