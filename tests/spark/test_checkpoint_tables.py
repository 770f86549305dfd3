"""Spark reads a checkpoint of the metadata as tables, and the data source starts from one."""

import asyncio
import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehead.storage.clock import SystemClock
from lakehead.storage.metadata.layout import checkpoint_key
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.object_store import FileStore
from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import TestRecord, encode_batch

OBJECTS = 12


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic of two partitions in twelve objects, and a checkpoint of its metadata."""
    folder = tmp_path_factory.mktemp("cluster")
    made = LakeCluster(str(folder))
    made.create_topic("orders", 2)
    for number in range(OBJECTS):
        records = [TestRecord(offset=number, timestamp=number, value=b"%d" % number)]
        made.write({("orders", 0): [encode_batch(records)], ("orders", 1): [encode_batch(records)]})
    asyncio.run(maintain(folder))
    return folder


async def maintain(folder: Path) -> None:
    log = await MetadataLog.open(
        FileStore(folder), writer_id="w", clock=SystemClock(), rng=random.Random(5)
    )
    for _ in range(2):  # the boundary first, then a checkpoint
        await log.maintain(1)


def test_tables_of_a_checkpoint_join(spark: SparkSession, place: Path) -> None:
    (file,) = (place / "meta/checkpoint").iterdir()
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    rows = spark.read.parquet(str(file))
    tables = {row.table: row["count"] for row in rows.groupBy("table").count().collect()}
    assert tables["objects"] == OBJECTS
    assert tables["extents"] == tables["references"] == 2 * OBJECTS
    rows.createOrReplaceTempView("checkpoint")
    held = spark.sql(
        """
        SELECT t.topic, s.partition, count(*) AS extents, max(e.end_offset) AS end,
               count(DISTINCT o.key) AS objects, min(o.kind) AS kind, bool_and(s.is_open) AS open
        FROM checkpoint s
        JOIN checkpoint t ON t.table = 'topics' AND t.topic_id = s.topic_id
        JOIN checkpoint e ON e.table = 'extents' AND e.stream_id = s.stream_id
        JOIN checkpoint o ON o.table = 'objects' AND o.object = e.object
        WHERE s.table = 'streams' GROUP BY ALL ORDER BY 2
        """
    ).collect()
    assert [tuple(row) for row in held] == [
        ("orders", partition, OBJECTS, OBJECTS, OBJECTS, "sso", True) for partition in (0, 1)
    ]


def test_the_data_source_needs_no_entry_that_a_checkpoint_covers(
    spark: SparkSession, place: Path
) -> None:
    (file,) = (place / "meta/checkpoint").iterdir()
    covered = int(file.stem)
    assert file.name == checkpoint_key(covered).rpartition("/")[2]
    for entry in (place / "meta/log").iterdir():
        if int(entry.stem) < covered:
            entry.unlink()
    found = spark.read.format("lakehead").load(path=str(place), subscribe="orders")
    assert found.count() == 2 * OBJECTS
