"""Promise: whatever befalls the nodes of a cluster and its store, what was acknowledged is there,
once, at its offset, and no two truths are told.

One seed is one world; a failure prints it: `make sim SEED=n` shows what happened in it.
"""

import os
from collections.abc import Iterator

import pytest
import structlog

from tests.simulation.other_process import printed_elsewhere
from tests.simulation.quiet import silence_logs
from tests.simulation.wals import WALS
from tests.simulation.world import run_world
from tests.support.repetitions import repetitions

SEEDS = int(os.environ.get("LAKEHEAD_WORLDS", repetitions(120, 40)))
CHUNK = 20


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    silence_logs()
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_promise_is_broken_in_world(first: int) -> None:
    for seed in range(first, min(first + CHUNK, SEEDS)):
        try:
            run_world(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed} (make sim SEED={seed}): {error!r}") from error


@pytest.mark.parametrize("wal", sorted(WALS))
def test_the_worlds_do_enough_to_break_something(wal: str) -> None:
    worlds = [run_world(seed, wal=wal) for seed in range(20)]
    assert sum(world.ledger.acknowledged for world in worlds) > 300
    assert sum(world.ledger.reads for world in worlds) > 300
    assert sum(world.oracle.state.next_entry for world in worlds) > 300
    lives = [one for world in worlds for node in world.nodes for one in node.incarnations]
    assert sum(one.engine is not None for one in lives) > 60
    said = {line for world in worlds for line in world.trace.said()}
    assert {"is killed", "thaws", "is told to stop", "the store is back"} <= said
    assert "gets a WAL that does not answer" in said


def digests() -> dict[str, list[str]]:
    """What happened in the first worlds on each kind of log."""
    seeds = range(repetitions(4, 2))
    return {wal: [run_world(seed, wal=wal).trace.digest() for seed in seeds] for wal in WALS}


def test_one_seed_is_one_world_in_every_process() -> None:
    assert printed_elsewhere(__name__, digests.__name__) == str(digests())


def test_seeds_are_different_worlds() -> None:
    assert len({run_world(seed, wal="memory").trace.digest() for seed in range(6)}) == 6
