"""Measures the group coordinator: heartbeats, rebalances and commits of many at once."""
