"""The health of a node, as probes of a supervisor, a load balancer and a monitor read it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lakehead.broker.observability.observed_node import ObservedNode
from lakehead.storage.backup.standby_log import CopyLag, StandbyLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The health of a node.

    `status` is `ok`, or `standby` on a node that serves a copy of a cluster; `starting` or
    `stopping`: clients are not served yet, or not any more; `degraded`: slow, but nothing is lost,
    and a restart does not help; or `failed`: the node acknowledges nothing more and is about to
    end. `troubles` gives the reasons, one line each.
    """

    status: str
    troubles: tuple[str, ...]
    copy: CopyLag | None = None
    """The copy that a standby serves; None for other nodes."""


PROBES: Mapping[str, Callable[[Health], bool]] = {
    "/live": lambda health: health.status != "failed",
    "/ready": lambda health: health.status in {"ok", "standby", "degraded"},
    "/health": lambda health: health.status in {"ok", "standby"},
}
"""Probes by path, each with the condition under which it passes: a restart would not help; clients
are served; an operator need not look.
"""


def copy_lag(node: ObservedNode) -> CopyLag | None:
    """Return the lag of the copy that a standby serves; None for other nodes."""
    metadata = node.engine.metadata
    return metadata.lag if isinstance(metadata, StandbyLog) else None


def health(node: ObservedNode) -> Health:
    """Return the health of `node` now."""
    failure = node.failure
    if failure is not None:
        return Health(status="failed", troubles=(f"the node has stopped: {failure}",))
    copy = copy_lag(node)
    troubles = []
    if waiting := node.engine.store_retries.waiting:
        troubles.append(f"the object store is failing: {waiting} calls are repeated")
    if not node.is_writable():
        troubles.append("producers wait: the write-ahead log or the cache is full")
    if node.is_stopping:
        status = "stopping"
    elif not node.is_ready:
        status = "starting"
    else:
        status = "degraded" if troubles else "ok" if copy is None else "standby"
    return Health(status=status, troubles=tuple(troubles), copy=copy)
