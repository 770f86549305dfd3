"""How much a read of a part fetches: found by the indexes of objects, counted in bytes."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.lake.catalog import PartitionLog
from lakehead.lake.decode.columns import COLUMNS
from lakehead.lake.decode.decoder import RecordDecoder
from lakehead.lake.needs import ALL, Needs
from lakehead.lake.offsets import resolve
from lakehead.lake.planner import OffsetRange, needed_objects, plan_splits
from lakehead.lake.positions import Bounds, Position, TopicPartition
from lakehead.lake.record_reader import read_records
from lakehead.lake.snapshot import Snapshots
from lakehead.lake.source.batch_reader import BatchReader
from lakehead.lake.source.options import batch_options
from lakehead.lake.source.rows import RecordRows, rows_of, rows_schema
from lakehead.lake.source.split_partition import SplitPartition
from lakehead.lake.store_reader import StoreReader
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError
from lakehead.storage.format.stream_object import SUFFIX_GUESS
from lakehead.storage.object_store import FileStore
from lakehead.storage.object_store.counted import CountedStore
from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import TestRecord, encode_batch

DAY_MS = 86_400_000
DAYS, BATCHES, RECORDS = 12, 200, 10
BLOCK = 1_300_000


def test_a_day_of_many_reads_a_day(tmp_path: Path) -> None:
    cluster, rng = LakeCluster(str(tmp_path)), random.Random(1)
    cluster.create_topic("t")
    for day in range(DAYS):
        batches = []
        for number in range(BATCHES):
            first = (day * BATCHES + number) * RECORDS
            at = day * DAY_MS + number * DAY_MS // BATCHES
            records = [
                TestRecord(offset=first + n, timestamp=at + n, value=rng.randbytes(2000))
                for n in range(RECORDS)
            ]
            batches.append(encode_batch(records))
        cluster.write({("t", 0): batches})
    store = CountedStore(FileStore(tmp_path), clock=SystemClock())
    reader = StoreReader(store)
    snapshot = Snapshots(reader).now()
    before = store.stats.get.bytes
    start, end = 7 * DAY_MS, 8 * DAY_MS
    bounds = Bounds(starting=Position("timestamp", start), ending=Position("timestamp", end))
    asked = resolve(snapshot, snapshot.catalog.partitions("t"), bounds)
    splits = plan_splits(asked, snapshot.read_indexes(needed_objects(asked)))
    stamps: list[int] = []
    for split in splits:
        for batch in read_records(reader, split.ranges, RecordDecoder(("timestamp",))):
            stamps += [stamp // 1000 for stamp in batch.column(0).cast("int64").to_pylist()]
    assert len(stamps) == BATCHES * RECORDS
    assert start <= min(stamps)
    assert max(stamps) < end
    fetched = store.stats.get.bytes - before
    whole = sum(path.stat().st_size for path in tmp_path.glob("data/*/*"))
    # The day, the block at each of its ends, and the ends of a few objects.
    assert fetched < whole / DAYS + 2 * BLOCK + 6 * SUFFIX_GUESS
    reader.end()


def test_many_small_partitions_are_one_task(tmp_path: Path) -> None:
    cluster = LakeCluster(str(tmp_path))
    cluster.create_topic("t", 500)
    for start in (0, 1):
        batch = encode_batch([TestRecord(offset=start, value=b"v")])
        cluster.write({("t", partition): [batch] for partition in range(500)})
    given = batch_options({"path": str(tmp_path), "subscribe": "t"})
    (task,) = BatchReader(given, RecordRows(record_columns=COLUMNS)).partitions()
    assert isinstance(task, SplitPartition)
    assert len({range_.partition for range_ in task.split.ranges}) == 500


def test_needs_leave_out_partitions_offsets_and_old_blocks(tmp_path: Path) -> None:
    """Bytes and requests of a plan and its read, for what a query needs."""
    cluster, rng = LakeCluster(str(tmp_path)), random.Random(2)
    cluster.create_topic("t", 4)
    for day in range(DAYS):
        records = [
            TestRecord(
                offset=day * RECORDS + n, timestamp=day * DAY_MS + n, value=rng.randbytes(9000)
            )
            for n in range(RECORDS)
        ]
        batch = encode_batch(records)
        cluster.write({("t", partition): [batch] for partition in range(4)})
    store = CountedStore(FileStore(tmp_path), clock=SystemClock())
    reader = StoreReader(store)
    snapshot = Snapshots(reader).now()
    whole = resolve(snapshot, snapshot.catalog.partitions("t"), Bounds())

    def read(needs: Needs) -> tuple[int, int, int]:
        """Return the records, the requests, and the fetched bytes beside those of indexes."""
        bytes_, requests = store.stats.get.bytes, store.stats.get.requests
        asked = needs.narrowed(whole)
        indexes = snapshot.read_indexes(needed_objects(asked))
        bytes_ = store.stats.get.bytes
        splits = plan_splits(asked, indexes)
        found = sum(
            batch.num_rows
            for split in splits
            for batch in read_records(reader, split.ranges, RecordDecoder(("offset",)))
        )
        return found, store.stats.get.requests - requests, store.stats.get.bytes - bytes_

    every, requests, all_bytes = read(ALL)
    # An index of each object, and its data: the four partitions lie next to each other.
    assert (every, requests) == (4 * DAYS * RECORDS, DAYS + 4 * DAYS)
    block = all_bytes // (4 * DAYS)
    for needs, expected, indexes, blocks in (
        (Needs(partitions=frozenset([2])), DAYS * RECORDS, DAYS, DAYS),
        (Needs(first_offset=25, end_offset=35), 4 * RECORDS, 2, 8),
        (Needs(partitions=frozenset([1]), since_ms=9 * DAY_MS), 3 * RECORDS, 3, 3),
        (Needs(partitions=frozenset()), 0, 0, 0),
        (Needs(since_ms=DAYS * DAY_MS), 0, 0, 0),
    ):
        found, requests, bytes_ = read(needs)
        assert (found, requests) == (expected, indexes + blocks)
        assert bytes_ == block * blocks
    reader.end()


def test_blocks_of_an_unknown_time_are_read() -> None:
    assert not OffsetRange(log=LOG, start=0, end=5, since_ms=9).is_older(-1)


LOG = PartitionLog(
    id=TopicPartition("t", 0),
    topic_id="1",
    stream_id=1,
    start_offset=0,
    end_offset=5,
    extents=(),
)
STORED = [
    (partition, offset, time)
    for partition, times in enumerate(([5, 3, 9, 1, 7, 7, 2, 8], [4, 4, 6, 0, 1, 9]))
    for offset, time in enumerate(times)
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A topic of two partitions with times in no order, in objects of two records or three."""
    root = str(tmp_path_factory.mktemp("needs"))
    cluster = LakeCluster(root)
    cluster.create_topic("t", 2)
    for partition in (0, 1):
        rows = [one for one in STORED if one[0] == partition]
        for first in range(0, len(rows), 2 + partition):
            records = [
                TestRecord(offset=offset, timestamp=time, value=b"v")
                for _, offset, time in rows[first : first + 2 + partition]
            ]
            cluster.write({("t", partition): [encode_batch(records)]})
    return root


numbers = st.integers(0, 10)


@given(
    partitions=st.none() | st.frozensets(st.integers(0, 2)),
    first=numbers,
    end=numbers,
    since=numbers,
    columns=st.none() | st.frozensets(st.sampled_from(COLUMNS)),
)
def test_a_read_of_needs_has_all_that_is_needed(
    place: str,
    partitions: frozenset[int] | None,
    first: int,
    end: int,
    since: int,
    columns: frozenset[str] | None,
) -> None:
    needs = Needs(
        columns=columns,
        partitions=partitions,
        first_offset=first,
        end_offset=end,
        since_ms=since,
    )
    options = batch_options({"path": place, "subscribe": "t", "needs": needs.form()})
    assert options.needs == needs
    reader = BatchReader(options, rows_of(options, rows_schema(options)))
    batches = [batch for one in reader.partitions() for batch in reader.read(one)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    wanted = [
        one
        for one in STORED
        if (partitions is None or one[0] in partitions)
        and first <= one[1] < end
        and one[2] >= since
    ]
    if columns is None:
        found = {
            (row["partition"], row["offset"], row["timestamp"].microsecond // 1000) for row in rows
        }
        assert found >= set(wanted)
        assert all(first <= offset < end for _, offset, _ in found)
    else:
        assert len(rows) >= len(wanted)
        for row in rows:
            has_value = {name for name in COLUMNS if name != "key" and row[name] is not None}
            assert has_value == columns - {"key"}


@given(
    a=st.builds(Needs, first_offset=numbers, since_ms=numbers),
    b=st.builds(Needs, end_offset=numbers),
)
def test_both_is_covered_by_each_and_either_covers_each(a: Needs, b: Needs) -> None:
    assert a.either(b).covers(a)
    assert a.either(b).covers(b)
    assert a.covers(a.both(b))
    assert b.covers(b.both(a))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"offset":[0,1]}',
        '{"offsets":[0]}',
        '{"since":"x"}',
        '{"columns":"a"}',
        '{"partitions":["0"]}',
    ],
)
def test_needs_that_are_not_of_the_form_are_an_error_that_says_so(text: str) -> None:
    with pytest.raises(SettingsError, match="option 'needs' must be like"):
        batch_options({"path": "/p", "subscribe": "t", "needs": text})


def test_a_data_folder_in_place_of_its_store_is_named_with_the_store(tmp_path: Path) -> None:
    LakeCluster(str(tmp_path / "store")).create_topic("t")
    options = batch_options({"path": str(tmp_path), "subscribe": "t"})
    with pytest.raises(SettingsError, match=rf"did you mean {tmp_path / 'store'}\?"):
        BatchReader(options, RecordRows(record_columns=COLUMNS)).partitions()
