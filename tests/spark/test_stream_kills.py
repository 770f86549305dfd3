"""A streaming query of its own process, killed at the steps of its batches (`STREAM_KILLS` times):
no record is lost or doubled in its sink, with a cluster in a folder and in S3.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bench.s3_server import S3Server
from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import TestRecord, encode_batch

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 400.0
KILLS = int(os.environ.get("STREAM_KILLS", "1"))
STEPS = ("checkpoint/offsets/{}", "checkpoint/commits/{}", "rows/_spark_metadata/{}")
"""What Spark writes before batch N, after it, and with its rows."""


def run(store: str, folder: Path, until: str | None) -> None:
    """Run the query; kill it, with its JVM, as soon as there is a file `until`."""
    places = (store, str(folder / "checkpoint"), str(folder / "rows"))
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.stream_process", *places],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        if until is None:
            assert process.wait(DEADLINE_S) == 0, (folder / "log").read_text()
            return
        deadline = time.monotonic() + DEADLINE_S
        while not (folder / until).exists():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.001)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def rows(folder: Path) -> Counter[tuple[int, int]]:
    """Partition and offset of every row in the files that the sink's log names."""
    found: Counter[tuple[int, int]] = Counter()
    log = {int(one.name.split(".")[0]): one for one in (folder / "_spark_metadata").glob("[0-9]*")}
    # A compacted part of the log stands for all before it.
    whole = max((n for n, one in log.items() if one.name.endswith(".compact")), default=-1)
    for number, part in log.items():
        if number >= whole:
            for line in part.read_text().splitlines()[1:]:
                table = pq.read_table(folder / Path(json.loads(line)["path"]).name).to_pylist()
                found.update((row["partition"], row["offset"]) for row in table)
    return found


@pytest.mark.timeout(600 * (KILLS + 1))
@pytest.mark.slow
@pytest.mark.parametrize("place", ["folder", "s3"])
def test_a_query_that_is_killed_anywhere_reads_each_record_once(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = str(tmp_path / "cluster")
    if place == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        store = f"{server.uri}/cluster?endpoint={server.endpoint}&region={server.region}"
    cluster = LakeCluster(store)
    cluster.create_topic("orders", 2)
    written = [0, 0]

    def write(count: int) -> None:
        batches = {}
        for partition in range(2):
            start = written[partition]
            records = [TestRecord(offset=start + n) for n in range(count)]
            batches["orders", partition] = [encode_batch(records)]
            written[partition] += count
        cluster.write(batches)

    for number in range(KILLS):
        write(50)
        run(store, tmp_path, STEPS[number % len(STEPS)].format(2 * number))
    cluster.add_partitions("orders", 1)
    run(store, tmp_path, None)
    assert rows(tmp_path / "rows") == Counter(
        (p, offset) for p in range(2) for offset in range(written[p])
    )
