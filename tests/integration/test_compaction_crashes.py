"""kill -9 of maintenance at each of its fail-points: readers see nothing of it, and the next run
finishes.
"""

import asyncio
import json
import random
import subprocess
from pathlib import Path

import pytest

import lakehead
from lakehead.storage.clock import SystemClock
from lakehead.storage.failpoints import KILLED
from lakehead.storage.garbage import LeakReport, check_leaks
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import COMPACTED, Record, TopicConfig
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import FileStore
from tests.integration.test_crashes import MAINTENANCE_ALONE
from tests.support.record_batches import TestRecord
from tests.support.template_process import lakehead_command
from tests.support.topic_writer import write_topic

ENTRIES = tuple(
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("metadata_entry_planned", "metadata_entry_put")
)
"""Fail-points of every commit, which other tests come to."""
PLACES = (*sorted(MAINTENANCE_ALONE), *ENTRIES)
UPLOADS, KEYS = 4, 40


def maintain(folder: Path, *, failpoint: str = "") -> "subprocess.CompletedProcess[str]":
    return lakehead_command("maintain", "--path", str(folder), "--json", failpoint=failpoint)


async def _leaks(folder: Path) -> LeakReport:
    store = FileStore(folder / "store")
    log = await MetadataLog.open(store, writer_id="t", clock=SystemClock(), rng=random.Random(2))
    return await check_leaks(store, log)


def leaks(folder: Path) -> LeakReport:
    return asyncio.run(_leaks(folder))


def newest(folder: Path) -> dict[bytes, tuple[int, bytes]]:
    """What a reader of the whole topic ends up with."""
    rows = lakehead.scan(str(folder / "store"), "t").read_all().to_pylist()
    assert [row["offset"] for row in rows] == sorted({row["offset"] for row in rows})
    return {row["key"]: (row["offset"], row["value"]) for row in rows}


def in_log(folder: Path, *records: Record) -> MetadataImage:
    async def commit() -> MetadataImage:
        store = FileStore(folder / "store")
        log = await MetadataLog.open(
            store, writer_id="t", clock=SystemClock(), rng=random.Random(1)
        )
        return await log.commit(records) if records else log.state

    return asyncio.run(commit())


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Topic `t`, compacted, of four objects in which each key has a record."""
    for number in range(UPLOADS):
        values = [
            TestRecord(offset=0, timestamp=1000 + number, key=b"k%d" % key, value=b"%d" % number)
            for key in range(KEYS)
        ]
        write_topic(tmp_path / "store", "t", {0: values}, batch_records=7, codec="zstd")
    topic_id = in_log(tmp_path).topics["t"].topic_id
    in_log(tmp_path, TopicConfig(topic_id=topic_id, configs={"cleanup.policy": "compact"}))
    return tmp_path


@pytest.mark.parametrize("name", PLACES)
def test_maintenance_killed_at_each_of_its_failpoints_is_finished_by_the_next(
    cluster: Path, name: str
) -> None:
    before = newest(cluster)
    assert len(before) == KEYS
    assert maintain(cluster, failpoint=name).returncode == KILLED
    assert newest(cluster) == before
    assert not leaks(cluster).missing
    again = maintain(cluster)
    assert again.returncode == 0, again.stderr
    was_left = name not in {"compaction_committed", "metadata_entry_put"}
    assert json.loads(again.stdout)["compacted_partitions"] == was_left
    assert newest(cluster) == before
    state = in_log(cluster)
    (stream,) = state.streams.values()
    assert {state.objects[one.object_key].kind for one in stream.extents} == {COMPACTED}
    assert lakehead.scan(str(cluster / "store"), "t").read_all().num_rows == KEYS
    report = leaks(cluster)
    assert (report.missing, report.leaked, report.strange) == ((), (), ())
