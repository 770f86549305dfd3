"""kill -9 of a sweep at each of its fail-points: the next one finds nothing wrong and finishes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lakehead.storage.failpoints import KILLED
from tests.integration.test_crashes import SWEEP_ALONE
from tests.unit.test_sweep_command import data_files, leave_garbage

ROOT = Path(__file__).resolve().parents[2]


def lakehead(*arguments: str, failpoint: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "lakehead", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT), "LAKEHEAD_FAILPOINT": failpoint},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("name", sorted(SWEEP_ALONE))
def test_a_sweep_killed_at_each_of_its_failpoints_is_finished_by_the_next(
    tmp_path: Path, name: str
) -> None:
    leave_garbage(tmp_path)
    sweep = ("sweep", "--path", str(tmp_path), "--grace", "0", "--margin", "0", "--json")
    assert lakehead(*sweep, failpoint=name).returncode == KILLED
    check = json.loads(lakehead("leak-check", "--path", str(tmp_path), "--json").stdout)
    assert check["missing"] == 0
    assert lakehead(*sweep).returncode == 0
    check = json.loads(lakehead("leak-check", "--path", str(tmp_path), "--json").stdout)
    assert (check["referenced objects"], check["leaked"], check["waiting for their grace"]) == (
        1,
        0,
        0,
    )
    assert data_files(tmp_path) == 1
