"""`lakehead tables` gives the reason of a late table: one test for each cause."""

import random
from dataclasses import replace

import pytest
from immutables import Map

from lakehead.broker.maintenance.tables_beside import tables_keeping
from lakehead.broker.settings import Settings
from lakehead.lake.jobs.table_status import TableStatus, why_late
from lakehead.storage.clock import SystemClock
from lakehead.storage.metadata.checkpoints import state_of, tables_of
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.log_reader import in_steps
from lakehead.storage.metadata.records import ClusterCreated, FeatureLevel, RegisterNode
from lakehead.storage.metadata.state import MetadataImage, NodeState, TablesKeeping
from lakehead.storage.object_store import MemoryStore

LATE = TableStatus(topic="t", freshness_seconds=1.0, seconds_behind=2.5, records_behind=7)


def state(*kept: str, fenced: tuple[int, ...] = ()) -> MetadataImage:
    """A cluster in which node 1, 2, ... says this of the tables that it keeps."""
    nodes = {
        number: NodeState(
            node_id=number,
            epoch=0,
            incarnation="i",
            host="h",
            port=1,
            rack=None,
            is_fenced=number in fenced,
            tables=tables,
        )
        for number, tables in enumerate(kept, 1)
    }
    return replace(MetadataImage(), nodes=Map(nodes))


@pytest.mark.parametrize(
    ("status", "cluster", "reason"),
    [
        (replace(LATE, error="x"), state("kept"), "its last turn failed"),
        (replace(LATE, holder="h-1"), state("off"), "h-1 keeps it and is 7 records behind"),
        (LATE, state(), "no node lives: start a node, or run: lakehead materialize t"),
        (LATE, state("kept", fenced=(1,)), "no node lives"),
        (LATE, state("kept", "off"), "the one of node 1 has not started yet, or fails"),
        (LATE, state("off", "kept"), "maintain.tables is false on node 1, which would"),
        (LATE, state("kept", "off", fenced=(1,)), "maintain.tables is false on node 2"),
        (LATE, state("not installed"), "missing on node 1, which would; there: pip install"),
        (LATE, state(""), "no process keeps it: run: lakehead materialize t"),
    ],
)
def test_a_late_table_has_its_reason(
    status: TableStatus, cluster: MetadataImage, reason: str
) -> None:
    found = why_late(status, cluster)
    assert found is not None
    assert found.startswith("late: 1 s are declared, and ")
    assert reason in found


def test_a_table_within_twice_its_freshness_is_not_late() -> None:
    assert why_late(replace(LATE, seconds_behind=2.0), state()) is None
    assert why_late(replace(LATE, freshness_seconds=None), state()) is None


def test_a_node_says_whether_it_keeps_tables() -> None:
    on = Settings(data="/x", maintain=True, maintain_tables=True)
    assert tables_keeping(on, lambda: True) == TablesKeeping.KEPT
    assert tables_keeping(on, lambda: False) == TablesKeeping.NOT_INSTALLED
    for off in (replace(on, maintain=False), replace(on, maintain_tables=False)):
        assert tables_keeping(off, lambda: True) == TablesKeeping.OFF


async def test_what_a_node_says_of_tables_is_kept_from_level_2_on() -> None:
    log = await MetadataLog.open(
        MemoryStore(), writer_id="w", clock=SystemClock(), rng=random.Random(1)
    )
    node = RegisterNode(node_id=0, epoch=0, incarnation="i", host="h", port=1, tables="off")
    await log.commit([ClusterCreated(cluster_id="c"), node])
    assert log.state.nodes[0].tables == "", "an earlier release would not understand it"
    again = RegisterNode(node_id=0, epoch=1, incarnation="j", host="h", port=1, tables="off")
    await log.commit([FeatureLevel(name="metadata.version", level=2), again])
    assert log.state.nodes[0].tables == TablesKeeping.OFF
    restored = await in_steps(state_of("k", await in_steps(tables_of(log.state))))
    assert restored.nodes[0].tables == TablesKeeping.OFF
