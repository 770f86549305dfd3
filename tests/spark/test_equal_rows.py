"""A consumer, our source, `lakehead.scan` and the topic's table give the same rows.

`make equality` does more of this, beside Spark's Kafka source on Apache Kafka.
"""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench.lakehead_server import lakehead_server
from lakehead.lake.jobs.materialize import materialize
from lakehead.lake.jobs.table_settings import MaterializeSettings
from tests.equality.rows import Rows, consumer_rows, differences, scan_rows, spark_rows, table_rows
from tests.equality.sending import Traffic
from tests.equality.steps import PARTITIONS, RECORDS, STAMPED, workload
from tests.support.broker_process import HASTY, KEEPING

pytestmark = pytest.mark.slow
SEED, COUNT = 7, 400


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Rows]]:
    """A node's store after a workload, and what a consumer of committed records was given."""
    folder = tmp_path_factory.mktemp("equal")
    keeping = (text for name, value in KEEPING.items() for text in (f"--{name}", value))
    with lakehead_server(folder, *HASTY, *keeping) as server:
        with Traffic(server) as traffic:
            traffic.create_topics({})
            traffic.perform(workload(SEED, COUNT))
        consumed = {
            topic: consumer_rows(server.bootstrap, topic, PARTITIONS[topic])
            for topic in (RECORDS, STAMPED)
        }
    return f"file:{folder}/data/store", consumed


@pytest.mark.parametrize("topic", [RECORDS, STAMPED])
def test_every_reader_has_the_rows_of_a_consumer(
    spark: SparkSession, written: tuple[str, dict[str, Rows]], tmp_path: Path, topic: str
) -> None:
    place, consumed = written
    read = spark.read.format("lakehead").option("path", place).option("subscribe", topic)
    settings = MaterializeSettings(
        path=place, topic=topic, table=str(tmp_path / topic), value_format="raw", workers=1
    )
    materialize(settings)
    sides = {
        "consumer": consumed[topic],
        "source": spark_rows(read.option("includeHeaders", "true").load()),
        "scan": scan_rows(place, topic),
        "table": table_rows(spark, settings.table, int(topic == STAMPED)),
    }
    assert len(consumed[topic]) > COUNT / 20
    assert differences(sides) == []


@pytest.mark.parametrize(("first", "last"), [(0.1, 0.9), (0.45, 0.55)])
def test_ranges_begin_and_end_anywhere(
    spark: SparkSession, written: tuple[str, dict[str, Rows]], first: float, last: float
) -> None:
    place, consumed = written
    rows = consumed[RECORDS].values()
    newest = {one: max(row.offset for row in rows if row.partition == one) for one in range(3)}
    assert set(newest) == set(range(PARTITIONS[RECORDS]))
    starts = {one: int(offset * first) for one, offset in newest.items()}
    ends = {one: int(offset * last) + 1 for one, offset in newest.items()}
    read = spark.read.format("lakehead").option("path", place).option("subscribe", RECORDS)
    for option, asked in (("startingOffsets", starts), ("endingOffsets", ends)):
        read = read.option(option, json.dumps({RECORDS: asked}))
    sides = {
        "consumer": {
            at: row
            for at, row in consumed[RECORDS].items()
            if starts[row.partition] <= row.offset < ends[row.partition]
        },
        "source": spark_rows(read.option("includeHeaders", "true").load()),
        "scan": scan_rows(place, RECORDS, starting_offsets=starts, ending_offsets=ends),
    }
    assert sides["consumer"]
    assert differences(sides) == []
