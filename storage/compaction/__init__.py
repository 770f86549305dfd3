"""Compaction by keys (`cleanup.policy=compact`): of each key the newest record stays.

`plan` says how much there is to do, `scan` finds what is newest, `batch_filter` decides about one
batch, `rewrite` makes new objects, `job` does all of it for one stream.
"""
