"""The names of the tables about a cluster, and the columns of each.

They are text: a process that only checks the name of a table does not load Arrow.
"""

OFFSETS_FOR = "offsets_for"

CLUSTER_TABLES = {
    "topics": "topic STRING, topic_id STRING, partitions INT, offsets BIGINT, bytes BIGINT, "
    "objects BIGINT, value_format STRING, has_table BOOLEAN, configs MAP<STRING, STRING>",
    "partitions": "topic STRING, partition INT, leader INT, leader_epoch INT, "
    "start_offset BIGINT, end_offset BIGINT, bytes BIGINT, objects BIGINT, newest TIMESTAMP, "
    "stream_id BIGINT",
    "objects": "key STRING, kind STRING, bytes BIGINT, node INT, created TIMESTAMP, "
    "unreferenced_since TIMESTAMP, ranges ARRAY<STRUCT<topic: STRING, partition: INT, "
    "start_offset: BIGINT, end_offset: BIGINT, bytes: BIGINT, newest: TIMESTAMP>>",
    "groups": "group STRING, protocol_type STRING, generation INT, members INT, topic STRING, "
    "partition INT, committed_offset BIGINT, lag BIGINT, metadata STRING, "
    "committed TIMESTAMP, expires TIMESTAMP",
    "nodes": "node INT, epoch INT, host STRING, port INT, rack STRING, machine STRING, "
    "wal STRING, is_fenced BOOLEAN, is_recovered BOOLEAN, is_draining BOOLEAN, "
    "partitions_led INT",
    "tables": "topic STRING, name STRING, table STRING, mode STRING, value_format STRING, "
    "error STRING, late STRING, "
    "records_behind BIGINT, bytes_behind BIGINT, seconds_behind DOUBLE, "
    "freshness_seconds DOUBLE, holder STRING, version BIGINT, last_commit TIMESTAMP, "
    "files BIGINT, bytes BIGINT, small_file_ratio DOUBLE, dead_letters BIGINT, dropped BIGINT, "
    "left_out BIGINT, runs INT, "
    "bytes_read BIGINT, bytes_written BIGINT, seconds DOUBLE, store_requests BIGINT, "
    "dollars DOUBLE",
    OFFSETS_FOR: "topic STRING, partition INT, offset BIGINT, end_offset BIGINT",
}
"""The columns in DDL, by the name of the table."""
