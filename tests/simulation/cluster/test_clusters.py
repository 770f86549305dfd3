"""Promise: whatever befalls the nodes of a cluster, their network and their store, no acknowledged
record is lost or changed, one node leads a partition at a time, a fenced one answers no read after
its session; transactions are seen whole, once and not before their commit, or never; members of
groups get records by the rules of `share_judge` and `consumer_judge`; and when nothing fails any
more, everything is led again before long, and rests, no transaction is open, and groups come to the
end.

One seed is one world; a failure prints it: `make sim CLUSTERS=1 SEED=n` shows what happened in it.
"""

import os
from collections import Counter
from collections.abc import Iterator

import pytest
import structlog

from lakehead.broker.share.record_state import AcknowledgeType
from tests.checker.transaction_history import Fate
from tests.simulation.cluster.cluster_world import Kind, run_cluster
from tests.simulation.cluster.consumer_clients import ConsumerClients
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
        ends += run_cluster(seed, kinds=[Kind.TRANSACTIONS]).clients[Kind.TRANSACTIONS].ends
    assert ends[Fate.COMMITTED] >= 20
    assert ends[Fate.ABORTED] >= 10
    assert min(ends["crashed producer"], ends["Fenced"], ends["left open"]) >= 1


def test_share_groups_meet_everything() -> None:
    """The judge of share groups has something to judge."""
    world = run_cluster(4, wal="object", kinds=[Kind.SHARE_GROUPS])
    judge, ends = world.share_judge, world.clients[Kind.SHARE_GROUPS].ends
    assert ends["moved"] >= 1
    assert sum(ends.values()) >= 4
    assert min(judge.confirmed[kind] for kind in AcknowledgeType if kind) >= 1
    assert min(judge.redeliveries, judge.loads) >= 2


def test_consumer_groups_rebalance_and_commit() -> None:
    """The judge of consumer groups has something to judge."""
    world = run_cluster(4, kinds=[Kind.CONSUMER_GROUPS])
    clients = world.clients[Kind.CONSUMER_GROUPS]
    assert isinstance(clients, ConsumerClients)
    assert min(clients.group.assignments, clients.group.commits) >= 10
    assert min(clients.ends["leave"], clients.ends["last commit"]) >= 1


def test_consumers_in_zones_read_from_replicas() -> None:
    """The judge of read replicas has something to judge."""
    ends = run_cluster(2, kinds=[Kind.ZONES]).clients[Kind.ZONES].ends
    assert min(ends["leader"], ends["read replica"]) >= 10
