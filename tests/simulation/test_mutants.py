"""The worlds would notice: each bug that is put in on purpose is caught within a few seeds."""

from collections.abc import Iterator

import pytest
import structlog

from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.quiet import silence_logs
from tests.simulation.world import run_world

SEEDS_MAX = 150


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    silence_logs()
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.apply.__name__}-{m.wal}")
def test_worlds_catch(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.apply(monkeypatch)
    for seed in range(mutant.first_seed, mutant.first_seed + SEEDS_MAX):
        try:
            run_world(seed, wal=mutant.wal, merges=mutant.merges, sweeps=mutant.sweeps)
        except (AssertionError, LookupError) as error:  # a world that breaks down tells, too
            print(f"seed {seed}: {error}")
            return
    raise AssertionError(f"nobody noticed in {SEEDS_MAX} worlds")
