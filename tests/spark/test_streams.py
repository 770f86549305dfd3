"""Streams of the data source `lakehead`, run by Spark."""

import json
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import TestRecord, encode_batch

pytest.importorskip("pyspark.sql.datasource", reason="Spark 3.5 has no data sources in Python")

HAS_LIMITS = find_spec("pyspark.sql.streaming.datasource") is not None
needs_limits = pytest.mark.skipif(not HAS_LIMITS, reason="from Spark 4.2 on")


def batch(start: int, count: int = 10, **options: Any) -> bytes:
    return encode_batch([TestRecord(offset=start + i, value=b"v") for i in range(count)], **options)


class Query:
    """A query over `orders` (and what else is subscribed) into files, run until nothing is left."""

    def __init__(self, spark: SparkSession, folder: Path, **options: str) -> None:
        self._spark, self._folder = spark, folder
        self.cluster = LakeCluster(str(folder / "cluster"))
        self._options = {"startingOffsets": "earliest", "subscribe": "orders"} | options

    def start(self, trigger: dict[str, Any], **options: str) -> StreamingQuery:
        reader = self._spark.readStream.format("lakehead").option(
            "path", str(self._folder / "cluster")
        )
        frame = reader.options(**self._options | options).load()
        writer = frame.select("topic", "partition", "offset").writeStream.format("parquet")
        return (
            writer.option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(**trigger)
            .start(str(self._folder / "rows"))
        )

    def run(self, trigger: dict[str, Any] | None = None, **options: str) -> list[dict[str, Any]]:
        query = self.start(trigger or {"availableNow": True}, **options)
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()
        return [json.loads(one.json) for one in query.recentProgress]

    def rows(self) -> Counter[tuple[str, int, int]]:
        frame = self._spark.read.parquet(str(self._folder / "rows"))
        return Counter((row.topic, row.partition, row.offset) for row in frame.collect())

    def logged(self, number: int) -> dict[str, Any]:
        """The offsets that Spark has written down for the end of a batch."""
        lines = (self._folder / "checkpoint" / "offsets" / str(number)).read_text().splitlines()
        form: dict[str, Any] = json.loads(lines[2])
        return {topic: ends for topic, ends in form.items() if "@" not in topic}


def expected(**ends: list[int]) -> Counter[tuple[str, int, int]]:
    return Counter(
        (topic, partition, offset)
        for topic, of_topic in ends.items()
        for partition, end in enumerate(of_topic)
        for offset in range(end)
    )


@needs_limits
def test_runs_go_on_where_the_last_one_ended(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(spark, tmp_path, maxOffsetsPerTrigger="20")
    query.cluster.create_topic("orders", 2)
    query.cluster.write(
        {("orders", 0): [batch(n * 10) for n in range(4)], ("orders", 1): [batch(0)]}
    )
    progress = query.run()
    assert query.rows() == expected(orders=[40, 10])
    assert [one["numInputRows"] for one in progress if one["numInputRows"]] == [20, 20, 10]
    latest = progress[-1]["sources"][0]["latestOffset"]
    assert latest["orders"] == {"0": 40, "1": 10}
    assert query.logged(0) == {"orders": {"0": 0, "1": 0}}
    assert query.logged(1) == {"orders": {"0": 16, "1": 4}}
    # Options that say where to start count for a new stream only; what is found starts at 0.
    query.cluster.add_partitions("orders", 1)
    query.cluster.write({("orders", 0): [batch(40)], ("orders", 2): [batch(0)]})
    query.run(startingOffsets="latest")
    assert query.rows() == expected(orders=[50, 10, 10])
    assert not query.run()[0]["numInputRows"]


def test_a_running_stream_takes_what_comes(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(spark, tmp_path, startingOffsets="latest", subscribePattern="or.*")
    del query._options["subscribe"]
    query.cluster.create_topic("orders")
    query.cluster.write({("orders", 0): [batch(0)]})
    running = query.start({"processingTime": "0 seconds"})
    try:
        running.processAllAvailable()
        query.cluster.write({("orders", 0): [batch(10)]})
        query.cluster.create_topic("oranges")
        query.cluster.write({("oranges", 0): [batch(0)]})
        running.processAllAvailable()
    finally:
        running.stop()
    new = Counter({("orders", 0, offset): 1 for offset in range(10, 20)})
    assert query.rows() == new + expected(oranges=[10])


@needs_limits
def test_partitions_and_topics_that_change_under_a_stream_are_read_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, subscribePattern="or.*", maxOffsetsPerTrigger="7")
    del query._options["subscribe"]
    query.cluster.create_topic("orders")
    query.cluster.create_topic("oranges", 2)
    query.cluster.write({("orders", 0): [batch(0)], ("oranges", 1): [batch(0)]})
    running = query.start({"processingTime": "0 seconds"}, failOnDataLoss="false")
    try:
        running.processAllAvailable()
        query.cluster.add_partitions("orders", 2)
        query.cluster.write({("orders", 2): [batch(0)], ("orders", 0): [batch(10)]})
        running.processAllAvailable()
        query.cluster.delete_topic("oranges")
        query.cluster.create_topic("oranges", 1)
        query.cluster.write({("oranges", 0): [batch(0, 4)]})
        running.processAllAvailable()
    finally:
        running.stop()
    query.cluster.add_partitions("oranges", 1)
    query.cluster.write({("oranges", 1): [batch(0, 3)], ("orders", 1): [batch(0)]})
    query.run(failOnDataLoss="false")
    first = expected(oranges=[0, 10])
    assert query.rows() == expected(orders=[20, 10, 10]) + first + expected(oranges=[4, 3])


@needs_limits
def test_once_reads_everything(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(spark, tmp_path, maxOffsetsPerTrigger="5")
    query.cluster.create_topic("orders")
    query.cluster.write({("orders", 0): [batch(0)]})
    query.run({"once": True})
    assert query.rows() == expected(orders=[10])


def test_what_retention_took_fails_a_stream_unless_told_otherwise(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path)
    query.cluster.create_topic("orders")
    query.cluster.write({("orders", 0): [batch(0)]})
    query.run()
    query.cluster.write({("orders", 0): [batch(10), batch(20)]})
    query.cluster.trim("orders", 0, 20)
    with pytest.raises(StreamingQueryException, match="offsets 10 to 19 of orders-0 were deleted"):
        query.run()
    query.run(failOnDataLoss="false")
    assert set(expected(orders=[30])) - set(query.rows()) == {
        ("orders", 0, offset) for offset in range(10, 20)
    }


def test_a_stream_without_limits_goes_on_where_it_ended(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path)
    query.cluster.create_topic("orders", 2)
    query.cluster.write({("orders", 0): [batch(0), batch(10)], ("orders", 1): [batch(0)]})
    query.run()
    assert query.rows() == expected(orders=[20, 10])
    query.cluster.add_partitions("orders", 1)
    query.cluster.write({("orders", 1): [batch(10)], ("orders", 2): [batch(0)]})
    query.run(startingOffsets="latest")
    assert query.rows() == expected(orders=[20, 20, 10])
    assert not query.run()[0]["numInputRows"]


@pytest.mark.skipif(HAS_LIMITS, reason="this Spark has limits")
def test_limits_are_refused_where_spark_has_none(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(spark, tmp_path, maxOffsetsPerTrigger="5")
    query.cluster.create_topic("orders")
    with pytest.raises(StreamingQueryException, match=r"'maxOffsetsPerTrigger' needs Spark 4\.2"):
        query.run()
