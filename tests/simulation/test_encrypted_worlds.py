"""The promises of the simulated worlds hold where objects and logs are encrypted, processes turn
that on and off, and the wrapping key changes.

One seed is one world; a failure prints it: `make sim ENCRYPTED=1 SEED=n` shows what happened in it.
"""

from collections.abc import Iterator

import pytest
import structlog

from lakehead.storage.encryption.chunks import is_encrypted
from tests.simulation.cluster.cluster_world import run_cluster
from tests.simulation.quiet import silence_logs
from tests.simulation.wals import WALS
from tests.simulation.world import run_world
from tests.support.repetitions import repetitions

SEEDS = repetitions(12, 3)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    silence_logs()
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("wal", sorted(WALS))
def test_no_promise_is_broken_in_an_encrypted_world(wal: str) -> None:
    left = set()
    for seed in range(SEEDS):
        try:
            world = run_world(seed, wal=wal, is_encrypted=True)
        except Exception as error:
            how = f"make sim ENCRYPTED=1 WAL={wal} SEED={seed}"
            raise AssertionError(f"seed {seed} ({how}): {error!r}") from error
        left |= {(key[:4], is_encrypted(body)) for key, body in world.bucket.objects.items()}
    assert {("data", True), ("meta", True)} <= left, "it is tried"
    assert {("data", False), ("meta", False)} & left, "plain objects are among them"


def test_no_promise_is_broken_in_an_encrypted_cluster() -> None:
    for seed in range(repetitions(4, 1)):
        try:
            run_cluster(seed, is_encrypted=True)
        except Exception as error:
            how = f"make sim CLUSTERS=1 ENCRYPTED=1 SEED={seed}"
            raise AssertionError(f"seed {seed} ({how}): {error!r}") from error
