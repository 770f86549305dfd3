"""Reads at the very moment in which objects are merged, compacted by keys and swept.

A read is stopped before each of its requests to the store, in turn; while it waits, all upkeep that
is possible runs, with no grace period at all: harder than any cluster is on its readers. What a
read returns is what it would have returned without that.
"""

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

import lakehead
import lakehead.lake.store_reader
from lakehead.lake.errors import DataLoss
from lakehead.lake.jobs.materialize import materialize
from lakehead.lake.jobs.table_settings import MaterializeSettings
from lakehead.lake.store_reader import StoreReader
from lakehead.lake.topic_scan import Scan
from lakehead.storage.encryption.settings import EncryptionSettings
from lakehead.storage.jobs.compact_objects import JOB as COMPACT
from lakehead.storage.jobs.compact_objects import CompactObjectsOptions
from lakehead.storage.jobs.compact_topics import JOB as COMPACT_TOPICS
from lakehead.storage.jobs.job import run_job
from lakehead.storage.jobs.sweep import JOB as SWEEP
from lakehead.storage.jobs.sweep import SweepOptions
from lakehead.storage.object_store import Buffer, FileStore
from tests.support.declared_topics import configure, delete_topic, trim
from tests.support.record_batches import TestRecord
from tests.support.repetitions import repetitions
from tests.support.topic_writer import write_topic

Upkeep = Callable[[Path], None]
Place = tuple[int, int]
OBJECTS, RECORDS = repetitions(3, 2), 20


class Interleaved(FileStore):
    """Before its request number `at` of those for data, upkeep runs to its end."""

    def __init__(self, root: Path, at: int, upkeep: Callable[[], None]) -> None:
        super().__init__(root)
        self.requests = 0
        self._at = at
        self._upkeep = upkeep

    async def _turn(self, key: str) -> None:
        if not key.startswith("data/"):
            return
        number, self.requests = self.requests, self.requests + 1
        if number == self._at:
            await asyncio.to_thread(self._upkeep)

    async def get(self, key: str) -> bytes:
        await self._turn(key)
        return await super().get(key)

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        await self._turn(key)
        return await super().get_range(key, start, length)

    async def get_range_into(self, key: str, start: int, target: memoryview) -> None:
        await self._turn(key)
        await super().get_range_into(key, start, target)

    async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        await self._turn(key)
        return await super().get_suffix(key, length)


def swept(root: Path) -> None:
    run_job(SWEEP, str(root), SweepOptions(grace_s=0, margin_s=0))


def merged(root: Path) -> None:
    assert run_job(COMPACT, str(root), CompactObjectsOptions(target_mib=1024, count_min=2)).items
    swept(root)


def compacted(root: Path) -> None:
    configure(root, "orders", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    assert run_job(COMPACT_TOPICS, str(root)).partitions
    swept(root)


def retained(root: Path) -> None:
    trim(root, "orders", 0, (OBJECTS - 1) * RECORDS)
    swept(root)


def deleted(root: Path) -> None:
    delete_topic(root, "orders")
    swept(root)


def fill(root: Path, *, padding: int = 0) -> Counter[Place]:
    """Topic `orders` in several objects, each key once in an object."""
    for number in range(OBJECTS):
        values = [
            TestRecord(
                offset=0,
                timestamp=number * RECORDS + n,
                key=b"%d" % (n or number),
                value=json.dumps({"n": number * RECORDS + n}).encode() + b" " * padding,
            )
            for n in range(RECORDS)
        ]
        write_topic(root, "orders", {0: values, 1: values}, partitions=2, batch_records=7)
    return Counter((p, n) for p in (0, 1) for n in range(OBJECTS * RECORDS))


def rows_of(scan: Scan) -> Counter[Place]:
    table = scan.read_all()
    for value, offset in zip(
        *(table.column(n).to_pylist() for n in ("value", "offset")), strict=True
    ):
        assert json.loads(value) == {"n": offset}
    places = zip(*(table.column(n).to_pylist() for n in ("partition", "offset")), strict=True)
    return Counter(places)


def scanned(store: FileStore) -> Counter[Place]:
    return rows_of(lakehead.scan(store, "orders", columns=["partition", "offset", "value"]))


def scanned_from_a_time(store: FileStore) -> Counter[Place]:
    columns = ["partition", "offset", "value"]
    return rows_of(lakehead.scan(store, "orders", columns=columns, starting_timestamp=RECORDS + 3))


def read_into_a_table(store: FileStore) -> Counter[Place]:
    """Rounds of one split each, so that the last is planned long after the first."""
    root = store.uri.removeprefix("file://").removeprefix("file:")
    table = f"{root}-table-{id(store)}"
    reader = StoreReader(store)
    readers = lakehead.lake.store_reader._readers._by_place
    place = root, EncryptionSettings()
    readers[place] = reader
    try:
        settings = MaterializeSettings(
            path=root, topic="orders", table=table, schema="n int", split_bytes=1, commit_bytes=1
        )
        materialize(settings)
    finally:
        del readers[place]
        reader.end()
    rows = DeltaTable(table).to_pyarrow_table(columns=["_partition", "_offset", "n"]).to_pydict()
    assert rows["n"] == rows["_offset"]
    return Counter(zip(rows["_partition"], rows["_offset"], strict=True))


Reading = Callable[[FileStore], Counter[Place]]


def each_moment(cluster: Path, read: Reading, upkeep: Upkeep) -> Sequence[Counter[Place] | str]:
    """What a read of a cluster returns, or is refused with, where upkeep runs before a request of
    its, for each of these.
    """
    found: list[Counter[Place] | str] = []
    while True:
        root = cluster.with_name(f"{cluster.name}-{len(found)}")
        shutil.copytree(cluster, root)
        store = Interleaved(root, len(found), partial(upkeep, root))
        try:
            rows: Counter[Place] | str = read(store)
        except DataLoss as error:
            rows = str(error)
        if store.requests <= len(found):
            return found
        found.append(rows)


@pytest.mark.parametrize("read", [scanned, scanned_from_a_time, read_into_a_table])
def test_reads_return_the_same_whenever_objects_are_merged_and_swept(
    tmp_path: Path, read: Reading
) -> None:
    expected = fill(cluster := tmp_path / "cluster")
    if read is scanned_from_a_time:
        expected = Counter(place for place in expected if place[1] >= RECORDS + 3)
    found = each_moment(cluster, read, merged)
    assert len(found) >= 2 * OBJECTS
    assert [rows == expected for rows in found] == [True] * len(found)


def test_a_pass_goes_on_in_the_middle_of_an_object_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects of several blocks, read one by one."""
    monkeypatch.setattr(lakehead.lake.store_reader, "FETCH_BYTES", 1)
    monkeypatch.setattr(lakehead.lake.store_reader, "_FETCHES_AHEAD", 0)
    expected = fill(cluster := tmp_path / "cluster", padding=1 << 17)
    found = each_moment(cluster, scanned, merged)
    assert len(found) > 4 * OBJECTS  # an index and a block of each partition would be so many
    assert [rows == expected for rows in found] == [True] * len(found)


@pytest.mark.parametrize("read", [scanned, read_into_a_table])
def test_reads_beside_compaction_have_the_newest_record_of_each_key(
    tmp_path: Path, read: Reading
) -> None:
    """And nothing twice: the others, they have or have not."""
    everything = fill(cluster := tmp_path / "cluster")
    newest = {(p, (OBJECTS - 1) * RECORDS + n) for p in (0, 1) for n in range(1, RECORDS)}
    found = each_moment(cluster, read, compacted)
    assert len(found) >= 2 * OBJECTS
    for rows in found:
        assert isinstance(rows, Counter)
        assert newest <= rows.keys()
        assert rows <= everything


@pytest.mark.parametrize("upkeep", [retained, deleted])
@pytest.mark.parametrize("read", [scanned, read_into_a_table])
def test_reads_beside_deletion_have_all_rows_or_say_what_is_gone(
    tmp_path: Path, read: Reading, upkeep: Upkeep
) -> None:
    expected = fill(cluster := tmp_path / "cluster")
    found = each_moment(cluster, read, upkeep)
    assert len(found) >= 2 * OBJECTS
    for rows in found:
        if isinstance(rows, str):
            assert "were deleted while they were read" in rows
        else:
            assert rows == expected
