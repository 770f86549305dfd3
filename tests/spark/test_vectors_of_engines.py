"""Deletion vectors of Lakehead and of delta-spark: each reads those of the other."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lakehead.lake.jobs.table_run import planned_merge
from lakehead.lake.tables.delta_spark import optimize_by_spark
from lakehead.lake.tables.delta_table import Table, create_table, open_table
from lakehead.lake.tables.merge_engine import DeltaMerge, MergeEngine, SparkMerge
from lakehead.lake.tables.upsert import change_schema

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

TOPIC = "0" * 32
ROW = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("v", pa.int64()),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
        pa.field("_timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("_key", pa.binary()),
    ]
)


def opened(uri: str) -> Table:
    table = open_table(uri)
    assert table is not None
    return table


class Rows:
    """A table, and the rows that it is to have."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.model: dict[int, int] = {}
        self._offset = 0
        create_table(uri, ROW, name="t", description="").set_vectors(is_enabled=True, modified_ms=1)

    def merge(self, engine: MergeEngine, puts: range, deletes: range = range(0)) -> None:
        rows = []
        for op, keys in (("u", puts), ("d", deletes)):
            for key in keys:
                self._offset += 1
                rows.append(
                    {
                        "id": key,
                        "v": self._offset,
                        "_partition": 0,
                        "_offset": self._offset,
                        "_timestamp": self._offset,
                        "_key": b"%d" % key,
                        "_op": op,
                        "_seq": 0,
                        "_at": self._offset,
                    }
                )
                if op == "u":
                    self.model[key] = self._offset
                else:
                    self.model.pop(key, None)
        table = opened(self.uri)
        changes = pa.Table.from_pylist(rows, schema=change_schema(ROW))
        merge = planned_merge(table, changes, ROW, ("id",), is_history=False)
        engine.merge(table, merge, {(TOPIC, 0): self._offset}, {})

    def check(self, spark: SparkSession) -> None:
        found = spark.read.format("delta").load(self.uri).select("id", "v").collect()
        assert sorted(map(tuple, found)) == sorted(self.model.items())
        held = opened(self.uri).rows(["id", "v"], None).to_pydict()
        assert sorted(zip(held["id"], held["v"], strict=True)) == sorted(self.model.items())

    def vectors(self) -> int:
        files = opened(self.uri).logical_files().files.values()
        return sum(file.vector.rows for file in files if file.vector is not None)


def test_each_engine_goes_on_from_the_vectors_of_the_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = Rows(str(tmp_path / "t"))
    rows.merge(DeltaMerge(), range(5000))
    rows.merge(DeltaMerge(), range(0, 3000, 11), range(3001, 3040, 4))  # in a file
    rows.merge(DeltaMerge(), range(4000, 4003))  # in the log
    assert rows.vectors() == 273 + 10 + 3
    rows.check(spark)
    rows.merge(SparkMerge(), range(4100, 4110), range(4200, 4205))
    assert rows.vectors() == 273 + 10 + 3 + 15, "delta-spark marks rows too"
    rows.check(spark)
    rows.merge(DeltaMerge(), range(4105, 4115))
    assert rows.vectors() > 273 + 10 + 3 + 15
    rows.check(spark)
    DeltaTable(rows.uri).create_checkpoint()
    rows.merge(DeltaMerge(), range(4300, 4303))
    rows.check(spark)
    optimize_by_spark(rows.uri, file_bytes=1 << 27)
    assert rows.vectors() == 0
    rows.check(spark)
