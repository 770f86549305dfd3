"""A session of Spark Connect with a server of its own, in a process of its own (a process has one
kind of session): `python -m tests.support.connect_process CLUSTER FOLDER` prints what it found.
"""

import os
import sys
from pathlib import Path

from lakehead.lake.spark import cache_folder


def main(cluster: str, folder: str) -> None:
    """Read topic `orders` in a batch, in a stream, and by a view."""
    os.environ |= {
        "SPARK_TESTING": "1",  # a free port for the server
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
    }
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.remote("local[2]")
        .config("spark.sql.warehouse.dir", (cache_folder() / "warehouse").as_uri())
        .getOrCreate()
    )
    print(type(session).__module__)
    options = {"path": cluster, "subscribe": "orders", "startingOffsets": "earliest"}
    frame = session.read.format("lakehead").options(**options).load()
    print(sorted(row.offset for row in frame.select("offset").collect()))
    stream = session.readStream.format("lakehead").options(**options).load().select("offset")
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/rows")
    )
    query.awaitTermination()
    print(sorted(row.offset for row in session.read.parquet(f"{folder}/rows").collect()))
    start = '{"orders":{"0":7}}'
    session.sql(
        "CREATE TEMPORARY VIEW orders USING lakehead "
        f"OPTIONS (path '{cluster}', subscribe 'orders', startingOffsets '{start}')"
    )
    print([row.offset for row in session.sql("SELECT min(offset) offset FROM orders").collect()])
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
