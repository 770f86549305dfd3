"""Benchmarks of the storage engine alone, without Kafka's protocol."""
