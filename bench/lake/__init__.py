"""Benchmarks of the lake: reads of topics in place, and what jobs make of topics."""
