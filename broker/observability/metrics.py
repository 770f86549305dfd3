"""Metrics for Prometheus. Components keep plain counts; they are read here when somebody asks, so
that counting costs the hot path an addition.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from storage.errors import SettingsError

if TYPE_CHECKING:
    from broker.node import Node


class Measure(NamedTuple):
    """One metric: its name, meaning, kind and where its value is."""

    name: str
    doc: str
    is_counter: bool
    read: Callable[["Node"], float]


MEASURES: tuple[Measure, ...] = (
    Measure(
        "lakehead_connections", "Open connections.", False, lambda n: len(n.server.connections)
    ),
    Measure(
        "lakehead_connections_accepted",
        "Connections accepted.",
        True,
        lambda n: n.server.accepted_total,
    ),
    Measure(
        "lakehead_connections_refused",
        "Connections closed because max.connections was reached.",
        True,
        lambda n: n.server.refused_total,
    ),
    Measure(
        "lakehead_connections_rejected",
        "Connections closed because they sent something that is no request that is served.",
        True,
        lambda n: n.server.rejected_total,
    ),
    Measure(
        "lakehead_requests_failed",
        "Requests that ended in an unforeseen error.",
        True,
        lambda n: n.dispatcher.failed_total,
    ),
    Measure(
        "lakehead_produced_batches", "Record batches produced.", True, lambda n: n.produced_total
    ),
    Measure(
        "lakehead_fetched_partitions",
        "Partitions answered by fetch requests.",
        True,
        lambda n: n.fetched_total,
    ),
    Measure(
        "lakehead_fetch_sessions", "Fetch sessions kept.", False, lambda n: len(n.fetch_sessions)
    ),
    Measure(
        "lakehead_cold_reads",
        "Reads from the object store at work.",
        False,
        lambda n: len(n.cold_reads),
    ),
    Measure("lakehead_topics", "Topics open here.", False, lambda n: len(n.topics.by_name)),
    Measure(
        "lakehead_writable",
        "1 while producers are read from, 0 while they wait for the WAL or the object store.",
        False,
        lambda n: float(n.is_writable()),
    ),
    Measure(
        "lakehead_event_loop_lag_seconds",
        "How late the event loop was at its last tick.",
        False,
        lambda n: n.server.lag_s,
    ),
    Measure(
        "lakehead_event_loop_lag_max_seconds",
        "How late the event loop ever was at a tick.",
        False,
        lambda n: n.server.lag_max_s,
    ),
)


class NodeCollector:
    """Reads the metrics of one node."""

    def __init__(self, node: "Node") -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """Return every metric with its value of now."""
        for measure in MEASURES:
            kind = CounterMetricFamily if measure.is_counter else GaugeMetricFamily
            yield kind(measure.name, measure.doc, value=measure.read(self._node))
        requests = CounterMetricFamily("lakehead_requests", "Requests, by API.", labels=["api"])
        for name, total in sorted(self._node.dispatcher.requests_total.items()):
            requests.add_metric([name], total)
        yield requests


class MetricsPage:
    """The metrics of a node over HTTP, from a thread of its own."""

    def __init__(self, node: "Node") -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(NodeCollector(node))
        self._close: Callable[[], None] | None = None
        self.port = 0

    def start(self, host: str, port: int) -> None:
        """Listen. Raises SettingsError when the address cannot be had."""
        try:
            server, thread = start_http_server(port, host, registry=self._registry)
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {host}:{port} for metrics: {error.strerror or error}"
            ) from None
        self.port = int(server.server_port)

        def close() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        self._close = close

    def close(self) -> None:
        """Stop listening."""
        if self._close is not None:
            self._close()
            self._close = None
