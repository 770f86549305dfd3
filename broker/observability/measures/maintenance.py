"""Maintenance of topics beside this node: compaction and retention."""

from collections.abc import Callable

from lakehead.broker.maintenance.beside import MaintenanceBeside
from lakehead.broker.observability.measures.measure import Values, counter, gauge
from lakehead.broker.observability.observed_node import ObservedNode


def _of_maintenance(read: Callable[[MaintenanceBeside], float]) -> Callable[[ObservedNode], Values]:
    def value(node: ObservedNode) -> Values:
        return None if node.maintenance is None else read(node.maintenance)

    return value


def _tables_running(node: ObservedNode) -> Values:
    return None if node.tables is None else float(node.tables.is_running)


MEASURES = (
    gauge(
        "tables_process_running",
        "Whether this node's process that keeps the declared tables runs.",
        _tables_running,
    ),
    counter(
        "maintenance_runs",
        "Processes that this node started for compaction and retention.",
        _of_maintenance(lambda m: m.runs),
    ),
    counter(
        "maintenance_failures",
        "Those of them that could not be started, or did not end well.",
        _of_maintenance(lambda m: m.failures),
    ),
    gauge(
        "maintenance_due",
        "Partitions of which something was due when this node looked last.",
        _of_maintenance(lambda m: m.due),
    ),
)
