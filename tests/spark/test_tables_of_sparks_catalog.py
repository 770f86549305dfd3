"""Topics by the names of tables in Spark's catalog, in plain sessions."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lakehead.storage.errors import SettingsError
from tests.support.declared_topics import configure
from tests.support.group_commits import commit_offsets
from tests.support.topic_writer import write_topic

pytest.importorskip("pyspark.sql.datasource", reason="Spark 3.5 has no data sources in Python")

from lakehead.lake.source.catalog_table import create_table

CATALOG = "spark.sql.catalog.spark_catalog"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tables") / "it's a \\cluster"
    write_topic(root, "orders", {0: [b"a", b"b"], 1: [b"c"]}, partitions=2)
    write_topic(root, "people", {0: [json.dumps({"who": f"n{n}"}).encode() for n in range(3)]})
    configure(root, "people", {"lakehead.table.value.format": "json"})
    return root


@pytest.fixture(scope="module")
def plain(spark: SparkSession) -> SparkSession:
    """A session with Spark's own catalog."""
    session = spark.newSession()
    if session.conf.get(CATALOG, "builtin") != "builtin":
        session.conf.set(CATALOG, "builtin")
    return session


@pytest.fixture
def database(plain: SparkSession) -> Iterator[str]:
    plain.sql("CREATE DATABASE kafka")
    yield "kafka"
    plain.sql("DROP DATABASE kafka CASCADE")


def test_a_topic_is_read_by_the_name_of_a_table(
    plain: SparkSession, place: Path, database: str
) -> None:
    create_table(plain, f"{database}.orders", {"path": str(place), "subscribe": "orders"})
    query = "SELECT partition, count(*), max(CAST(value AS STRING)) FROM kafka.orders GROUP BY 1"
    assert sorted(map(tuple, plain.sql(query).collect())) == [(0, 2, "b"), (1, 1, "c")]
    assert plain.table("kafka.orders").columns[:2] == ["key", "value"]
    assert "orders" in [one.name for one in plain.catalog.listTables(database)]
    create_table(plain, f"{database}.topics", {"path": str(place), "catalog": "topics"})
    topics = plain.sql("SELECT topic FROM kafka.topics WHERE partitions = 1 ORDER BY 1").collect()
    assert [topic for (topic,) in topics] == ["people"]


def test_options_of_a_query_take_precedence_over_those_of_the_table(
    plain: SparkSession, place: Path, database: str
) -> None:
    options = {"path": str(place), "subscribe": "orders", "endingOffsets": "latest"}
    create_table(plain, f"{database}.orders", options)
    ends = '{"orders":{"0":1,"1":0}}'
    query = f"SELECT count(*) FROM kafka.orders WITH (ENDINGOFFSETS = '{ends}')"
    assert plain.sql(query).first() == (1,)
    commit_offsets(place, "reports", "orders", {0: 2})
    query = "SELECT count(*) FROM kafka.orders WITH (endingOffsets = 'group:reports')"
    assert plain.sql(query).first() == (2,)
    with pytest.raises(PySparkException, match=r"TIME_TRAVEL|[Tt]ime travel"):
        plain.sql("SELECT * FROM kafka.orders VERSION AS OF 'group:reports'").collect()


def test_values_of_a_table_are_decoded_and_a_stream_reads_it(
    plain: SparkSession, place: Path, database: str, tmp_path: Path
) -> None:
    options = {"path": str(place), "subscribe": "people", "decode": "declared"}
    create_table(plain, f"{database}.people", options)
    assert sorted(who for (who,) in plain.sql("SELECT who FROM kafka.people").collect()) == [
        "n0",
        "n1",
        "n2",
    ]
    out = str(tmp_path / "rows")
    stream = plain.readStream.option("startingOffsets", "earliest").table("kafka.people")
    writer = stream.select("who").writeStream.format("parquet").trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "c")).start(out).awaitTermination()
    assert plain.read.parquet(out).count() == 3


def test_wrong_options_make_no_table(plain: SparkSession, place: Path, database: str) -> None:
    with pytest.raises(SettingsError, match="unknown option 'subscripe'"):
        create_table(plain, f"{database}.orders", {"path": str(place), "subscripe": "orders"})
    assert not plain.catalog.listTables(database)


def test_a_comment_that_was_changed_is_an_error_that_says_so(
    plain: SparkSession, database: str
) -> None:
    plain.sql(
        "CREATE TABLE kafka.orders (value BINARY COMMENT 'lakehead source broken') USING lakehead"
    )
    with pytest.raises(PySparkException, match="create the table again"):
        plain.sql("SELECT * FROM kafka.orders").collect()


def test_beside_another_catalog_no_table_is_made(plain: SparkSession, place: Path) -> None:
    session = plain.newSession()
    session.conf.set(CATALOG, "org.example.Catalog")
    with pytest.raises(SettingsError, match=r"org\.example\.Catalog: beside it"):
        create_table(session, "orders", {"path": str(place), "subscribe": "orders"})
