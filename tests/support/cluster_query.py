"""A program of a Spark cluster's user, who has the cluster's place and a checkpoint: prints the
offsets of `orders` as the data source has them, as a stream has, and as `read_topics` has.

`python -m tests.support.cluster_query MASTER PLACE FOLDER`
"""

import sys

from pyspark.sql import DataFrame, SparkSession

from lakehead.lake.frames import read_topics


def main(master: str, place: str, folder: str) -> None:
    """Run the three queries."""
    builder = SparkSession.builder.master(master).appName("query")
    for name, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.sql.shuffle.partitions": "2",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    options = {"path": place, "subscribe": "orders", "startingOffsets": "earliest"}
    options["maxRecordsPerPartition"] = "5"
    show(spark.read.format("lakehead").options(**options).load())
    stream = spark.readStream.format("lakehead").options(**options).load()
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/rows")
    )
    query.awaitTermination()
    show(spark.read.parquet(f"{folder}/rows"))
    show(read_topics(spark, options))
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    print(f"executors: {executors}")
    spark.stop()


def show(frame: DataFrame) -> None:
    """Print the offsets, sorted."""
    print(sorted(row.offset for row in frame.select("offset").collect()))


if __name__ == "__main__":
    main(*sys.argv[1:])
