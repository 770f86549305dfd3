"""Maintenance: what topics' configs ask for beside serving: compaction by keys, retention.

`rules` decides what is due, `maintainer` does it; `lakehead maintain` and `lakehead start` run it
in a process of its own.
"""
