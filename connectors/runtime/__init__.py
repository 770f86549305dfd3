"""The frame of sources and sinks: what one is, how positions are kept, how one is run.

A *source* reads the outside world and gives records for a topic; a *sink* takes records of topics
elsewhere. Both can be killed at any moment and go on where they were: a source's position is a
record of a compacted topic in the same transaction as what was read (as in Kafka Connect, KIP-618),
a sink's is what the target holds, or the offsets of a group in the target's transaction.

Nothing here imports Airflow, pyarrow or delta-rs.
"""
