"""Why tables are not clustered by Delta's liquid clustering: a table that delta-spark has clustered
is read by delta-rs and not written, and there is no way back. When this fails, one has learnt it.
What Lakehead clusters is read by delta-spark, whose commits and checkpoints keep the cubes.
"""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lakehead.lake.jobs.table_clustering import cubes_to_make, make_cube
from lakehead.lake.tables.cubes import cube_of
from lakehead.lake.tables.data_file import write_data_file
from lakehead.lake.tables.delta_table import Table, TableUnavailable, create_table, open_table

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string())])


def add(table: Table, start: int) -> None:
    rows = pa.table({"id": range(start, start + 10), "v": ["x"] * 10}, schema=SCHEMA)
    table.commit([write_data_file(table.uri, rows)], {}, modified_ms=1, commit_info={})


def opened(uri: str) -> Table:
    table = open_table(uri)
    assert table is not None
    return table


def test_a_clustered_table_is_read_and_not_written(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    add(create_table(uri, SCHEMA, name="t", description=""), 0)
    add(opened(uri), 10)
    spark.sql(f"ALTER TABLE delta.`{uri}` CLUSTER BY (id)").collect()
    spark.sql(f"OPTIMIZE delta.`{uri}`").collect()
    features = DeltaTable(uri).protocol().writer_features
    assert features is not None
    assert {"clustering", "domainMetadata"} <= set(features)
    assert sorted(opened(uri).rows(["id"], None)["id"].to_pylist()) == list(range(20))
    with pytest.raises(TableUnavailable, match=r"ClusteredTable.*lakehead.table.path"):
        add(opened(uri), 20)
    spark.sql(f"ALTER TABLE delta.`{uri}` CLUSTER BY NONE").collect()
    with pytest.raises(Exception, match="Cannot drop clustering"):
        spark.sql(f"ALTER TABLE delta.`{uri}` DROP FEATURE clustering").collect()
    with pytest.raises(TableUnavailable, match="ClusteredTable"):
        add(opened(uri), 20)


def test_cubes_are_read_by_spark_and_outlive_its_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "t")
    create_table(uri, SCHEMA, name="t", description="")
    for start in range(0, 30, 10):
        add(opened(uri), start)
    (cube,) = cubes_to_make(opened(uri), ["id"], 1 << 30)
    make_cube(opened(uri), cube, ["id"], file_bytes=1 << 20)
    before = cubes_of(uri)
    every = "SET TBLPROPERTIES ('delta.checkpointInterval' = '1')"
    spark.sql(f"ALTER TABLE delta.`{uri}` {every}").collect()
    spark.sql(f"INSERT INTO delta.`{uri}` VALUES (30, 'y')").collect()
    found = spark.sql(f"SELECT id FROM delta.`{uri}` ORDER BY id").collect()
    assert [row.id for row in found] == list(range(31))
    log = Path(uri, "_delta_log")
    assert list(log.glob(f"{opened(uri).version:020}.checkpoint*.parquet"))
    *older, _ = sorted(log.glob("*.json"))
    for entry in older:
        entry.unlink()
    (new,) = [path for path, one in cubes_of(uri).items() if one is None]
    assert {path: one for path, one in cubes_of(uri).items() if path != new} == before
    spark.sql(f"UPDATE delta.`{uri}` SET v = 'z' WHERE id = 3").collect()
    assert set(cubes_of(uri).values()) == {None}, "what Spark has rewritten is new"


def cubes_of(uri: str) -> dict[str, str | None]:
    files = opened(uri).logical_files().files
    return {path: cube_of(file, ["id"]) for path, file in files.items()}
