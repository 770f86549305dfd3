"""Compaction by keys (`cleanup.policy=compact`): of each key the newest record stays.

`plan` says how much there is to do, `scan` finds what is newest, `cleaner` decides what stays (of
many plain batches at once, of others one by one), `rewrite` makes new objects, `job` does all of it
for one stream.
"""
