"""A Spark worker collects all garbage after each task: what that may cost."""

import subprocess
import sys
from pathlib import Path

from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import TestRecord, encode_batch

TASK = """
import gc, sys
from lakehead.lake.source.data_source import LakeheadDataSource

source = LakeheadDataSource({"path": sys.argv[1], "subscribe": "orders"})
reader = source.reader(source.schema())
for partition in reader.partitions():
    rows = sum(batch.num_rows for batch in reader.read(partition))
print(rows, len(gc.get_objects()), gc.get_freeze_count())
"""


def test_modules_are_not_looked_through_after_each_task(tmp_path: Path) -> None:
    cluster = LakeCluster(str(tmp_path))
    cluster.create_topic("orders")
    cluster.write({("orders", 0): [encode_batch([TestRecord(offset=0, value=b"v")])]})
    ran = subprocess.run(
        [sys.executable, "-c", TASK, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    rows, looked_through, kept = map(int, ran.stdout.split())
    assert rows == 1
    assert kept > 20 * looked_through
