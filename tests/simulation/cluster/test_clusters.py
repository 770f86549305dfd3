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
from tests.simulation.other_process import printed_elsewhere
from tests.simulation.quiet import silence_logs
from tests.support.repetitions import repetitions

SEEDS = int(os.environ.get("LAKEHEAD_CLUSTERS", repetitions(8, 4)))
CHUNK = 4
JUDGED_MAX = 20
"""Clusters within which everything that a judge looks at has happened."""


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


def digest() -> str:
    """The digest of the trace of a cluster with all kinds of clients."""
    return run_cluster(6, kinds=list(Kind)).trace.digest()


def test_a_seed_is_one_cluster_in_every_process() -> None:
    assert printed_elsewhere(__name__, digest.__name__) == digest()


def test_transactions_end_in_every_way() -> None:
    """The judge of transactions has something to judge."""
    ends: Counter[str] = Counter()
    for seed in range(4):
        ends += run_cluster(seed, kinds=[Kind.TRANSACTIONS]).clients[Kind.TRANSACTIONS].ends
    assert ends[Fate.COMMITTED] >= 20
    assert ends[Fate.ABORTED] >= 10
    assert min(ends["crashed producer"], ends["Fenced"], ends["left open"]) >= 1


def test_share_groups_meet_everything() -> None:
    """The judge of share groups has something to judge, within a few clusters."""
    seen: Counter[str] = Counter()
    for seed in range(JUDGED_MAX):
        world = run_cluster(seed, wal="object", kinds=[Kind.SHARE_GROUPS])
        seen += world.clients[Kind.SHARE_GROUPS].ends
        seen.update({kind.name: n for kind, n in world.share_judge.confirmed.items()})
        verdicts = {kind.name for kind in AcknowledgeType if kind}
        if seen.keys() >= verdicts | {"moved", "leave", "kill", "freeze"}:
            return
    raise AssertionError(f"only {seen}")


def test_consumer_groups_rebalance_and_commit() -> None:
    """The judge of consumer groups has something to judge, within a few clusters."""
    seen: Counter[str] = Counter()
    for seed in range(JUDGED_MAX):
        clients = run_cluster(seed, kinds=[Kind.CONSUMER_GROUPS]).clients[Kind.CONSUMER_GROUPS]
        assert isinstance(clients, ConsumerClients)
        seen += clients.ends
        seen.update(assignments=clients.group.assignments, commits=clients.group.commits)
        is_busy = min(seen["assignments"], seen["commits"]) >= 10
        if is_busy and seen.keys() >= {"leave", "last commit", "freeze"}:
            return
    raise AssertionError(f"only {seen}")


def test_consumers_in_zones_read_from_replicas() -> None:
    """The judge of read replicas has something to judge, within a few clusters."""
    seen: Counter[str] = Counter()
    for seed in range(JUDGED_MAX):
        seen += run_cluster(seed, kinds=[Kind.ZONES]).clients[Kind.ZONES].ends
        if min(seen["leader"], seen["read replica"]) >= 10:
            return
    raise AssertionError(f"only {seen}")


def test_a_reader_of_committed_records_reads_from_replicas() -> None:
    """The judge of transactions has something to judge of them, within a few clusters."""
    seen: Counter[str] = Counter()
    for seed in range(JUDGED_MAX):
        world = run_cluster(seed, kinds=[Kind.TRANSACTIONS, Kind.ZONES])
        seen += world.clients[Kind.TRANSACTIONS].ends
        if seen["read from a replica"] >= 10:
            return
    raise AssertionError(f"only {seen}")
