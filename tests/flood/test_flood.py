"""A short flood; `make flood` runs one of full size."""

from pathlib import Path

import pytest

from tests.flood.flood_run import Options, flood

COUNTS = {"idle": 500, "slow": 100, "deaf": 100, "handshakes": 20}
LEAST_S = 2.0
"""The tests' machine is busy: what is held here is that the honest client is served at all."""


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.timeout(400)
def test_hostile_clients_of_every_kind_leave_an_honest_one_served(tmp_path: Path) -> None:
    options = Options(counts=COUNTS, seconds=5, least_s=LEAST_S)
    with flood(tmp_path, options) as running:
        result = running.run()
    assert result.missed == []
    assert result.fenced == 0
    assert result.phases[-1].name == "all together"
    assert all(phase.latencies.produce for phase in result.phases)
