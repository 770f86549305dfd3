"""Benchmarks: Lakehead and Apache Kafka on the same machine, in turn, under the same clients."""
