"""A short week; `make week` has a longer one."""

import pytest

from tests.operations_week.week import Options, run


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.timeout(600)
def test_clients_see_no_error_in_a_week_of_operation() -> None:
    report = run(Options(pause_s=5))
    assert report.anomalies == [], report.text()
    assert len(report.steps) == 9
