"""Promise: whatever befalls the nodes of a cluster, their network and their store, no acknowledged
record is lost or changed, one node leads a partition at a time, a fenced one answers no read after
its session; transactions are seen whole, once and not before their commit, or never; and when
nothing fails any more, everything is led again before long, and rests, and no transaction is open.

One seed is one world; a failure prints it: `make sim CLUSTERS=1 SEED=n` shows what happened in it.
"""

import os
from collections import Counter
from collections.abc import Iterator

import pytest
import structlog

from tests.checker.transaction_history import Fate
from tests.simulation.cluster.cluster_world import run_cluster
from tests.simulation.quiet import silence_logs
from tests.support.repetitions import repetitions

SEEDS = int(os.environ.get("LAKEHEAD_CLUSTERS", repetitions(8, 4)))
CHUNK = 4


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    silence_logs()
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_promise_is_broken_in_cluster(first: int) -> None:
    for seed in range(first, min(first + CHUNK, SEEDS)):
        try:
            run_cluster(seed)
        except Exception as error:
            how = f"make sim CLUSTERS=1 SEED={seed}"
            raise AssertionError(f"seed {seed} ({how}): {error!r}") from error


def test_a_seed_is_one_cluster() -> None:
    assert run_cluster(1).trace.digest() == run_cluster(1).trace.digest()


def test_transactions_end_in_every_way() -> None:
    """The judge of transactions has something to judge."""
    ends: Counter[str] = Counter()
    for seed in range(4):
        ends += run_cluster(seed).transactions.ends
    assert ends[Fate.COMMITTED] >= 20
    assert ends[Fate.ABORTED] >= 10
    assert min(ends["crashed producer"], ends["Fenced"], ends["left open"]) >= 1
