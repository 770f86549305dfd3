"""Ctrl-C in a terminal: a benchmark and its servers get the signal together, and all end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bench.apache_kafka.jars import jars_directory
from bench.maven import MissingTool

ROOT = Path(__file__).resolve().parents[2]
STATUS, WITHIN_S = 130, 30.0


def test_a_bench_that_is_cut_short_says_so_at_once(tmp_path: Path) -> None:
    """With a topic at work: its deletion would wait a minute for the server, which has ended."""
    try:
        jars_directory()
    except MissingTool as missing:
        pytest.skip(str(missing))
    kept = tmp_path / "kept.json"
    choice = {"ONLY": "lakehead", "LOADS": "produce-16k", "RECORDS": "100000000", "KEEP": str(kept)}
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "bench"],
        cwd=ROOT,
        env=os.environ | choice,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        output = ""
        while "warming" not in output:
            line = process.stdout.readline()
            assert line, output
            output += line
        wait_for_tool(process.pid)
        interrupted = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        output += process.communicate(timeout=WITHIN_S)[0]
    assert time.monotonic() - interrupted < WITHIN_S
    assert process.returncode == STATUS, output
    assert f"cut short; KEEP={kept} goes on with it" in output
    assert "Traceback" not in output


def wait_for_tool(bench: int) -> None:
    """Wait until Kafka's producer runs."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if any(one.name() == "java" for one in psutil.Process(bench).children(recursive=True)):
            return
    raise TimeoutError("no producer within a minute")
