"""Why a declared table is late, by the metadata alone: pure."""

from typing import TYPE_CHECKING

from lakehead.storage.metadata.state import ClusterState, TablesKeeping

if TYPE_CHECKING:
    from lakehead.lake.jobs.table_status import TableStatus

LATE_AFTER = 2
"""A table is late when it is behind by this many times the freshness that its topic declares."""


def why_late(status: "TableStatus", state: ClusterState) -> str | None:
    """Return why a table is late and the command that helps, None for one that is not."""
    wanted = status.freshness_seconds
    if wanted is None or status.seconds_behind <= LATE_AFTER * wanted:
        return None
    return f"late: {wanted:.0f} s are declared, and {_cause(status, state)}"


def _cause(status: "TableStatus", state: ClusterState) -> str:
    if status.error is not None:
        return "its last turn failed (see the error)"
    if status.holder is not None:
        return (
            f"{status.holder} keeps it and is {status.records_behind} records behind: it does not "
            "keep up, or a transaction of a producer is open"
        )
    by_hand = f"run: lakehead materialize {status.topic} (--follow for every table, for good)"
    living = [node for node in state.nodes.values() if not node.is_fenced]
    if not living:
        return f"no process keeps it, since no node lives: start a node, or {by_hand}"
    first = min(living, key=lambda node: node.node_id)
    match first.tables:
        case TablesKeeping.KEPT:
            return (
                f"no process keeps it: the one of node {first.node_id} is not there yet, or fails "
                f"(tables_process_ended in the node's log); {by_hand}"
            )
        case TablesKeeping.OFF:
            return (
                f"no process keeps it: maintain or maintain.tables is false on node "
                f"{first.node_id}, which would; set both to true there, or {by_hand}"
            )
        case TablesKeeping.NOT_INSTALLED:
            return (
                f"no process keeps it: the packages of the lake are missing on node "
                f"{first.node_id}, which would; there: pip install 'lakehead[lake]', or elsewhere "
                f"{by_hand}"
            )
    return f"no process keeps it: {by_hand}"
