"""How a node is: what a load balancer, a supervisor and a person in a hurry ask for."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.node import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """`status` is `ok`, `degraded` (slow, nothing lost; a restart does not help) or `failed` (the
    node acknowledges nothing more and is about to end). `troubles` says why, one line each.
    """

    status: str
    troubles: tuple[str, ...]


def health(node: "Node") -> Health:
    """Return how the node is now."""
    failure = node.failure
    if failure is not None:
        return Health(status="failed", troubles=(f"the node has stopped: {failure}",))
    troubles = []
    if waiting := node.engine.store_retries.waiting:
        troubles.append(f"the object store is failing: {waiting} calls wait to be repeated")
    if not node.is_writable():
        troubles.append("producers wait: the write-ahead log or the cache is full")
    return Health(status="degraded" if troubles else "ok", troubles=tuple(troubles))
