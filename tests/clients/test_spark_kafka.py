"""Spark's own Kafka source and sink, in batches and as streams, as clients of a broker.

Run by `make clients`, which fetches their jars; `BROKER=kafka` runs the same against Apache Kafka.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, Row, SparkSession

from bench.maven import MissingTool
from bench.process import ServerProcess
from bench.spark_kafka import spark_with_kafka
from tests.support.broker_process import HASTY, KEEPING, server_under_test
from tests.support.foreign_clients import CODECS, FIRST_TIMESTAMP, ITEMS, PIP_CLIENTS, Item
from tests.support.traffic import create_topic

pytestmark = pytest.mark.skipif("CLIENTS" not in os.environ, reason="run by make clients")
CONFLUENT = PIP_CLIENTS[0]
SINK_SCHEMA = (
    "key binary, value binary, partition int, headers array<struct<key: string, value: binary>>"
)
STREAM_SECONDS_MAX = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("spark")
    with server_under_test(folder, *HASTY, settings=KEEPING) as running:
        yield running


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    try:
        session = spark_with_kafka()
    except MissingTool as error:
        pytest.skip(str(error))
    yield session
    session.stop()


def options(server: ServerProcess, topic: str) -> dict[str, str]:
    """What batches and streams are told alike."""
    return {
        "kafka.bootstrap.servers": server.bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
    }


def load(spark: SparkSession, server: ServerProcess, topic: str, **more: str) -> DataFrame:
    return spark.read.format("kafka").options(**(options(server, topic) | more)).load()


def item(row: Row) -> Item:
    headers = tuple((header.key, bytes(header.value)) for header in row.headers or ())
    key, value = (None if data is None else bytes(data) for data in (row.key, row.value))
    return Item(key, value, headers, round(row.timestamp.timestamp() * 1000))


def offsets(frame: DataFrame, partition: int = 0) -> list[int]:
    rows = frame.where(f"partition = {partition}").select("offset").collect()
    return sorted(row.offset for row in rows)


def send(server: ServerProcess, topic: str, items: Sequence[Item], partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
    errors: list[object] = []
    for each in items:
        producer.produce(
            topic,
            each.value,
            each.key,
            partition=partition,
            headers=list(each.headers),
            timestamp=each.timestamp,
            on_delivery=lambda error, _: errors.append(error),
        )
    assert producer.flush(30) == 0
    assert errors == [None] * len(items)


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_reads_what_was_written_in_each_codec(
    spark: SparkSession, server: ServerProcess, codec: str
) -> None:
    topic = f"source-{codec}"
    create_topic(server.bootstrap, topic, 1)
    CONFLUENT.write(server.bootstrap, topic, codec)
    rows = load(spark, server, topic).orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(len(ITEMS)))
    assert [item(row) for row in rows] == list(ITEMS)
    assert {(row.topic, row.partition, row.timestampType) for row in rows} == {(topic, 0, 0)}


def test_a_batch_reads_between_the_offsets_and_times_it_is_given(
    spark: SparkSession, server: ServerProcess
) -> None:
    create_topic(server.bootstrap, "ranges", 2)
    for partition in range(2):
        send(server, "ranges", ITEMS, partition)
    by_offset = load(
        spark,
        server,
        "ranges",
        startingOffsets=json.dumps({"ranges": {"0": 10, "1": -2}}),
        endingOffsets=json.dumps({"ranges": {"0": 20, "1": -1}}),
    )
    assert offsets(by_offset) == list(range(10, 20))
    assert offsets(by_offset, 1) == list(range(len(ITEMS)))
    by_time = load(
        spark,
        server,
        "ranges",
        startingTimestamp=str(ITEMS[100].timestamp),
        endingTimestamp=str(ITEMS[150].timestamp - 1),
    )
    assert offsets(by_time) == offsets(by_time, 1) == list(range(100, 150))
    assert load(spark, server, "ranges", minPartitions="7").count() == 2 * len(ITEMS)


def test_read_committed_shows_whole_transactions(
    spark: SparkSession, server: ServerProcess
) -> None:
    create_topic(server.bootstrap, "transactions", 1)
    producer = Producer(
        {"bootstrap.servers": server.bootstrap, "transactional.id": "t", "linger.ms": 1}
    )
    producer.init_transactions(30)
    for number in range(4):
        producer.begin_transaction()
        for _ in range(10):
            producer.produce("transactions", b"%d" % number, partition=0)
        assert producer.flush(30) == 0
        if number < 3:  # the fourth stays open
            end = producer.abort_transaction if number == 1 else producer.commit_transaction
            end(30)

    def values(isolation: str) -> list[bytes]:
        more = {"kafka.isolation.level": isolation}
        frame = load(spark, server, "transactions", **more).orderBy("offset")
        return [bytes(row.value) for row in frame.collect()]

    every = [b"%d" % number for number in range(4) for _ in range(10)]
    assert values("read_uncommitted") == every
    assert values("read_committed") == every[:10] + every[20:30]
    producer.abort_transaction(30)
    assert values("read_committed") == every[:10] + every[20:30]


def run_stream(frame: DataFrame, sink: str, folder: Path, **more: str) -> int:
    """Write all that the stream has by now; how many records that were."""
    writer = frame.writeStream.format(sink).trigger(availableNow=True)
    query = writer.options(checkpointLocation=str(folder / "checkpoint"), **more).start()
    assert query.awaitTermination(STREAM_SECONDS_MAX)
    return sum(progress.numInputRows for progress in query.recentProgress)


def test_a_stream_goes_on_where_its_checkpoint_ends(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    create_topic(server.bootstrap, "stream", 2)
    stream = spark.readStream.format("kafka").options(**options(server, "stream"))
    kept = str(tmp_path / "kept")
    for part, number in ((ITEMS[:200], 200), (ITEMS[200:], 100), ((), 0)):
        for partition in range(2):
            send(server, "stream", part, partition)
        frame = stream.option("maxOffsetsPerTrigger", "70").load()
        assert run_stream(frame, "parquet", tmp_path, path=kept) == 2 * number
    for partition in range(2):
        found = spark.read.parquet(kept).where(f"partition = {partition}").orderBy("offset")
        assert [item(row) for row in found.collect()] == list(ITEMS)


@pytest.mark.parametrize("codec", CODECS)
def test_the_sink_writes_in_each_codec(
    spark: SparkSession, server: ServerProcess, codec: str
) -> None:
    topic = f"sink-{codec}"
    create_topic(server.bootstrap, topic, 2)
    rows = [(each.key, each.value, 0, list(each.headers) or None) for each in ITEMS]
    frame = spark.createDataFrame(rows, SINK_SCHEMA).coalesce(1)
    target = {
        "kafka.bootstrap.servers": server.bootstrap,
        "kafka.compression.type": codec,
        "topic": topic,
    }
    frame.write.format("kafka").options(**target).save()
    for client in PIP_CLIENTS:
        if codec in client.codecs:
            read = client.read(server.bootstrap, topic)
            times = [each._replace(timestamp=FIRST_TIMESTAMP) for each in read]
            assert times == [each._replace(timestamp=FIRST_TIMESTAMP) for each in ITEMS]


def test_a_stream_from_topic_to_topic_goes_on_where_its_checkpoint_ends(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    create_topic(server.bootstrap, "original", 1)
    create_topic(server.bootstrap, "copy", 1)
    stream = spark.readStream.format("kafka").options(**options(server, "original"))
    target = {"kafka.bootstrap.servers": server.bootstrap, "topic": "copy"}
    for part in (ITEMS[:150], ITEMS[150:]):
        send(server, "original", part)
        frame = stream.load().select("key", "value", "headers")
        assert run_stream(frame, "kafka", tmp_path, **target) == len(part)
    copied = [item(row) for row in load(spark, server, "copy").orderBy("offset").collect()]
    assert [each[:3] for each in copied] == [each[:3] for each in ITEMS]
