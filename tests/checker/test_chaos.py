"""`make chaos` in short: a cluster of real processes under every fault that can be had here."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.serial
@pytest.mark.parametrize(
    ("wal", "seed", "more"),
    [
        ("block", 13, ("--no-tables",)),
        pytest.param("block", 34, (), marks=pytest.mark.slow),
        pytest.param("object", 21, ("--tail", "wal", "--no-tables"), marks=pytest.mark.slow),
        pytest.param(
            "object", 13, ("--security", "SASL_SSL", "--no-tables"), marks=pytest.mark.slow
        ),
        pytest.param("block", 21, ("--encrypted",), marks=pytest.mark.slow),
    ],
)
def test_a_cluster_under_faults_keeps_its_promises(
    tmp_path: Path, wal: str, seed: int, more: tuple[str, ...]
) -> None:
    command = [
        *(sys.executable, "-m", "tests.checker", "--seconds", "6", "--seed", str(seed)),
        *("--wal", wal, "--rate", "50", "--report", str(tmp_path), *more),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No anomaly." in (tmp_path / "report.txt").read_text()
    assert "</svg>" in (tmp_path / "report.html").read_text()
