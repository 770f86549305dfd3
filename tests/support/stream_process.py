"""A streaming query over a cluster into files, as a process that can be killed anywhere:
`python -m tests.support.stream_process CLUSTER CHECKPOINT ROWS`.
"""

import sys

from lakehead.lake.spark import spark_session


def main(cluster: str, checkpoint: str, rows: str) -> None:
    """Run until everything that was there is read."""
    session = spark_session(app_name="stream", delta=False)
    frame = (
        session.readStream.format("lakehead")
        .options(path=cluster, subscribe="orders", startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", "40")
        .load()
    )
    writer = frame.select("partition", "offset").writeStream.format("parquet")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(rows)
    query.awaitTermination()
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
