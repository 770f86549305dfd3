"""Counts and first rows by the indexes of objects: the numbers of a whole read, of less data."""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.lake.needs import Needs
from lakehead.lake.source.batch_reader import BatchReader
from lakehead.lake.source.options import batch_options
from lakehead.lake.source.rows import rows_of, rows_schema
from lakehead.lake.source.split_partition import SplitPartition
from lakehead.storage.format import object_writer
from lakehead.storage.format.partition_state import PartitionState
from lakehead.storage.format.stream_object import AbortedTransaction, Extension, encode_extension
from lakehead.storage.format.transaction_index import pack_aborted
from lakehead.storage.jobs.compact_objects import JOB as COMPACT
from lakehead.storage.jobs.compact_objects import CompactObjectsOptions
from lakehead.storage.jobs.job import run_job
from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import TestRecord, encode_batch
from tests.support.topic_writer import write_topic

END = 46


def batch(first: int, count: int, size: int = 200_000, **more: Any) -> bytes:
    rng = random.Random(first)
    value = rng.randbytes(size)
    return encode_batch([TestRecord(offset=first + n, value=value) for n in range(count)], **more)


def written(root: Path) -> Path:
    """Partition 0 has every kind of batch, in three objects of several blocks; partition 1 one."""
    cluster = LakeCluster(str(root))
    cluster.create_topic("t", 2)
    whole = [batch(first, 2) for first in range(0, 16, 2)]
    cluster.write({("t", 0): whole}, state=PartitionState())
    abort = AbortedTransaction(
        producer_id=7, first_offset=16, last_offset=26, last_stable_offset=27
    )
    transactions = [
        batch(16, 5, producer_id=7, transactional=True),
        batch(21, 5, producer_id=8, transactional=True),
        batch(26, 1, producer_id=7, transactional=True, control=True),
        batch(27, 3, producer_id=7, transactional=True),
    ]
    state = PartitionState(aborted=pack_aborted([abort]))
    cluster.write({("t", 0): transactions}, state=state)
    compacted = [batch(30, 1, last_offset=35, codec="zstd"), batch(36, 4, last_offset=45)]
    cluster.write({("t", 0): compacted, ("t", 1): [batch(0, 3)]}, state=state)
    return root


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("counts"))


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in objects of a release before, which have no counts."""

    def without_counts(extension: Extension) -> bytes:
        return encode_extension(msgspec.structs.replace(extension, item_record_counts=()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_writer, "encode_extension", without_counts)
        return written(tmp_path_factory.mktemp("former"))


class Read:
    """A read of what is needed: its tasks' bytes, and its rows."""

    def __init__(self, place: Path, needs: Needs, **options: str) -> None:
        given = {"path": str(place), "subscribe": "t", "needs": needs.form(), **options}
        checked = batch_options(given)
        reader = BatchReader(checked, rows_of(checked, rows_schema(checked)))
        tasks = reader.partitions()
        self.fetched = sum(one.split.length for one in tasks if isinstance(one, SplitPartition))
        self.batches = [batch for task in tasks for batch in reader.read(task)]

    @property
    def count(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    def by_partition(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for batch in self.batches:
            for partition in batch.column("partition").to_pylist():
                found[partition] = found.get(partition, 0) + 1
        return found


COUNT = Needs(columns=frozenset())
PARTITIONS = Needs(columns=frozenset({"partition"}))
EVERY = Needs(columns=frozenset({"offset", "partition"}))


def bounds(start: int, end: int) -> Mapping[str, str]:
    return {
        "startingOffsets": json.dumps({"t": {"0": start, "1": min(start, 3)}}),
        "endingOffsets": json.dumps({"t": {"0": end, "1": min(end, 3)}}),
    }


@given(ends=st.tuples(st.integers(0, END), st.integers(0, END)).map(sorted))
def test_a_count_of_any_offsets_is_that_of_a_whole_read(
    place: Path, former: Path, ends: list[int]
) -> None:
    some = bounds(*ends)
    read = Read(place, EVERY, **some)
    for root in (place, former):
        assert Read(root, COUNT, **some).count == read.count
        assert Read(root, PARTITIONS, **some).by_partition() == read.by_partition()


@given(ends=st.tuples(st.integers(0, END), st.integers(0, END)).map(sorted))
def test_a_count_of_undecided_and_aborted_records_is_that_of_a_whole_read(
    place: Path, ends: list[int]
) -> None:
    some = {**bounds(*ends), "kafka.isolation.level": "read_uncommitted"}
    assert Read(place, COUNT, **some).count == Read(place, EVERY, **some).count


def test_a_count_fetches_only_what_an_aborted_transaction_reaches_into(
    place: Path, former: Path
) -> None:
    whole = Read(place, EVERY).fetched
    assert 0 < Read(place, COUNT).fetched <= 14 * 201_000 < whole // 2
    assert Read(place, COUNT, **bounds(0, 16)).fetched == 0
    assert Read(place, COUNT, **bounds(27, END)).fetched < 5 * 201_000
    assert Read(former, COUNT).fetched == whole


@given(limit=st.integers(0, 40))
def test_the_first_rows_are_as_many_as_are_wanted_of_little_data(
    place: Path, former: Path, limit: int
) -> None:
    every = Read(place, EVERY)
    for root in (place, former):
        found = Read(root, Needs(columns=EVERY.columns, limit=limit))
        assert found.count >= min(limit, every.count)
    few = Read(place, Needs(columns=EVERY.columns, limit=min(limit, 6)))
    assert few.fetched <= 6 * 201_000


def test_merged_objects_have_counts(tmp_path: Path) -> None:
    for number in range(8):
        write_topic(tmp_path, "t", {0: [b"%d" % number] * 7}, batch_records=3)
    assert run_job(COMPACT, str(tmp_path), CompactObjectsOptions(count_min=2)).items
    count = Read(tmp_path, COUNT)
    assert (count.count, count.fetched) == (56, 0)
