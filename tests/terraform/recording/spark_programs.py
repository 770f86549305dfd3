"""What Spark does beside a cluster, in a process of its own: it merges into a table and tidies it
up, reads topics in place, streams one into a table whose checkpoint lies in the bucket too, and
gives a file up.

`python -m tests.terraform.recording.spark_programs STORE TABLES`
"""

import sys

from pyspark.sql import SparkSession

from lakehead import scan
from lakehead.lake.spark import s3a_settings, spark_place, spark_session
from lakehead.lake.tables.delta_spark import optimize_by_spark, vacuum_by_spark
from lakehead.lake.tables.delta_table import create_table
from tests.support.s3_delta_process import ROW, merged

FEW_TASKS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.python.authenticate.socketTimeout": "120s",  # on a machine with much to do
}


def keep_table(uri: str) -> None:
    """Merge changes into a table, and do its upkeep."""
    create_table(uri, ROW, name="t", description="")
    for start in (0, 30):
        merged(uri, start, by_spark=True)
    optimize_by_spark(uri, file_bytes=1 << 27)
    vacuum_by_spark(uri, [])


def read(session: SparkSession, store: str) -> None:
    """Read in place: by Spark's batches, and without Spark."""
    for options in (
        {"subscribe": "orders"},
        {"subscribe": "orders", "tail": "wal"},
        {"catalog": "topics"},
    ):
        rows = session.read.format("lakehead").option("path", store).options(**options).load()
        assert rows.count() > 0, options
    assert scan(store, "orders").read_all().num_rows > 0


def stream(session: SparkSession, store: str, tables: str) -> None:
    """Stream what makes a large file, which goes up in parts."""
    query = (
        session.readStream.format("lakehead")
        .option("path", store)
        .option("subscribe", "big")
        .option("startingOffsets", "earliest")
        .load()
        .coalesce(1)
        .writeStream.format("delta")
        .option("checkpointLocation", f"{spark_place(tables)}/_checkpoints/big")
        .trigger(availableNow=True)
        .start(f"{spark_place(tables)}/streamed")
    )
    assert query.awaitTermination(300)
    assert query.exception() is None


def give_up(session: SparkSession, tables: str) -> None:
    """Begin a file that goes up in parts, and give it up, as a task does that is cancelled."""
    jvm = session._jvm
    assert jvm is not None
    path = jvm.org.apache.hadoop.fs.Path(f"{spark_place(tables)}/given-up/part-0")
    files = path.getFileSystem(session._jsc.hadoopConfiguration())
    out = files.create(path, True)
    out.write(bytearray(12 << 20))
    out.flush()
    out.abort()
    out.close()


def main() -> None:
    """Do it in one session."""
    store, tables = sys.argv[1:]
    parts = {"spark.hadoop.fs.s3a.multipart.size": "5M"}
    config = s3a_settings(tables) | FEW_TASKS | parts
    session = spark_session(s3a=True, config=config)
    keep_table(f"{tables}/merged")
    read(session, store)
    stream(session, store, tables)
    give_up(session, tables)


if __name__ == "__main__":
    main()
