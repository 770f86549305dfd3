"""Benchmarks of the lake: reads of topics in place, and jobs over topics."""
