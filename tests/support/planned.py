"""The controller's plans, made in one go; a node gives way to others at each step."""

from collections.abc import Generator, Mapping, Sequence
from typing import TypeVar

from lakehead.broker.cluster import balance as balancing
from lakehead.broker.cluster import controller as planning
from lakehead.broker.cluster.controller import ClusterView
from lakehead.broker.cluster.heartbeat import NodeLoad
from lakehead.storage.metadata.records import Record
from lakehead.storage.metadata.state import MetadataImage

T = TypeVar("T")


def finished(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def plan(state: MetadataImage, situation: ClusterView) -> Sequence[Record]:
    return finished(planning.plan(state, situation))


def balance(
    leads: Mapping[int, Sequence[int]], loads: Mapping[int, NodeLoad], *, imbalance: float
) -> list[tuple[int, int]]:
    return finished(balancing.balance(leads, loads, imbalance=imbalance))


def stream_weights(
    leads: Mapping[int, Sequence[int]], loads: Mapping[int, NodeLoad]
) -> dict[int, float]:
    return finished(balancing.stream_weights(leads, loads))
