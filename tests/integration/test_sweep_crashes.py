"""kill -9 of a sweep at each of its fail-points: the next one finds nothing wrong and finishes."""

import json
from pathlib import Path

import pytest

from lakehead.storage.failpoints import KILLED
from tests.integration.test_crashes import SWEEP_ALONE
from tests.support.template_process import lakehead_command
from tests.unit.test_sweep_command import data_files, leave_garbage


@pytest.mark.parametrize("name", sorted(SWEEP_ALONE))
def test_a_sweep_killed_at_each_of_its_failpoints_is_finished_by_the_next(
    tmp_path: Path, name: str
) -> None:
    leave_garbage(tmp_path)
    sweep = ("sweep", "--yes", "--path", str(tmp_path), "--grace", "0", "--margin", "0", "--json")
    assert lakehead_command(*sweep, failpoint=name).returncode == KILLED
    check = json.loads(lakehead_command("leak-check", "--path", str(tmp_path), "--json").stdout)
    assert check["missing"] == 0
    assert lakehead_command(*sweep).returncode == 0
    check = json.loads(lakehead_command("leak-check", "--path", str(tmp_path), "--json").stdout)
    assert (check["referenced_objects"], check["leaked"], check["waiting_for_their_grace"]) == (
        1,
        0,
        0,
    )
    assert data_files(tmp_path) == 1
