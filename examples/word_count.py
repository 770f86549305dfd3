"""Words of a topic counted by Spark structured streaming, each once, over a restart.

python examples/word_count.py
"""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from lakehead.broker.testing import running_broker
from lakehead.lake.spark import spark_session


def words(lines: DataFrame) -> DataFrame:
    """The words of records, a row each."""
    split = f.explode(f.split(f.lower(f.col("value").cast("string")), r"\W+"))
    return lines.select(split.alias("word")).where("word != ''")


def count_words(spark: SparkSession, path: str, folder: Path) -> None:
    """Count the new records since the last call into the Delta table, and stop.

    The checkpoint holds the offsets that were read and the counts so far; Delta takes each batch of
    a query once. So the next run continues after a kill at any moment, without counting twice.
    """
    source = spark.readStream.format("lakehead").options(path=path, subscribe="lines")
    lines = source.option("startingOffsets", "earliest").load()  # of a query without a checkpoint
    counts = words(lines).groupBy("word").count()
    query = (
        counts.writeStream.format("delta")
        .outputMode("complete")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "counts"))
    )
    query.awaitTermination()


def main() -> None:
    """Count, produce more, count again with another query from the checkpoint."""
    spark = spark_session(app_name="word count")
    with running_broker() as broker:
        broker.create_topic("lines", partitions=2)
        for lines in (["the lake", "The river and the lake"], ["the sea"], []):
            broker.produce("lines", lines)
            broker.flush()
            count_words(spark, broker.path, broker.folder)
            counts = spark.read.format("delta").load(str(broker.folder / "counts"))
            rows = counts.orderBy(f.desc("count"), "word").collect()
            print({row["word"]: row["count"] for row in rows})


if __name__ == "__main__":
    main()
