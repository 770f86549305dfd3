"""delta-spark and delta-rs on the same tables: equal after the same changes, each takes up what the
other left, and what both upkeep commands leave is read alike.
"""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
from lakehead.lake.jobs.table_run import planned_merge
from lakehead.lake.tables.data_file import write_data_file
from lakehead.lake.tables.delta_spark import optimize_by_spark, vacuum_by_spark
from lakehead.lake.tables.delta_table import Table, applications, create_table, open_table
from lakehead.lake.tables.left_out import LEFT_OUT, counted
from lakehead.lake.tables.merge_engine import (
    DeltaMerge,
    MergeEngine,
    SparkMerge,
    done_app,
    merge_statement,
    plan_merge,
)
from lakehead.lake.tables.owner import OtherTopic
from lakehead.lake.tables.upsert import HISTORY_FIELDS, Merge, change_schema
from tests.support.declared_topics import configure, delete_topic
from tests.support.topic_writer import write_topic

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

TOPIC = "0" * 32
KEYS = {(TOPIC, 0): 0, (TOPIC, 1): 0}
ROW = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("part of", pa.string()),
        pa.field("v", pa.int64()),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
        pa.field("_timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("_key", pa.binary()),
    ]
)


def changes(schema: Any, start: int, count: int, *, truncate_at: int = -1) -> Any:
    chance = random.Random(start)
    rows = []
    for number in range(start, start + count):
        key = chance.randrange(20)
        op = "t" if number == truncate_at else chance.choice("uuuud")
        rows.append(
            {
                "id": None if op == "t" else key,
                "part of": None if op == "t" else f"it's {key % 2}",
                "v": number if op == "u" else None,
                "_partition": 0 if op == "t" else key % 2,
                "_offset": number,
                "_timestamp": number,
                "_key": b"%d" % key,
                "_op": op,
                "_seq": 0,
                "_at": number,
            }
        )
    return pa.Table.from_pylist(rows, schema=change_schema(schema))


def opened(uri: str) -> Table:
    table = open_table(uri)
    assert table is not None
    return table


def content(uri: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(uri).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: (row["id"], row["_offset"]))


def change_of(table: Table, **row: Any) -> Any:
    """A change of one row, as its table has it."""
    made = {"_partition": 0, "_offset": 5, "_timestamp": 5, "_key": b"k", "_op": "u", "_seq": 0}
    return pa.Table.from_pylist([row | made | {"_at": 5}], schema=change_schema(table.schema))


@pytest.mark.parametrize("is_history", [False, True])
def test_both_engines_make_equal_tables(
    spark: SparkSession, tmp_path: Path, is_history: bool
) -> None:
    schema = pa.schema([*ROW, *HISTORY_FIELDS]) if is_history else ROW
    uris = {name: str(tmp_path / name) for name in ("rs", "spark", "mixed")}
    for uri in uris.values():
        create_table(uri, schema, name="t", description="", partition_by=["part of"])
    engines: dict[str, list[MergeEngine]] = {
        "rs": [DeltaMerge()],
        "spark": [SparkMerge()],
        "mixed": [DeltaMerge(), SparkMerge()],
    }
    for turn in range(3):
        given = changes(schema, turn * 100, 50, truncate_at=120)
        progress = dict.fromkeys(KEYS, turn * 100 + 49)
        for name, uri in uris.items():
            table = opened(uri)
            merge = planned_merge(table, given, schema, ("id",), is_history=is_history)
            engine = engines[name][turn % len(engines[name])]
            engine.merge(table, merge, progress, {"lakehead.topic": "t"})
            assert opened(uri).last_offset(TOPIC, 0) == turn * 100 + 49
            assert opened(uri).last_offset(TOPIC, 1) == turn * 100 + 49
        assert content(uris["rs"]) == content(uris["spark"]) == content(uris["mixed"])
    read = spark.read.format("delta").load(uris["rs"])
    assert read.count() == len(content(uris["rs"])) > 5


def test_a_merge_of_spark_that_comes_late_changes_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "t")
    create_table(uri, ROW, name="t", description="")
    late, first, then = (changes(ROW, start, 30) for start in (0, 0, 100))
    # A run plans its round, and is overtaken by one that does both of the next rounds.
    table = opened(uri)
    merge = planned_merge(table, late, ROW, (), is_history=False)
    number = plan_merge(table, dict.fromkeys(KEYS, 29), {})
    for given, last in ((first, 29), (then, 129)):
        now = opened(uri)
        merged = planned_merge(now, given, ROW, (), is_history=False)
        SparkMerge().merge(now, merged, dict.fromkeys(KEYS, last), {})
    before = content(uri)
    run_late(spark, uri, merge, TOPIC, number)
    assert content(uri) == before


def run_late(spark: SparkSession, uri: str, merge: Merge, topic_id: str, number: int) -> None:
    """Run the MERGE of a round that has been used up: it is not a commit."""
    staged = write_data_file(uri, merge.source)
    spark.read.parquet(f"{uri}/{staged.path}").createOrReplaceTempView("lakehead_changes")
    spark.conf.set("spark.databricks.delta.write.txnAppId", done_app(topic_id))
    spark.conf.set("spark.databricks.delta.write.txnVersion", str(number))
    version = DeltaTable(uri).version()
    spark.sql(merge_statement(uri, merge)).collect()
    spark.conf.unset("spark.databricks.delta.write.txnAppId")
    spark.conf.unset("spark.databricks.delta.write.txnVersion")
    assert DeltaTable(uri).version() == version


def test_the_table_of_a_topic_made_again_is_left_as_it_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    def write(*names: str) -> None:
        values = [b'{"id":%d,"name":"%s","more":1}' % (n, t.encode()) for n, t in enumerate(names)]
        write_topic(tmp_path, "people", {0: values})
        declared = {"enable": "true", "value.format": "json", "mode": "upsert", "keys": "id"}
        declared |= {"schema": "id bigint, name string"}
        configure(tmp_path, "people", {f"lakehead.table.{n}": v for n, v in declared.items()})

    def catch_up() -> TableOutcome:
        told: list[TableOutcome] = []
        tables = DeclaredTables(str(tmp_path), engine="spark")
        tables.catch_up(all_of_them=True, on_table=told.append)
        tables.close()
        return told[0]

    def names() -> list[str]:
        return [row["name"] for row in content(uri)]

    uri = str(tmp_path / "tables" / "people")
    write("old0", "old1", "old2")
    assert catch_up().error is None
    assert names() == ["old0", "old1", "old2"]
    assert counted(opened(uri), LEFT_OUT) == 3
    (progress,) = [one for one in applications(uri) if one.endswith(":0")]
    earlier = progress.split(":")[1]
    table = opened(uri)
    late = planned_merge(
        table,
        change_of(table, id=0, name="late"),
        table.schema,
        ("id",),
        is_history=False,
    )
    number = plan_merge(table, {(earlier, 0): 5}, {})
    delete_topic(tmp_path, "people")
    write("new0")
    assert isinstance(catch_up().error, OtherTopic)
    assert names() == ["old0", "old1", "old2"]
    tables = DeclaredTables(str(tmp_path), engine="spark")
    tables.rebuild("people", without_history=True)
    tables.close()
    run_late(spark, uri, late, earlier, number)
    assert names() == ["new0"]
    write("new0", "new1")
    assert catch_up().error is None
    assert names() == ["new0", "new1"]
    assert counted(opened(uri), LEFT_OUT) == 3


def test_a_round_that_changes_no_row_is_progress_too(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    create_table(uri, ROW, name="t", description="")
    for last in (29, 90):
        table = opened(uri)
        merge = planned_merge(table, changes(ROW, 0, 30), ROW, (), is_history=False)
        SparkMerge().merge(table, merge, dict.fromkeys(KEYS, last), {})
        assert opened(uri).last_offset(TOPIC, 1) == last


def test_optimize_and_vacuum_by_spark_keep_the_rows(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    create_table(uri, ROW, name="t", description="")
    for start in range(0, 120, 30):
        table = opened(uri)
        merge = planned_merge(table, changes(ROW, start, 30), ROW, (), is_history=False)
        DeltaMerge().merge(table, merge, dict.fromkeys(KEYS, start + 29), {})
    before = content(uri)
    optimize_by_spark(uri, file_bytes=1 << 27)
    assert content(uri) == before
    held = {Path(one).name for one in opened(uri).handle.file_uris()}
    stale = Path(uri) / "part-stale.parquet"
    stale.write_bytes(b"of a killed run")
    vacuum_by_spark(uri, [stale.name, *held])
    assert not stale.exists()
    assert all((Path(uri) / name).exists() for name in held), "what a version names stays"
    assert content(uri) == before
    assert opened(uri).last_offset(TOPIC, 0) == 119
