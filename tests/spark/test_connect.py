"""The data source in Spark Connect."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import TestRecord, encode_batch

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_batches_streams_and_views_work_in_connect(tmp_path: Path) -> None:
    cluster = LakeCluster(str(tmp_path / "cluster"))
    cluster.create_topic("orders")
    cluster.write({("orders", 0): [encode_batch([TestRecord(offset=n) for n in range(10)])]})
    found = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.support.connect_process",
            str(tmp_path / "cluster"),
            tmp_path,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    whole = str(list(range(10)))
    assert found.stdout.splitlines() == ["pyspark.sql.connect.session", whole, whole, "[7]"]
