"""A short campaign of kills; `make kills` runs a long one."""

from pathlib import Path

import pytest

from tests.kills.kill_campaign import PLACES, campaign, places
from tests.kills.kill_checks import faults


@pytest.mark.timeout(400)
def test_jobs_that_are_killed_anywhere_break_nothing(tmp_path: Path) -> None:
    with campaign(tmp_path, seed=5) as running:
        running.let_loose(kills=4, seconds=6)
        running.settle()
        assert faults(running) == []
        assert sum(running.tally.kills.values()) >= 1


def test_every_job_has_places_to_be_killed_at() -> None:
    assert all(len(found) > 2 or job == "apply-retention" for job, found in places().items())
    assert set(places()) == set(PLACES)
