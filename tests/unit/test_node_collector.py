"""Metrics are read in a thread of their own while a node changes what they count."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from lakehead.broker.observability import metrics
from lakehead.broker.observability.metrics import NodeCollector, gauge

NODE: Any = object()
KEPT = gauge("kept", "Another metric.", lambda _: 7)


def shown(monkeypatch: pytest.MonkeyPatch, changes: int) -> str:
    """Return the page with a metric whose parts change while they are counted, so many times."""
    left = [changes]

    def count(_: Any) -> float:
        parts, total = {0: 1}, 0
        for part in list(parts) if left[0] == 0 else parts:
            total += parts[part]
            parts[len(parts)] = 1  # as by the event loop, between two steps of this thread
        return total

    def read(node: Any) -> float:
        try:
            return count(node)
        finally:
            left[0] = max(left[0] - 1, 0)

    monkeypatch.setattr(metrics, "METRICS", (gauge("parts", "Parts.", read), KEPT))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(NODE))
    return generate_latest(registry).decode()


def test_a_metric_that_changes_while_it_is_read_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = shown(monkeypatch, changes=2)
    assert "lakehead_parts 1.0" in page
    assert "lakehead_kept 7.0" in page


def test_a_metric_that_changes_each_time_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    page = shown(monkeypatch, changes=1000)
    assert "lakehead_parts " not in page
    assert "lakehead_kept 7.0" in page
