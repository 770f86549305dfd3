"""Streams in consumer groups and metrics, beside a real broker."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

import lakehead
from lakehead.connectors.stream_progress import StreamProgress
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.waiting import wait_until

DEADLINE_S = 60.0
METRIC = "lakehead_stream_offsets_behind"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    made = BrokerProcess(tmp_path, HASTY)
    made.start()
    yield made
    made.kill()


def store(broker: BrokerProcess) -> str:
    return str(broker.folder / "data" / "store")


def produce(broker: BrokerProcess, count: int) -> None:
    """Write records to partition 1, and wait until they are in objects."""
    before = sum(batch.num_rows for batch in lakehead.scan(store(broker), "t"))
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(count):
        producer.produce("t", b"%d" % number, partition=1)
    assert not producer.flush(DEADLINE_S)
    wanted = before + count
    assert wait_until(
        lambda: sum(batch.num_rows for batch in lakehead.scan(store(broker), "t")) == wanted,
        DEADLINE_S,
    )


def committed(admin: AdminClient, group: str) -> dict[int, int]:
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = asked[group].result().topic_partitions
    return {one.partition: one.offset for one in found if one.offset >= 0}


def test_a_stream_is_a_group_for_kafkas_tools_and_its_lag_a_metric(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", 2)])["t"].result()
    progress = StreamProgress({"bootstrap.servers": broker.bootstrap}, {"counted": "spark-counted"})
    registry = CollectorRegistry()
    registry.register(progress)
    spark.streams.addListener(progress)
    produce(broker, 30)
    reader = spark.readStream.format("lakehead").option("path", store(broker))
    frame = reader.option("subscribe", "t").option("startingOffsets", "earliest").load()
    writer = frame.writeStream.queryName("counted").format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    labels = {"query": "counted", "topic": "t", "partition": "1"}
    try:
        query.processAllAvailable()
        assert wait_until(lambda: committed(admin, "spark-counted") == {0: 0, 1: 30}, DEADLINE_S), (
            committed(admin, "spark-counted")
        )
        assert registry.get_sample_value(METRIC, labels) == 0
        produce(broker, 12)
        query.processAllAvailable()
        assert wait_until(lambda: committed(admin, "spark-counted") == {0: 0, 1: 42}, DEADLINE_S), (
            committed(admin, "spark-counted")
        )
    finally:
        query.stop()
        assert wait_until(lambda: registry.get_sample_value(METRIC, labels) is None, DEADLINE_S), (
            "the lag of a query that has ended stays"
        )
        spark.streams.removeListener(progress)


def test_a_broker_that_is_away_does_not_stop_a_stream(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", 2)])["t"].result()
    produce(broker, 5)
    broker.kill()
    progress = StreamProgress({"bootstrap.servers": broker.bootstrap}, {"alone": "spark-alone"})
    spark.streams.addListener(progress)
    reader = spark.readStream.format("lakehead").option("path", store(broker))
    frame = reader.option("subscribe", "t").option("startingOffsets", "earliest").load()
    writer = frame.writeStream.queryName("alone").format("noop").trigger(availableNow=True)
    try:
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.awaitTermination()
        assert query.exception() is None
        assert wait_until(lambda: "of query alone are not committed" in caplog.text, DEADLINE_S)
    finally:
        spark.streams.removeListener(progress)
