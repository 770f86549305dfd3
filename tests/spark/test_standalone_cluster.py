"""The data source on a Spark cluster of several workers, whose executors share no process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import TestRecord, encode_batch
from tests.support.standalone_spark import spark_cluster

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 40


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_executors_of_two_workers_read_a_topic(tmp_path: Path) -> None:
    made = LakeCluster(str(tmp_path / "cluster"))
    made.create_topic("orders")
    batches = [encode_batch([TestRecord(offset=n)]) for n in range(RECORDS)]
    made.write({("orders", 0): batches})
    with spark_cluster(tmp_path / "spark", workers=2) as master:
        found = subprocess.run(
            [
                *(sys.executable, "-m", "tests.support.cluster_query"),
                *(master, str(tmp_path / "cluster"), str(tmp_path / "query")),
            ],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
    assert found.returncode == 0, found.stderr
    whole = str(list(range(RECORDS)))
    assert found.stdout.splitlines() == [whole, whole, whole, "executors: 2"]
