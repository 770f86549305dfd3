"""Materialise with its work items as tasks of Spark: the same table, errors in one line."""

import json
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lakehead.lake.declaration.table_declaration import PartitionPart
from lakehead.lake.jobs.materialize import materialize
from lakehead.lake.jobs.spark_runner import spark_runner
from lakehead.lake.jobs.table_run import RecordUnreadable
from lakehead.lake.jobs.table_settings import MaterializeSettings
from tests.support.topic_writer import Value, write_topic

RECORDS = 300


def test_tasks_write_what_threads_would(spark: SparkSession, tmp_path: Path) -> None:
    values: list[Value] = [json.dumps({"id": n, "part": n % 3}).encode() for n in range(RECORDS)]
    values[50] = b"{"
    write_topic(tmp_path / "cluster", "t", {0: values, 1: values}, partitions=2, batch_records=20)
    settings = MaterializeSettings(
        path=str(tmp_path / "cluster"),
        topic="t",
        table=str(tmp_path / "table"),
        partition_by=(PartitionPart(column="part"),),
        split_bytes=2000,
    )
    runner = spark_runner(spark)
    with pytest.raises(RecordUnreadable, match="partition 0, offset 50"):
        materialize(settings, runner=runner)
    aside = MaterializeSettings(
        path=settings.path,
        topic="t",
        table=settings.table,
        partition_by=settings.partition_by,
        on_error="dead_letter",
        split_bytes=2000,
    )
    result = materialize(aside, runner=runner)
    assert result.dead_letters == 2
    held = DeltaTable(settings.table).to_pyarrow_table().to_pydict()
    found = Counter(zip(held["_partition"], held["_offset"], strict=True))
    assert found == Counter((p, n) for p in (0, 1) for n in range(RECORDS) if n != 50)
    assert held["part"] == [n % 3 for n in held["_offset"]]
    assert materialize(aside, runner=runner).records == 0
