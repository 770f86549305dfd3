"""Two jobs that rewrite objects, and the kernels that both use.

*Log compaction*, Kafka's, keeps the newest record of each key (`cleanup.policy=compact`):
`dirtiness` measures how much there is to do, `log_cleaner` finds the newest record of each key and
decides what stays, with the map of `offset_map`; `log_compaction` compacts one stream.

*Object compaction* replaces small objects by larger ones and changes no record:
`object_compaction_plan` chooses the objects, `batch_merging` merges small batches,
`object_compaction` runs one item.

`rewrite` writes the new objects of both; `batches`, `kernels` and `record_kernels` read batches and
records.
"""
