"""The metrics of a node for Prometheus. Components keep plain counts; they are read here when
somebody asks, so that counting costs the hot path an addition.
"""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from lakehead.broker.observability.measures import MEASURES, Measure
from lakehead.broker.observability.observed_node import ObservedNode


class NodeCollector:
    """Reads the metrics of one node."""

    def __init__(self, node: ObservedNode) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """Return every metric with its value of now."""
        for measure in MEASURES:
            if (metric := self._read(measure)) is not None:
                yield metric

    def _read(self, measure: Measure) -> Metric | None:
        kind = CounterMetricFamily if measure.is_counter else GaugeMetricFamily
        values = measure.read(self._node)
        if values is None:
            return None
        if not isinstance(values, Mapping):
            return kind(measure.name, measure.doc, value=values)
        family = kind(measure.name, measure.doc, labels=[measure.label])
        for label, value in values.items():
            family.add_metric([label], value)
        return family
