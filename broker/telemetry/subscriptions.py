"""Subscriptions to metrics of clients, and what they make of a client (KIP-714)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from immutables import Map

from lakehead.broker.configs.client_metrics_configs import (
    CLIENT_METRICS_CONFIGS,
    INTERVAL_MS,
    MATCH,
    METRICS,
    parse_match,
)
from lakehead.broker.configs.definition import split_list
from lakehead.broker.protocol.patterns import Pattern

ALL_METRICS = "*"
ATTRIBUTE_MAX = 256
"""Characters of a client's attribute that are matched; a longer one matches nothing."""
_SHARED_MAX = 1_000

Attributes = Mapping[str, str | None]
"""Attributes of a client, by the names that `match` has for them; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One subscription. `match` has a pattern for each attribute that decides."""

    metrics: frozenset[str]
    interval_ms: int
    match: Mapping[str, Pattern]

    def matches(self, client: Attributes) -> bool:
        """Return true if the client pushes these metrics."""
        return all(
            (value := client.get(name)) is not None
            and len(value) <= ATTRIBUTE_MAX
            and pattern.matches(value)
            for name, pattern in self.match.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsWanted:
    """The metrics that a client pushes, as beginnings of their names, and how often."""

    metrics: tuple[str, ...]
    interval_ms: int

    def includes(self, name: str) -> bool:
        """Return true if a metric of this name was subscribed to."""
        return self.metrics == (ALL_METRICS,) or name.startswith(self.metrics)


def subscription(configs: Mapping[str, str]) -> Subscription:
    """Return the subscription with these configs, which were checked before."""

    def value(name: str) -> str:
        return configs.get(name) or CLIENT_METRICS_CONFIGS[name].default or ""

    return Subscription(
        metrics=frozenset(filter(None, split_list(value(METRICS)))),
        interval_ms=int(value(INTERVAL_MS)),
        match=parse_match(value(MATCH)),
    )


class Subscriptions:
    """The subscriptions of the cluster. `version` grows with each change of them."""

    def __init__(self) -> None:
        self.version = 0
        self._configs: Map[str, Map[str, str]] = Map()
        self._known: dict[str, tuple[Map[str, str], Subscription]] = {}
        self._shared: dict[MetricsWanted, MetricsWanted] = {}

    def update(self, configs: Map[str, Map[str, str]]) -> None:
        """Take the present configs of all subscriptions, by name."""
        if configs is self._configs:
            return
        known, self._known = self._known, {}
        for name, its in configs.items():
            before = known.get(name)
            same = before is not None and before[0] == its
            self._known[name] = before if before is not None and same else (its, subscription(its))
        self._configs = configs
        self._shared.clear()
        self.version += 1

    def of(self, client: Attributes, default_interval_ms: int) -> MetricsWanted:
        """Return what a client pushes: the metrics of all subscriptions that match it, at the
        shortest of their intervals.
        """
        matching = [one for _, one in self._known.values() if one.matches(client)]
        metrics = _union(one.metrics for one in matching)
        wanted = MetricsWanted(
            metrics=(ALL_METRICS,) if ALL_METRICS in metrics else tuple(sorted(metrics)),
            interval_ms=min([default_interval_ms, *(one.interval_ms for one in matching)]),
        )
        if len(self._shared) == _SHARED_MAX:
            self._shared.clear()
        return self._shared.setdefault(wanted, wanted)  # thousands of clients push the same


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*sets)
