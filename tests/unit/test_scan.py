"""`lakehead.scan` over a cluster that was made by hand."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakehead
from lakehead.lake.committed import committed
from lakehead.lake.errors import DataLoss
from lakehead.lake.offsets import offset_for_timestamp
from lakehead.lake.planner import OffsetRange, Split, needed_objects, plan_splits
from lakehead.lake.positions import TopicPartition
from lakehead.lake.store_reader import StoreReader, store_reader
from lakehead.storage.errors import CorruptObject, SettingsError, UnknownTopic
from lakehead.storage.format.partition_state import PartitionState
from lakehead.storage.format.stream_object import AbortedTransaction
from lakehead.storage.format.transaction_index import pack_aborted
from tests.support.group_commits import commit_offsets
from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import TestRecord, encode_batch

T0 = 1_700_000_000_000


def batch(start: int, count: int = 10, *, size: int = 20, **options: Any) -> bytes:
    records = [
        TestRecord(
            offset=offset,
            timestamp=T0 + offset,
            key=b"k%d" % offset if offset % 3 else None,
            value=b"v%d " % offset + b"x" * size,
            headers=(("h", b"%d" % offset),) if offset % 2 else (),
        )
        for offset in range(start, start + count)
    ]
    return encode_batch(records, **options)


@pytest.fixture
def cluster(tmp_path: Path) -> LakeCluster:
    """Topic `orders`: partition 0 with offsets 0-99 in three objects, 1 with 0-19; `empty`."""
    made = LakeCluster(str(tmp_path))
    made.create_topic("orders", 2)
    made.create_topic("empty", 1)
    made.write({("orders", 0): [batch(start, codec="zstd") for start in range(0, 40, 10)]})
    made.write(
        {
            ("orders", 0): [batch(40), batch(50, codec="lz4")],
            ("orders", 1): [batch(0, codec="snappy"), batch(10, codec="gzip")],
        }
    )
    made.write({("orders", 0): [batch(start) for start in range(60, 100, 10)]})
    return made


def offsets(table: pa.Table, partition: int = 0) -> list[int]:
    return [
        row["offset"]
        for row in table.select(["partition", "offset"]).to_pylist()
        if row["partition"] == partition
    ]


def test_a_topic_is_read_whole_and_in_order(cluster: LakeCluster, tmp_path: Path) -> None:
    table = lakehead.scan(str(tmp_path), "orders", include_headers=True).read_all()
    table.validate(full=True)
    assert offsets(table) == list(range(100))
    assert offsets(table, 1) == list(range(20))
    assert table.slice(41, 1).to_pylist()[0] | {"timestamp": None} == {
        "key": b"k41",
        "value": b"v41 " + b"x" * 20,
        "topic": "orders",
        "partition": 0,
        "offset": 41,
        "timestamp": None,
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"41"}],
    }
    assert table.schema.field("value").type == pa.binary_view()


def test_only_asked_columns_are_made(cluster: LakeCluster, tmp_path: Path) -> None:
    reader = lakehead.scan(str(tmp_path), "orders", columns=["value", "offset"], copy=True)
    assert reader.schema == pa.schema([("value", pa.binary()), ("offset", pa.int64())])
    assert reader.read_all().num_rows == 120
    with pytest.raises(SettingsError, match="unknown column 'valeu'"):
        lakehead.scan(str(tmp_path), "orders", columns=["valeu"])


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ({0: 35, 1: 0}, {0: 65, 1: 0}, range(35, 65)),
        ({0: 99, 1: 20}, "latest", range(99, 100)),
        ("latest", "latest", range(0)),
        ({0: 0, 1: 20}, {0: 1, 1: 20}, range(1)),
        ({0: 60, 1: 20}, {0: 40, 1: 20}, range(0)),
    ],
)
def test_offsets_bound_a_scan(
    cluster: LakeCluster, tmp_path: Path, start: Any, end: Any, expected: range
) -> None:
    table = lakehead.scan(
        str(tmp_path), "orders", starting_offsets=start, ending_offsets=end
    ).read_all()
    assert offsets(table) == list(expected)
    assert offsets(table, 1) == []


def test_the_offsets_of_a_group_bound_a_scan(cluster: LakeCluster, tmp_path: Path) -> None:
    commit_offsets(tmp_path, "reports", "orders", {0: 35, 1: 20})
    commit_offsets(tmp_path, "late", "orders", {0: 1000})
    path = str(tmp_path)
    done = lakehead.scan(path, "orders", ending_offsets="group:reports").read_all()
    assert (offsets(done), offsets(done, 1)) == (list(range(35)), list(range(20)))
    rest = lakehead.scan(path, "orders", starting_offsets="group:reports").read_all()
    assert (offsets(rest), offsets(rest, 1)) == (list(range(35, 100)), [])
    # Beyond the records in objects is their end; a partition without a commit, at its beginning.
    late = lakehead.scan(path, "orders", ending_offsets="group:late").read_all()
    assert (offsets(late), offsets(late, 1)) == (list(range(100)), [])
    with pytest.raises(SettingsError, match="group 'nobody' has committed no offset"):
        lakehead.scan(path, "orders", ending_offsets="group:nobody")
    with pytest.raises(SettingsError, match="group:NAME"):
        lakehead.scan(path, "orders", ending_offsets="group:")


def test_timestamps_bound_a_scan(cluster: LakeCluster, tmp_path: Path) -> None:
    table = lakehead.scan(
        str(tmp_path), "orders", starting_timestamp=T0 + 15, ending_timestamp=T0 + 77
    ).read_all()
    assert offsets(table) == list(range(15, 77))
    assert offsets(table, 1) == list(range(15, 20))


def test_a_timestamp_is_found_where_it_is(cluster: LakeCluster, tmp_path: Path) -> None:
    reader = store_reader(str(tmp_path))
    log = reader.open_catalog().partition(TopicPartition("orders", 0))
    for offset in (0, 39, 40, 99):
        assert offset_for_timestamp(reader, log, T0 + offset) == offset
    assert offset_for_timestamp(reader, log, 0) == 0
    assert offset_for_timestamp(reader, log, T0 + 100) is None


def test_what_is_not_there_is_said(cluster: LakeCluster, tmp_path: Path) -> None:
    with pytest.raises(UnknownTopic, match="'nothing' does not exist"):
        lakehead.scan(str(tmp_path), "nothing")
    with pytest.raises(SettingsError, match="no Lakehead cluster"):
        lakehead.scan(str(tmp_path / "elsewhere"), "orders")
    with pytest.raises(DataLoss, match=r"offset 101 of orders-0: it holds offsets 0 to 100"):
        lakehead.scan(str(tmp_path), "orders", starting_offsets={0: 101, 1: 0})
    with pytest.raises(SettingsError, match="you must specify all TopicPartitions"):
        lakehead.scan(str(tmp_path), "orders", starting_offsets={0: 1})
    assert lakehead.scan(str(tmp_path), "empty").read_all().num_rows == 0


def test_trimmed_offsets_are_gone(cluster: LakeCluster, tmp_path: Path) -> None:
    cluster.trim("orders", 0, 45)
    assert offsets(lakehead.scan(str(tmp_path), "orders").read_all()) == list(range(45, 100))
    with pytest.raises(DataLoss, match="offset 44 of orders-0"):
        lakehead.scan(str(tmp_path), "orders", starting_offsets={0: 44, 1: 0})


def test_a_lost_object_is_data_loss(tmp_path: Path) -> None:
    made = LakeCluster(str(tmp_path))
    made.create_topic("orders")
    lost = made.write({("orders", 0): [batch(0)]})
    made.write({("orders", 0): [batch(10)]})
    made.delete_object(lost)
    with pytest.raises(DataLoss, match=f"offsets 0 to 9 of orders-0 are lost: object {lost}"):
        lakehead.scan(str(tmp_path), "orders")


def test_a_damaged_block_is_an_error_that_names_it(tmp_path: Path) -> None:
    made = LakeCluster(str(tmp_path))
    made.create_topic("orders")
    key = made.write({("orders", 0): [batch(0)]})
    path = tmp_path / key
    body = bytearray(path.read_bytes())
    body[200] ^= 1
    path.chmod(0o644)
    path.write_bytes(body)
    with pytest.raises(CorruptObject, match=f"object {key} is corrupt at byte 0"):
        lakehead.scan(str(tmp_path), "orders").read_all()


def test_aborted_transactions_and_markers_are_left_out(tmp_path: Path) -> None:
    made = LakeCluster(str(tmp_path))
    made.create_topic("orders")
    batches = [
        batch(0, 5, producer_id=7, transactional=True),
        batch(5, 5, producer_id=8, transactional=True),
        batch(10, 1, producer_id=7, transactional=True, control=True),
        batch(11, 5, producer_id=7, transactional=True),
    ]
    abort = AbortedTransaction(producer_id=7, first_offset=0, last_offset=10, last_stable_offset=16)
    made.write({("orders", 0): batches}, state=PartitionState(aborted=pack_aborted([abort])))
    table = lakehead.scan(str(tmp_path), "orders").read_all()
    assert offsets(table) == [5, 6, 7, 8, 9, 11, 12, 13, 14, 15]


def test_markers_and_aborted_records_have_times_as_in_kafka(tmp_path: Path) -> None:
    made = LakeCluster(str(tmp_path))
    made.create_topic("orders")
    late = TestRecord(offset=5, timestamp=T0 + 1000, key=b"", value=b"")
    batches = [
        batch(0, 5, producer_id=7, transactional=True),
        encode_batch([late], producer_id=7, transactional=True, control=True),
        batch(6, 5),
    ]
    abort = AbortedTransaction(producer_id=7, first_offset=0, last_offset=5, last_stable_offset=6)
    made.write({("orders", 0): batches}, state=PartitionState(aborted=pack_aborted([abort])))
    reader = store_reader(str(tmp_path))
    (log,) = committed(reader, reader.open_catalog().partitions("orders"))
    assert log.aborted
    assert offset_for_timestamp(reader, log, T0 + 2) == 2
    assert offset_for_timestamp(reader, log, T0 + 8) == 5
    since = lakehead.scan(str(tmp_path), "orders", starting_timestamp=T0 + 8).read_all()
    assert offsets(since) == [6, 7, 8, 9, 10]


def test_a_scan_that_is_left_early_leaves_nothing_behind(
    cluster: LakeCluster, tmp_path: Path
) -> None:
    reader = lakehead.scan(str(tmp_path), "orders", rows_max=7)
    assert next(iter(reader)).num_rows == 7
    reader.close()
    assert lakehead.scan(str(tmp_path), "orders").read_all().num_rows == 120


def plan(reader: StoreReader, topic: str, **options: Any) -> tuple[Split, ...]:
    asked = [
        OffsetRange(log=log, start=log.start_offset, end=log.end_offset)
        for log in reader.open_catalog().partitions(topic)
    ]
    return plan_splits(asked, reader.read_indexes(needed_objects(asked)), **options)


def test_splits_are_even_and_cover_everything_once(tmp_path: Path) -> None:
    made = LakeCluster(str(tmp_path))
    made.create_topic("big", 3)
    made.write({("big", 0): [batch(n * 10, size=20_000, codec="none") for n in range(60)]})
    made.write({("big", n): [batch(0, size=100_000)] * 1 for n in (1, 2)})
    reader = store_reader(str(tmp_path))
    (one,) = plan(reader, "big")
    assert [range_.id for range_ in one.ranges] == [("big", 0), ("big", 1), ("big", 2)]
    assert len(plan(reader, "big", splits_wanted=16)) == one.length // (8 << 20) == 1
    many = plan(reader, "big", split_bytes=4 << 20)
    assert len(many) == 4
    assert sum(split.length for split in many) == one.length
    assert max(split.length for split in many) < 2 * min(split.length for split in many)
    assert len(plan(reader, "big", split_bytes=4 << 20, workers=3)) == 6  # none works alone
    assert plan(reader, "big", workers=3) == (one,)
    reached = {TopicPartition("big", number): 0 for number in range(3)}
    for range_ in (range_ for split in many for range_ in split.ranges):
        assert range_.first_offset == reached[range_.id]
        reached[range_.id] = range_.end_offset
        assert sum(size for size, _ in range_.items) == range_.length
    assert list(reached.values()) == [600, 10, 10]
    assert len(plan(reader, "big", splits_min=1000)) == sum(len(r.items) for r in one.ranges)
