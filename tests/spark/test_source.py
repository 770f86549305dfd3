"""The Spark data source `lakehead`, over a cluster that was made by hand."""

from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.support.declared_topics import configure
from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import CODECS, TestRecord, encode_batch, seal_batch

pytest.importorskip("pyspark.sql.datasource", reason="Spark 3.5 has no data sources in Python")

T0 = 1_700_000_000_000


def record(offset: int) -> TestRecord:
    return TestRecord(
        offset=offset,
        timestamp=T0 + offset,
        key=b"k%d" % offset if offset % 3 else None,
        value=b'{"n":%d}' % offset if offset % 7 else None,
        headers=(("h", b"%d" % offset), ("null", None)) if offset % 2 else (),
    )


def batch(start: int, count: int = 10, **options: Any) -> bytes:
    return encode_batch([record(start + i) for i in range(count)], **options)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Topics `orders` (partition 0: offsets 0-99, 1: 0-49 stamped by the broker) and `other`."""
    folder = tmp_path_factory.mktemp("cluster")
    made = LakeCluster(str(folder))
    made.create_topic("orders", 2)
    made.create_topic("other", 1)
    made.create_topic("nothing", 1)
    made.write({("orders", 0): [batch(n * 10, codec=CODECS[n % 5]) for n in range(6)]})
    made.write(
        {
            ("orders", 0): [batch(60, 40)],
            ("orders", 1): [batch(0, 50, log_append_time=T0 + 5)],
            ("other", 0): [batch(0, 5)],
        }
    )
    return str(folder)


def load(spark: SparkSession, place: str, **options: Any) -> DataFrame:
    return spark.read.format("lakehead").options(path=place, **options).load()


def offsets(frame: DataFrame, partition: int = 0) -> list[int]:
    rows = frame.where(f"partition = {partition}").select("offset").collect()
    return sorted(row.offset for row in rows)


def test_schema_and_rows_are_those_of_the_kafka_source(spark: SparkSession, place: str) -> None:
    frame = load(spark, place, subscribe="orders", includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert all(field.nullable for field in frame.schema)
    rows = {(row.partition, row.offset): row for row in frame.collect()}
    assert set(rows) == {(0, n) for n in range(100)} | {(1, n) for n in range(50)}
    for (partition, offset), row in rows.items():
        expected = record(offset)
        stamp = T0 + 5 if partition else expected.timestamp
        local = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=stamp)
        assert row.timestamp.astimezone(UTC) == local
        assert row.timestampType == partition
        assert (row.key, row.value) == (expected.key, expected.value)
        headers = [(header.key, header.value) for header in row.headers or ()]
        assert headers == list(expected.headers)
        assert (row.headers is None) == (not expected.headers)


def test_topics_are_subscribed_matched_and_assigned(spark: SparkSession, place: str) -> None:
    assert load(spark, place, subscribe="orders, other").count() == 155
    assert load(spark, place, subscribePattern="o.*").count() == 155
    assert load(spark, place, subscribePattern="o").count() == 0
    assert load(spark, place, assign='{"orders":[1],"other":[0]}').count() == 55
    assert load(spark, place, subscribe="nothing").count() == 0


def test_offsets_and_timestamps_bound_a_read(spark: SparkSession, place: str) -> None:
    frame = load(
        spark,
        place,
        subscribe="orders",
        startingOffsets='{"orders":{"0":35,"1":-2}}',
        endingOffsets='{"orders":{"0":65,"1":-1}}',
    )
    assert offsets(frame) == list(range(35, 65))
    assert offsets(frame, 1) == list(range(50))
    frame = load(
        spark,
        place,
        assign='{"orders":[0]}',
        startingTimestamp=str(T0 + 12),
        endingTimestamp=str(T0 + 88),
    )
    assert offsets(frame) == list(range(12, 88))
    frame = load(
        spark,
        place,
        assign='{"orders":[0]}',
        startingOffsetsByTimestamp=f'{{"orders":{{"0":{T0 + 90}}}}}',
    )
    assert offsets(frame) == list(range(90, 100))


def test_a_narrower_schema_or_columns_decode_only_those(spark: SparkSession, place: str) -> None:
    reader = spark.read.format("lakehead").option("path", place).option("subscribe", "orders")
    frame = reader.schema("offset bigint, value binary").load()
    assert frame.columns == ["offset", "value"]
    assert frame.where("value is null").count() == len(range(0, 100, 7)) + len(range(0, 50, 7))
    frame = load(spark, place, subscribe="orders", columns="headers,partition")
    assert frame.columns == ["headers", "partition"]
    assert frame.where("headers is null").count() == 75


def test_views_keep_their_options(spark: SparkSession, place: str) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders USING lakehead "
        f"OPTIONS (path '{place}', subscribe 'orders')"
    )
    found = spark.sql(
        "SELECT partition, count(*) n, max(offset) last FROM orders GROUP BY 1 ORDER BY 1"
    ).collect()
    assert [tuple(row) for row in found] == [(0, 100, 99), (1, 50, 49)]


def test_filters_of_one_query_do_not_leak_into_another(spark: SparkSession, place: str) -> None:
    """Spark's Python filter pushdown did; this source has none."""
    frame = load(spark, place, subscribe="orders")
    assert frame.filter("partition = 1").count() == 50
    assert frame.count() == 150
    first, second = frame.filter("partition = 0"), frame.filter("partition = 1")
    assert first.union(second).select("partition").distinct().count() == 2


def test_min_partitions_asks_for_more_tasks(spark: SparkSession, place: str) -> None:
    assert load(spark, place, subscribe="orders").rdd.getNumPartitions() == 1
    frame = load(spark, place, subscribe="orders", minPartitions="3")
    assert frame.rdd.getNumPartitions() == 3
    assert frame.count() == 150


def test_records_in_a_task_are_bounded(spark: SparkSession, place: str) -> None:
    frame = load(spark, place, subscribe="orders", maxRecordsPerPartition="7")
    assert frame.rdd.getNumPartitions() >= 150 // 7
    assert max(len(task) for task in frame.select("offset").rdd.glom().collect()) <= 7
    assert offsets(frame) == list(range(100))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": ""}, "option 'path' is missing"),
        ({"subscribe": "ordres"}, "topic 'ordres' does not exist"),
        ({"subscripe": "x"}, "unknown option 'subscripe'"),
        ({"startingOffsets": '{"orders":{"0":1}}'}, "you must specify all TopicPartitions"),
        ({"startingOffsets": '{"orders":{"0":101,"1":0}}'}, "offset 101 of orders-0"),
        ({"startingTimestamp": str(T0 + 999)}, "No offset matched from request of topic-partition"),
    ],
)
def test_wrong_options_are_errors_that_say_so(
    spark: SparkSession, place: str, options: dict[str, str], message: str
) -> None:
    reader = spark.read.format("lakehead")
    for name, value in ({"path": place, "subscribe": "orders"} | options).items():
        reader = reader.option(name, value)
    with pytest.raises(PySparkException, match=message):
        reader.load().collect()


def test_a_schema_that_is_not_ours_is_an_error(spark: SparkSession, place: str) -> None:
    reader = spark.read.format("lakehead").option("path", place).option("subscribe", "orders")
    with pytest.raises(PySparkException, match="column 'offset' is a nullable bigint, not int"):
        reader.schema("offset int").load().collect()
    with pytest.raises(PySparkException, match="unknown column 'valeu'"):
        reader.schema("valeu binary").load().collect()


def test_a_lost_object_fails_a_read_unless_told_otherwise(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = LakeCluster(str(tmp_path))
    made.create_topic("orders")
    lost = made.write({("orders", 0): [batch(0)]})
    made.write({("orders", 0): [batch(10)]})
    made.delete_object(lost)
    with pytest.raises(PySparkException, match="offsets 0 to 9 of orders-0 are lost"):
        load(spark, str(tmp_path), subscribe="orders").collect()
    frame = load(spark, str(tmp_path), subscribe="orders", failOnDataLoss="false")
    assert offsets(frame) == list(range(10, 20))


@pytest.mark.skipif(
    version("pyspark").startswith("4.0"), reason="Spark 4.0 plans a read again for each action"
)
def test_what_is_latest_is_settled_at_the_first_action(spark: SparkSession, tmp_path: Path) -> None:
    made = LakeCluster(str(tmp_path))
    made.create_topic("orders")
    made.write({("orders", 0): [batch(0)]})
    frame = load(spark, str(tmp_path), subscribe="orders")
    assert frame.count() == 10
    made.write({("orders", 0): [batch(10)]})
    assert frame.count() == 10
    assert load(spark, str(tmp_path), subscribe="orders").count() == 20


def test_mode_says_what_becomes_of_a_batch_and_of_a_time_that_cannot_be_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Batch reads, tasks that share an item, decoded values and streams, with one option."""
    made = LakeCluster(str(tmp_path / "cluster"))
    made.create_topic("poison")
    strange = [record(13), TestRecord(offset=14, timestamp=1 << 62, value=b'{"n":14}'), record(15)]
    noise = seal_batch(b"\xff" * 40, base_offset=10, last_offset_delta=2, record_count=3)
    made.write({("poison", 0): [batch(0), noise, encode_batch(strange)]})
    configure(
        tmp_path / "cluster",
        "poison",
        {"lakehead.table.value.format": "json", "lakehead.table.schema": "n bigint"},
    )
    place = str(tmp_path / "cluster")
    with pytest.raises(PySparkException, match="topic poison, partition 0, offsets 10 to 12: "):
        load(spark, place, subscribe="poison").collect()
    readable = [*range(10), 13, 15]
    for options in ({}, {"maxRecordsPerPartition": "2"}, {"decode": "declared"}):
        kept = load(spark, place, subscribe="poison", mode="DROPMALFORMED", **options)
        column = "_offset" if "decode" in options else "offset"
        assert sorted(row[0] for row in kept.select(column).collect()) == readable
    rows = load(spark, place, subscribe="poison", mode="permissive").orderBy("offset").collect()
    assert [row.offset for row in rows] == [*range(11), 13, 14, 15]
    assert rows[10].asDict() == dict.fromkeys(rows[10].asDict(), None) | {
        "topic": "poison",
        "partition": 0,
        "offset": 10,
    }
    assert (rows[12].timestamp, rows[12].value) == (None, b'{"n":14}')
    with pytest.raises(PySparkException, match="option mode is FAILFAST, PERMISSIVE or DROPMAL"):
        load(spark, place, subscribe="poison", mode="skip").collect()
    stream = (
        spark.readStream.format("lakehead")
        .options(path=place, subscribe="poison", startingOffsets="earliest", mode="DROPMALFORMED")
        .load()
    )
    query = (
        stream.writeStream.format("memory")
        .queryName("poison_rows")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    seen = spark.sql("SELECT offset FROM poison_rows").collect()
    assert sorted(row.offset for row in seen) == readable


def test_workers_import_the_installed_pyspark(spark: SparkSession) -> None:
    import pyspark

    def imported(_: int) -> str:
        import pyspark

        return pyspark.__file__

    # Each process compiles the archive that Spark brings: seconds of a first query.
    assert spark.sparkContext.parallelize([0], 1).map(imported).collect() == [pyspark.__file__]
