"""How much a read of a part fetches: found by the indexes of objects, counted in bytes."""

import random
from pathlib import Path

from lakehead.lake.decode.columns import COLUMNS
from lakehead.lake.decode.decoder import RecordDecoder
from lakehead.lake.offsets import resolve
from lakehead.lake.planner import needed_objects, plan_splits
from lakehead.lake.positions import Bounds, Position
from lakehead.lake.record_reader import read_records
from lakehead.lake.snapshot import Snapshots
from lakehead.lake.source.batch_reader import BatchReader
from lakehead.lake.source.options import batch_options
from lakehead.lake.source.rows import RecordRows
from lakehead.lake.source.split_partition import SplitPartition
from lakehead.lake.store_reader import StoreReader
from lakehead.storage.clock import SystemClock
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
