"""Tables about a cluster, from its metadata log alone."""

import datetime as dt
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

import lakehead
from lakehead.broker.coordinator.group.messages import GroupSnapshot
from lakehead.broker.coordinator.group.record_formats import (
    CommittedOffset,
    GroupKey,
    OffsetKey,
    encode_group,
    encode_key,
    encode_offset,
)
from lakehead.lake.cluster_table_columns import OFFSETS_FOR
from lakehead.lake.cluster_tables import CATALOG_SCHEMAS
from lakehead.storage.errors import UnknownTopic
from tests.support.declared_topics import configure
from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import TestRecord, encode_batch
from tests.support.topic_writer import write_topic


def batch(first: int, count: int, timestamp: int) -> bytes:
    records = [
        TestRecord(offset=first + n, timestamp=timestamp + n, value=b"v") for n in range(count)
    ]
    return encode_batch(records)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    cluster = LakeCluster(f"file:{tmp_path}")
    cluster.create_topic("a", 2)
    cluster.create_topic("b")
    cluster.write({("a", 0): [batch(0, 10, 1000)], ("a", 1): [batch(0, 5, 2000)]})
    cluster.write({("a", 0): [batch(10, 10, 3000)]})
    cluster.trim("a", 1, 3)
    configure(tmp_path, "b", {"lakehead.table.value.format": "json", "retention.ms": "5"})
    return tmp_path


def moment(milliseconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)


def test_topics_and_partitions(root: Path) -> None:
    tables = lakehead.catalog_tables(str(root))
    a, b = tables.topics.to_pylist()
    assert (a["topic"], a["partitions"], a["offsets"], a["objects"]) == ("a", 2, 22, 2)
    assert (b["value_format"], b["has_table"]) == ("json", False)
    assert dict(b["configs"]) == {"lakehead.table.value.format": "json", "retention.ms": "5"}
    partitions = tables.partitions.to_pylist()
    shown = [(p["topic"], p["partition"], p["start_offset"], p["end_offset"]) for p in partitions]
    assert shown == [("a", 0, 0, 20), ("a", 1, 3, 5), ("b", 0, 0, 0)]
    assert [p["leader"] for p in partitions] == [1, 1, 1]
    assert [p["newest"] for p in partitions] == [moment(3009), moment(2004), None]
    assert sum(p["bytes"] for p in partitions) == a["bytes"] + b["bytes"]


def test_objects_say_what_is_in_them(root: Path) -> None:
    objects = lakehead.catalog_tables(str(root)).objects.to_pylist()
    ranges = [
        [(r["topic"], r["partition"], r["start_offset"], r["end_offset"]) for r in one["ranges"]]
        for one in objects
    ]
    assert ranges == [[("a", 0, 0, 10), ("a", 1, 0, 5)], [("a", 0, 10, 20)]]
    assert all((root / one["key"]).stat().st_size == one["bytes"] for one in objects)
    assert {one["unreferenced_since"] for one in objects} == {None}


def test_nodes(root: Path) -> None:
    (node,) = lakehead.catalog_tables(str(root)).nodes.to_pylist()
    assert (node["node"], node["host"], node["port"], node["partitions_led"]) == (
        *(1, "localhost", 9092),
        3,
    )


def test_offsets_for_a_timestamp(root: Path) -> None:
    tables = lakehead.catalog_tables(str(root))

    def offsets(timestamp: int, *topics: str) -> list[int]:
        rows: list[dict[str, Any]] = tables.offsets_for(timestamp, topics).to_pylist()
        return [row["offset"] for row in rows]

    assert offsets(0) == [0, 3, 0]
    assert offsets(1005) == [5, 3, 0]
    assert offsets(2004) == [10, 4, 0]
    assert offsets(3009, "a") == [19, 5]
    assert offsets(9999, "b") == [0]
    with pytest.raises(UnknownTopic):
        offsets(0, "nope")


def test_groups_are_what_was_committed_last(tmp_path: Path) -> None:
    def offset(group: str, partition: int, at: int | None) -> TestRecord:
        key = encode_key(OffsetKey(group_id=group, topic="t", partition=partition))
        committed = CommittedOffset(offset=at or 0, metadata="m", commit_timestamp_ms=7000)
        return TestRecord(offset=0, key=key, value=None if at is None else encode_offset(committed))

    snapshot = GroupSnapshot(
        protocol_type="consumer", generation=3, protocol_name=None, leader=None, members=()
    )
    group = TestRecord(
        offset=0, key=encode_key(GroupKey(group_id="g")), value=encode_group(snapshot)
    )
    only = TestRecord(
        offset=0, key=encode_key(GroupKey(group_id="idle")), value=encode_group(snapshot)
    )
    unknown = TestRecord(offset=0, key=b"\x00\x63junk", value=b"junk")
    cut = TestRecord(offset=0, key=b"\x00", value=b"\x00")
    first = [offset("g", 0, 1), offset("g", 1, 1), group, unknown, cut, offset("g", 0, 4)]
    write_topic(tmp_path, "t", {0: [b"x"] * 6, 1: [b"x"]}, partitions=2)
    later = [only, offset("h", 1, 9)]
    write_topic(tmp_path, "__consumer_offsets", {0: first, 1: later}, partitions=2)
    write_topic(tmp_path, "__consumer_offsets", {0: [offset("g", 1, None)]})
    rows = lakehead.catalog_tables(str(tmp_path)).groups.to_pylist()
    shown = [
        (r["group"], r["topic"], r["partition"], r["committed_offset"], r["lag"]) for r in rows
    ]
    assert shown == [("g", "t", 0, 4, 2), ("h", "t", 1, 9, 0), ("idle", None, None, None, None)]
    assert [(r["generation"], r["members"]) for r in rows] == [(3, 0), (None, None), (3, 0)]
    assert (rows[0]["metadata"], rows[0]["committed"]) == ("m", moment(7000))


def test_engines_take_them_as_tables(root: Path) -> None:
    topics = lakehead.catalog_tables(str(root)).topics
    with duckdb.connect() as engine:
        engine.register("topics", topics)
        assert engine.execute("SELECT sum(offsets) FROM topics").fetchall() == [(22,)]
    assert pl.DataFrame(topics)["topic"].to_list() == ["a", "b"]


def test_every_table_has_its_schema_without_a_row(tmp_path: Path) -> None:
    LakeCluster(f"file:{tmp_path}")
    tables = lakehead.catalog_tables(str(tmp_path))
    for name, schema in CATALOG_SCHEMAS.items():
        found = tables.offsets_for(0) if name == OFFSETS_FOR else tables.table(name)
        assert found.schema == schema
        assert found.num_rows == (name == "nodes")
