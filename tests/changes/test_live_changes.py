"""A short campaign of changes and kills; `make changes` runs a long one."""

from pathlib import Path

import pytest

from tests.changes import change_campaign, postgres


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_tables_equal_a_database_all_of_whose_followers_are_killed(tmp_path: Path) -> None:
    if missing := postgres.missing():
        pytest.skip(missing)
    assert change_campaign.run(tmp_path, rows=20_000, seed=7) == []
