"""Delta tables on a real S3 server: delta-spark beside delta-rs, and why there is a lease."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.s3_server import S3Server
from lake.spark import cache_folder

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.skipif(
    not list(cache_folder().glob("*-s3a.jars")),
    reason="the jars of s3a (690 MB) are not in the cache: see docs/tables/upsert.md",
)
def test_both_engines_on_one_bucket(s3_server: S3Server) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.s3_delta_process", s3_server.uri],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["mixed"] == found["rs"] == found["after upkeep"]
    assert found["read by spark"] == len(found["rs"]) == 6
    assert found["last offset"] == 79
    # Two engines at once, without a lease: what delta-rs had committed is gone.
    assert found["after a race"] == ["first"]
