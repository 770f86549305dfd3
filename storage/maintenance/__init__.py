"""Upkeep: what topics' configs ask for beside serving, retention and compaction by keys.

`rules` says what is due, `retention` and `partition_compaction` do it: for the maintainer of a
cluster, and for jobs.
"""
