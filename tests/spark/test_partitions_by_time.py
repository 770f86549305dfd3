"""A table that is partitioned by a time: Spark reads the same times in every session's zone."""

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakehead.lake.tables.delta_table import create_table
from lakehead.lake.tables.partition_zones import add_zones
from lakehead.lake.tables.vector_merge import written_rows

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

TIMES = pa.timestamp("us", tz="UTC")
ROW = pa.schema([pa.field("n", pa.int64()), pa.field("at", TIMES), pa.field("same", TIMES)])


@pytest.mark.parametrize("is_optimized", [False, True])
def test_a_time_as_a_partition_is_the_same_in_every_zone(
    spark: SparkSession, tmp_path: Path, is_optimized: bool
) -> None:
    uri = str(tmp_path / "t")
    table = create_table(uri, ROW, name="t", description="", partition_by=["at"])
    times = pa.array(
        [
            dt.datetime(2026, 3, 8, 7, 30, tzinfo=dt.UTC),  # not there in New York's time
            dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
        ],
        TIMES,
    )
    rows = pa.table({"n": [1, 2], "at": times, "same": times}, schema=ROW)
    table.commit(written_rows(table, rows), {}, modified_ms=1, commit_info={})
    if is_optimized:
        table = table.refreshed()
        table.commit(written_rows(table, rows), {}, modified_ms=1, commit_info={})
        table.refreshed().handle.optimize.compact()
        add_zones(table)
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        for zone in ("UTC", "America/New_York", "Asia/Kolkata"):
            spark.conf.set("spark.sql.session.timeZone", zone)
            found = spark.sql(f"SELECT n FROM delta.`{uri}` WHERE at = same ORDER BY n").collect()
            assert [row[0] for row in found] == ([1, 1, 2, 2] if is_optimized else [1, 2]), zone
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
