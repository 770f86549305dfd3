"""Maintenance of partitions by the configs of their topics: retention and log compaction.

`rules` decides what is due; `retention` and `partition_compaction` do it, for a cluster's
maintenance process and for jobs.
"""
