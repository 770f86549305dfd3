"""delta-spark on a real S3 server, in a process of its own: its Spark session has s3a.

`python -m tests.support.s3_delta_process s3://BUCKET` prints what was found as one line of JSON.
"""

import json
import sys
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from lakehead.lake.jobs.table_run import planned_merge
from lakehead.lake.spark import s3a_settings, spark_place, spark_session
from lakehead.lake.tables.delta_spark import optimize_by_spark, vacuum_by_spark
from lakehead.lake.tables.delta_table import create_table, location, open_table
from lakehead.lake.tables.merge_engine import DeltaMerge, SparkMerge
from lakehead.lake.tables.upsert import change_schema

TOPIC = "0" * 32
ROW = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
        pa.field("_timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("_key", pa.binary()),
    ]
)


def handle(uri: str) -> DeltaTable:
    place, options = location(uri)
    return DeltaTable(place, storage_options=options)


def merged(uri: str, start: int, *, by_spark: bool) -> None:
    rows = [
        {"id": n % 7, "_partition": 0, "_offset": n, "_timestamp": n, "_key": b"%d" % (n % 7)}
        | {"_op": "d" if n % 5 == 0 else "u", "_seq": 0, "_at": n}
        for n in range(start, start + 20)
    ]
    changes = pa.Table.from_pylist(rows, schema=change_schema(ROW))
    table = open_table(uri)
    assert table is not None
    merge = planned_merge(table, changes, ROW, (), is_history=False)
    engine = SparkMerge() if by_spark else DeltaMerge()
    engine.merge(table, merge, {(TOPIC, 0): start + 19}, {})


def content(uri: str) -> list[list[int]]:
    held = handle(uri).to_pyarrow_table(columns=["id", "_offset"]).to_pydict()
    return sorted([list(row) for row in zip(held["id"], held["_offset"], strict=True)])


def run(bucket: str) -> dict[str, Any]:
    """Merge by one and by both engines, tidy up, read; then try the race of two commits."""
    tables = {"rs": f"{bucket}/rs", "mixed": f"{bucket}/mixed"}
    for name, uri in tables.items():
        create_table(uri, ROW, name="t", description="")
        for turn in range(3):
            merged(uri, turn * 30, by_spark=name == "mixed" and turn != 1)
    before = content(tables["mixed"])
    optimize_by_spark(tables["mixed"], file_bytes=1 << 27)
    vacuum_by_spark(tables["mixed"], [])
    session = spark_session(s3a=True, config=s3a_settings(bucket))
    read = session.read.format("delta").load(spark_place(tables["mixed"]))
    table = open_table(tables["mixed"])
    return {
        "rs": content(tables["rs"]),
        "mixed": before,
        "after upkeep": content(tables["mixed"]),
        "read by spark": read.count(),
        "last offset": -1 if table is None else table.last_offset(TOPIC, 0),
        "after a race": race(session, f"{bucket}/race"),
    }


def race(session: Any, uri: str) -> list[str]:
    """Do what delta-spark's log store for S3 does to commit, and let delta-rs commit in between."""
    place, options = location(uri)
    write_deltalake(place, pa.table({"who": ["first"]}), storage_options=options)
    jvm = session._jvm
    entry = jvm.org.apache.hadoop.fs.Path(f"{spark_place(uri)}/_delta_log/{1:020d}.json")
    files = entry.getFileSystem(session._jsc.hadoopConfiguration())
    assert not files.exists(entry)
    stream = files.create(entry, False)
    append = pa.table({"who": ["delta-rs"]})
    write_deltalake(place, append, mode="append", storage_options=options)
    stream.write(bytearray(b'{"commitInfo":{"operation":"of delta-spark"}}\n'))
    stream.close()
    rows: list[str] = sorted(handle(uri).to_pyarrow_table()["who"].to_pylist())
    return rows


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(sys.argv[1])) + "\n")
