"""Retention goes by the clock of the machine that runs it, and S3 refuses a wrong one."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import lakehead
from bench.s3_server import S3Server
from lakehead.storage.jobs.apply_retention import JOB as RETAIN
from lakehead.storage.jobs.job import plan_job
from tests.support.record_batches import TestRecord
from tests.support.topic_writer import write_topic

DAY_S = 86_400
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *out) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, out);
    if (id == CLOCK_REALTIME) out->tv_sec += atol(getenv("CLOCK_AHEAD_S"));
    return result;
}
"""


@pytest.fixture
def wrong_clock(tmp_path: Path) -> Path:
    """A library that makes the wall clock of a process wrong by CLOCK_AHEAD_S seconds."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc) on the path")
    source, library = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(CLOCK)
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library


def retain(uri: str, library: Path, ahead_s: int) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"LD_PRELOAD": str(library), "CLOCK_AHEAD_S": str(ahead_s)}
    command = [sys.executable, "-m", "lakehead", "apply-retention", "--path", uri]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, timeout=60
    )


def test_retention_by_a_clock_that_is_far_ahead_removes_nothing_from_s3(
    tmp_path: Path, s3_server: S3Server, wrong_clock: Path
) -> None:
    """S3 takes no signature that is more than 15 minutes off, so no more is lost to the clock."""
    folder = tmp_path / "written"
    now_ms = int(time.time() * 1000)
    young = TestRecord(offset=0, timestamp=now_ms - 6 * DAY_S * 1000, value=b"young")
    write_topic(folder, "t", {0: [young]})
    shutil.copytree(folder, s3_server.folder / s3_server.bucket / "c")
    uri = f"{s3_server.uri}/c"
    assert plan_job(RETAIN, uri).units == ()
    refused = retain(uri, wrong_clock, 2 * DAY_S)
    assert refused.returncode == 1
    assert "the clock of this machine is wrong" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert retain(uri, wrong_clock, 600).returncode == 0
    assert lakehead.scan(uri, "t").read_all().num_rows == 1
    assert retain(str(folder), wrong_clock, 2 * DAY_S).returncode == 0
    left = lakehead.scan(str(folder), "t").read_all().num_rows
    assert left == 0, (
        "a folder has no clock of its own: as with Kafka's logs, the machine's decides"
    )
    old = TestRecord(offset=0, timestamp=now_ms - 8 * DAY_S * 1000, value=b"old")
    write_topic(folder, "u", {0: [old]})
    shutil.copytree(folder, s3_server.folder / s3_server.bucket / "d")
    planned = plan_job(RETAIN, f"{s3_server.uri}/d")
    assert [unit.item.topic for unit in planned.units] == ["u"]
