"""Benchmarks of a cluster of many nodes: failover, moves, idleness, scaling, reads in zones."""
