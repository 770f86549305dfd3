"""The state of hosts by the cluster's metadata: pure functions that describe their faults."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lakehead.broker.cli.rolling.host_plan import Host
from lakehead.broker.cluster.node_status import leads
from lakehead.storage.errors import StorageError
from lakehead.storage.metadata.records import DrainNode
from lakehead.storage.metadata.state import MetadataImage, NodeState


class HostDown(StorageError):
    """A host is not as it has to be, or was not in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The wanted state of a host: all its nodes live or, before it `is_settled`, those it had."""

    host: Host
    is_settled: bool = True


@dataclass(slots=True)
class ReadyWatch:
    """Since when a host has been well with each node in one epoch: a node that ends and starts
    again is in the next one, so a host whose nodes crash in a loop is never ready.

    It has to be so for `min_ready_s` (Kubernetes' minReadySeconds).
    """

    min_ready_s: float
    _epochs: dict[int, int] = field(default_factory=dict)
    _since: float | None = None
    _restarts: int = 0

    def amiss(self, nodes: Iterable[NodeState], why: str, now: float) -> str:
        """Return what is wrong with a host at a time, in seconds, for which `why` is what is wrong
        at the moment; empty: it is ready.
        """
        epochs = {node.node_id: node.epoch for node in nodes}
        again = [n for n in self._epochs if epochs.get(n, -1) > self._epochs[n]]
        if again:
            self._restarts += 1
        if why or epochs != self._epochs:
            self._since = None
        self._epochs = epochs
        if why:
            return f"{why}{self._restarted()}"
        if self._since is None:
            self._since = now
        if now - self._since >= self.min_ready_s:
            return ""
        return f"its nodes have not yet served for {self.min_ready_s:g} s{self._restarted()}"

    def _restarted(self) -> str:
        times = f"{self._restarts} time{'s' * (self._restarts > 1)}"
        return f" (they started again {times})" if self._restarts else ""


@dataclass(slots=True)
class PauseWatch:
    """The time for which partitions had no leader, by samples."""

    longest_s: float = 0.0
    _since: dict[int, float] = field(default_factory=dict)

    def look(self, state: MetadataImage, now: float) -> None:
        """Take note of the state at a time, in seconds."""
        self._since = {stream: self._since.get(stream, now) for stream in _unled(state, ())}
        longest = max((now - since for since in self._since.values()), default=0.0)
        self.longest_s = max(self.longest_s, longest)


def nodes_of(state: MetadataImage, hosts: Iterable[Host]) -> list[NodeState]:
    """Return the nodes that are registered as being on some hosts, in the order of their ids."""
    host_ids = {host.host_id for host in hosts}
    found = (node for node in state.nodes.values() if node.host_id in host_ids)
    return sorted(found, key=lambda node: node.node_id)


def amiss(state: MetadataImage, expected: Expected) -> str:
    """Return what is wrong with a host; empty: it serves and may lead."""
    host = expected.host
    registered = {node.node_id: node for node in nodes_of(state, [host])}
    wanted = host.node_ids or tuple(registered)
    if not expected.is_settled:
        wanted = tuple(node_id for node_id in wanted if node_id in registered)
    if not wanted:
        return f"no node of {host.slot} (host.id {host.host_id}) has ever registered"
    for node_id in wanted:
        node = registered.get(node_id)
        if node is None:
            return f"node {node_id} of {host.slot} has not registered"
        if node.is_fenced:
            return f"node {node_id} of {host.slot} is down"
        if node.is_draining:
            return (
                f"node {node_id} of {host.slot} is draining; if no work on that host is under way: "
                f"lakehead drain {node_id} --undo"
            )
    return ""


def unwell(
    state: MetadataImage, others: Mapping[str, Expected], touched: Collection[Host] = ()
) -> str:
    """Return what is wrong in the cluster but for the hosts that are `touched`; empty: nothing."""
    slots = {host.slot for host in touched}
    for slot, expected in others.items():
        if slot not in slots and (why := amiss(state, expected)):
            return why
    if unled := _unled(state, touched):
        return f"{_partitions(len(unled))} without a leader"
    return ""


def drains(
    state: MetadataImage, others: Mapping[str, Expected], touched: Collection[Host]
) -> Sequence[DrainNode]:
    """Return the entry that drains some hosts. Raises HostDown unless all others are well and
    another node can lead.
    """
    if why := unwell(state, others, touched):
        raise HostDown(f"{why}; so nothing is drained")
    mine = [node for node in nodes_of(state, touched) if not node.is_fenced]
    ids = {node.node_id for node in mine}
    heirs = [n for n in state.nodes.values() if not n.is_fenced and not n.is_draining]
    if mine and not any(node.node_id not in ids for node in heirs):
        slots = ", ".join(host.slot for host in touched)
        raise HostDown(
            f"without {slots} no node is left to lead: add a host first, or let the cluster be "
            "away for that time and use terraform apply itself"
        )
    return [
        DrainNode(node_id=node.node_id, epoch=node.epoch, is_draining=True)
        for node in mine
        if not node.is_draining
    ]


def leading(state: MetadataImage, hosts: Collection[Host]) -> str:
    """Return why the live nodes of some hosts are not drained; empty: they are."""
    led = leads(state)
    for node in nodes_of(state, hosts):
        if not node.is_fenced and not node.is_draining:
            return f"node {node.node_id} is not drained any more: it started again"
        if not node.is_fenced and led[node.node_id]:
            return f"node {node.node_id} leads {_partitions(led[node.node_id])}"
    return ""


def held(state: MetadataImage, hosts: Collection[Host]) -> str:
    """Return the reasons against removing hosts for good: partitions that their nodes lead, and
    unrecovered logs of fenced nodes. Empty: none.
    """
    led = leads(state)
    for node in nodes_of(state, hosts):
        if node.is_fenced and led[node.node_id]:
            return (
                f"node {node.node_id} is down, and its log holds what was not uploaded of "
                f"{_partitions(led[node.node_id])}: start it again, or a node that reaches its log"
            )
    return leading(state, hosts)


def not_gone(state: MetadataImage, hosts: Collection[Host]) -> str:
    """Return what keeps the nodes of hosts from being unregistered; empty: nothing."""
    live = [node.node_id for node in nodes_of(state, hosts) if not node.is_fenced]
    return f"node {live[0]} is still live" if live else held(state, hosts)


def _unled(state: MetadataImage, touched: Collection[Host]) -> list[int]:
    """Return the partitions without a live leader, but for those whose last one is touched."""
    mine = {node.node_id for node in nodes_of(state, touched)}
    live = state.live_node_ids
    return [
        stream.stream_id
        for stream in state.streams.values()
        if stream.node_id not in mine and not (stream.is_open and stream.node_id in live)
    ]


def _partitions(count: int) -> str:
    return f"{count} partition{'s' * (count > 1)}"
