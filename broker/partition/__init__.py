"""Partitions: what a batch must be, who may append it, and what was made durable."""
