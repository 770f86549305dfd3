"""The clusters would notice: each bug that is put in on purpose is caught within a few seeds."""

from collections.abc import Iterator

import pytest
import structlog

from tests.simulation.cluster.cluster_mutants import MUTANTS, Mutant
from tests.simulation.cluster.cluster_world import run_cluster
from tests.simulation.quiet import silence_logs

SEEDS_MAX = 60


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    silence_logs()
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.apply.__name__)
def test_clusters_catch(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.apply(monkeypatch)
    for seed in range(mutant.first_seed, mutant.first_seed + SEEDS_MAX):
        try:
            run_cluster(seed, wal=mutant.wal, kinds=[mutant.kind])
        except AssertionError as error:
            print(f"seed {seed}: {error}")
            return
    raise AssertionError(f"nobody noticed in {SEEDS_MAX} clusters")
