"""Reads and streams by `mapInArrow`, which is all that Spark 3.5 has; the data source is beside
them where there is one.
"""

import json
import threading
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakehead.lake.frames import BATCHES_KEPT, Checkpoint, TopicStream, read_topics
from lakehead.lake.source.stream_offsets import StreamOffsets
from lakehead.storage.errors import SettingsError
from tests.support.group_commits import commit_offsets
from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import TestRecord, encode_batch

COLUMNS = ("topic", "partition", "offset", "value")
HAS_SOURCES = find_spec("pyspark.sql.datasource") is not None
Rows = Counter[tuple[str, int, int]]


def batch(start: int, count: int = 10) -> bytes:
    return encode_batch([TestRecord(offset=start + i, value=b"v") for i in range(count)])


@pytest.fixture
def cluster(tmp_path: Path) -> LakeCluster:
    made = LakeCluster(str(tmp_path / "cluster"))
    made.create_topic("orders", 2)
    made.write({("orders", 0): [batch(0), batch(10)], ("orders", 1): [batch(0)]})
    return made


def options(folder: Path, **given: str) -> dict[str, str]:
    return {
        "path": str(folder / "cluster"),
        "subscribe": "orders",
        "startingOffsets": "earliest",
    } | given


def rows_in(frame: DataFrame) -> Rows:
    found = frame.select("topic", "partition", "offset").collect()
    return Counter((row.topic, row.partition, row.offset) for row in found)


def expected(*ends: int) -> Rows:
    return Counter(("orders", number, one) for number, end in enumerate(ends) for one in range(end))


class Kept:
    """Rows of batches by their numbers. A number in `failing` fails, after its rows were there."""

    def __init__(self) -> None:
        self.batches: dict[int, Rows] = {}
        self.runs: list[int] = []
        self.failing: set[int] = set()

    def __call__(self, frame: DataFrame, number: int) -> None:
        self.batches[number] = rows_in(frame)
        self.runs.append(number)
        if number in self.failing:
            self.failing.remove(number)
            raise RuntimeError("the driver is killed")

    @property
    def rows(self) -> Rows:
        return sum(self.batches.values(), Counter())


@pytest.mark.usefixtures("cluster")
def test_a_read_has_the_rows_of_the_topic(spark: SparkSession, tmp_path: Path) -> None:
    given = options(tmp_path) | {"maxRecordsPerPartition": "5"}
    frame = read_topics(spark, given)
    assert rows_in(frame) == expected(20, 10)
    assert frame.rdd.getNumPartitions() >= 4
    bounded = read_topics(spark, given | {"endingOffsets": '{"orders":{"0":5,"1":3}}'})
    assert rows_in(bounded) == expected(5, 3)


@pytest.mark.usefixtures("cluster")
def test_a_read_ends_where_a_group_has_committed(spark: SparkSession, tmp_path: Path) -> None:
    commit_offsets(tmp_path / "cluster", "reports", "orders", {0: 7})
    frame = read_topics(spark, options(tmp_path, endingOffsets="group:reports"))
    assert rows_in(frame) == expected(7)


@pytest.mark.skipif(not HAS_SOURCES, reason="Spark 3.5 has no data sources in Python")
@pytest.mark.usefixtures("cluster")
def test_a_read_is_that_of_the_data_source(spark: SparkSession, tmp_path: Path) -> None:
    given = options(tmp_path, includeHeaders="true")
    ours = read_topics(spark, given)
    theirs = spark.read.format("lakehead").options(**given).load()
    assert ours.schema == theirs.schema
    assert sorted(map(str, ours.collect())) == sorted(map(str, theirs.collect()))


@pytest.mark.usefixtures("cluster")
def test_wrong_options_are_errors_that_say_so(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="startingOffset"):
        read_topics(spark, options(tmp_path) | {"startingOffset": "latest"})


def test_a_topic_without_records_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    LakeCluster(str(tmp_path / "cluster")).create_topic("orders")
    assert not read_topics(spark, options(tmp_path)).count()


def test_a_stream_goes_on_where_the_last_run_ended(
    spark: SparkSession, cluster: LakeCluster, tmp_path: Path
) -> None:
    kept = Kept()
    limited = options(tmp_path, maxOffsetsPerTrigger="12")

    def run() -> None:
        TopicStream(spark, limited, str(tmp_path / "checkpoint")).run_available(kept)

    run()
    assert kept.rows == expected(20, 10)
    assert [sum(rows.values()) for rows in kept.batches.values()] == [12, 12, 6]
    run()
    assert len(kept.runs) == 3, "nothing was added"
    cluster.write({("orders", 1): [batch(10)]})
    run()
    assert kept.rows == expected(20, 20)


def test_a_batch_that_failed_runs_again_with_the_same_rows(
    spark: SparkSession, cluster: LakeCluster, tmp_path: Path
) -> None:
    """Records that came meanwhile are for the next batch."""
    kept = Kept()
    kept.failing.add(1)
    with pytest.raises(RuntimeError):
        TopicStream(spark, options(tmp_path), str(tmp_path / "c")).run_available(kept)
    first = kept.batches[1]
    cluster.write({("orders", 1): [batch(10)]})
    TopicStream(spark, options(tmp_path), str(tmp_path / "c")).run_available(kept)
    assert kept.runs == [1, 1, 2]
    assert kept.batches[1] == first
    assert kept.rows == expected(20, 20)


def test_a_stream_from_the_latest_offset_takes_what_comes_until_it_is_stopped(
    spark: SparkSession, cluster: LakeCluster, tmp_path: Path
) -> None:
    stop, kept = threading.Event(), Kept()

    def work(frame: DataFrame, number: int) -> None:
        kept(frame, number)
        stop.set()

    given = options(tmp_path) | {"startingOffsets": "latest"}
    stream = TopicStream(spark, given, str(tmp_path / "c"))
    writer = threading.Timer(1.0, lambda: cluster.write({("orders", 1): [batch(10)]}))
    writer.start()
    stream.run(work, stop)
    writer.join()
    assert kept.rows == Counter(("orders", 1, offset) for offset in range(10, 20))


@pytest.mark.skipif(not HAS_SOURCES, reason="Spark 3.5 has no data sources in Python")
def test_the_data_source_goes_on_from_the_checkpoint_of_a_stream(
    spark: SparkSession, cluster: LakeCluster, tmp_path: Path
) -> None:
    """A platform that gets Spark 4 keeps its queries' places."""
    kept, checkpoint = Kept(), tmp_path / "checkpoint"
    TopicStream(spark, options(tmp_path), str(checkpoint)).run_available(kept)
    cluster.write({("orders", 0): [batch(20)]})
    reader = spark.readStream.format("lakehead").options(**options(tmp_path)).load()
    query = (
        reader.writeStream.foreachBatch(kept)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert kept.rows == expected(30, 10)


def test_one_of_two_streams_on_a_checkpoint_is_refused(tmp_path: Path) -> None:
    one, other = Checkpoint(str(tmp_path)), Checkpoint(str(tmp_path))
    one.plan(0, StreamOffsets(offsets={}))
    with pytest.raises(SettingsError, match="another query"):
        other.plan(0, StreamOffsets(offsets={}, topic_ids={"t": "x"}))


def test_a_checkpoint_keeps_its_newest_batches(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    for number in range(BATCHES_KEPT + 20):
        checkpoint.plan(number, StreamOffsets(offsets={}))
        checkpoint.finish(number)
    assert checkpoint.newest() == BATCHES_KEPT + 19
    kept = sorted(int(path.name) for path in (tmp_path / "offsets").iterdir())
    assert kept == list(range(20, BATCHES_KEPT + 20))
    lines = (tmp_path / "offsets" / "20").read_text().splitlines()
    assert lines[0] == "v1"
    assert json.loads(lines[2]) == {}
