"""Tables that `materialize` wrote, read by delta-spark: the same answer as from the topic."""

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakehead.lake.jobs.materialize import materialize
from lakehead.lake.jobs.table_settings import MaterializeSettings
from tests.support.record_batches import TestRecord
from tests.support.repetitions import repetitions
from tests.support.topic_writer import write_topic

SCHEMA = (
    "id BIGINT, name STRING, price DECIMAL(10, 2), day DATE, at TIMESTAMP, ratio DOUBLE, "
    "tags ARRAY<STRING>, place STRUCT<x: INT, y: STRUCT<z: BOOLEAN>>"
)


def order(number: int) -> TestRecord:
    value = {
        "id": number,
        "name": f"é{number}" * (20 if number % 50 == 0 else 1),
        "price": number / 4,
        "day": f"2013-01-{number % 28 + 1:02}",
        "at": f"2013-01-01T10:00:{number % 60:02}.{number:06}Z",
        "ratio": None if number % 5 == 0 else number / 7,
        "tags": ["a", None, str(number)][: number % 4],
        "place": {"x": number, "y": {"z": number % 2 == 0}} if number % 3 else None,
    }
    return TestRecord(
        offset=0,
        timestamp=1_700_000_000_000 + number,
        key=b"%d" % (number % 7),
        value=json.dumps(value).encode() if number % 41 else None,
        headers=(("h", b"1"),) if number % 2 else (),
    )


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> MaterializeSettings:
    folder = tmp_path_factory.mktemp("tables")
    made = MaterializeSettings(
        path=str(folder / "cluster"),
        topic="orders",
        table=str(folder / "orders"),
        schema=SCHEMA,
        workers=1,
    )
    for start in (0, 300):
        values = {p: [order(n) for n in range(start + p, start + 300, 2)] for p in range(2)}
        write_topic(folder / "cluster", "orders", values, partitions=2, codec="lz4")
        materialize(made)
    return made


@pytest.fixture(scope="module")
def rows(spark: SparkSession, settings: MaterializeSettings) -> DataFrame:
    """What the table holds, without files."""
    table = spark.read.format("delta").load(settings.table)
    return spark.createDataFrame(table.collect(), table.schema).coalesce(1).cache()


def test_spark_reads_the_same_from_topic_and_table(
    spark: SparkSession, settings: MaterializeSettings
) -> None:
    read = spark.read.format("lakehead").option("path", settings.path)
    read = read.option("subscribe", "orders").option("includeHeaders", "true")
    read.load().createOrReplaceTempView("topic_orders")
    names = [field.split()[0] for field in ("id", "name", "price", "day", "at", "ratio", "tags")]
    fields = ", ".join(f"v.{name}" for name in [*names, "place"])
    metadata = ", ".join(
        f"{name} AS _{name}"
        for name in ("topic", "partition", "offset", "timestamp", "key", "headers")
    )
    from_topic = spark.sql(
        f"SELECT {fields}, {metadata} FROM "
        f"(SELECT *, from_json(CAST(value AS STRING), '{SCHEMA}') v FROM topic_orders)"
    )
    from_table = spark.read.format("delta").load(settings.table)
    assert from_table.columns == from_topic.columns
    assert from_table.schema.simpleString() == from_topic.schema.simpleString()
    order_by = ("_partition", "_offset")
    assert from_table.orderBy(*order_by).collect() == from_topic.orderBy(*order_by).collect()
    assert from_table.count() == 600


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("id = 599", 1),
        ("id < 300 AND _offset >= 150", 0),
        ("at >= TIMESTAMP '2013-01-01 10:00:59.000599'", 1),
        ("_timestamp = TIMESTAMP '2023-11-14 22:13:20.599'", 1),
        ("day > DATE '2013-01-28'", 0),
        ("name > 'é98'", 1),
        ("place.x = 598", 1),
        ("price = 149.5", 1),
        ("id IS NULL", 15),
    ],
)
def test_skipping_by_our_statistics_loses_nothing(
    spark: SparkSession, settings: MaterializeSettings, rows: DataFrame, condition: str, count: int
) -> None:
    table = spark.read.format("delta").load(settings.table)
    assert table.where(condition).count() == count
    assert rows.where(condition).count() == count, "there is nothing to skip by"


def test_minimum_and_maximum_from_the_log_are_right(
    spark: SparkSession, settings: MaterializeSettings
) -> None:
    table = spark.read.format("delta").load(settings.table)
    row = table.selectExpr("min(id)", "max(id)", "count(*)", "min(day)", "max(day)").collect()[0]
    assert (row[0], row[1], row[2], str(row[3]), str(row[4])) == (
        1,
        599,
        600,
        "2013-01-01",
        "2013-01-28",
    )


def test_a_table_that_spark_tends_keeps_its_progress(spark: SparkSession, tmp_path: Path) -> None:
    settings = MaterializeSettings(
        path=str(tmp_path / "cluster"), topic="t", table=str(tmp_path / "t"), workers=1
    )
    rounds = repetitions(3, 2)
    for start in range(rounds):
        write_topic(
            tmp_path / "cluster", "t", {0: [b'{"id":%d}' % (start * 10 + n) for n in range(10)]}
        )
        assert materialize(settings).records == 10
        spark.sql(f"OPTIMIZE delta.`{settings.table}`")
        spark.sql(f"DELETE FROM delta.`{settings.table}` WHERE id = {start * 10 + 3}")
        assert materialize(settings).records == 0
    assert spark.read.format("delta").load(settings.table).count() == 9 * rounds
