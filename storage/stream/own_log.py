"""Whether a write-ahead log is the one that holds what a node acknowledged: pure, by the metadata.

The metadata keep, for each node, the id of the log that its last epoch was begun on, that epoch,
and a position up to which it was uploaded. A log with another id, with an earlier epoch or with a
nearer end is not it: what lies in the right one beyond the uploads would be lost, and the offsets
of that given to other records. So such a log is refused, by the node that starts and by a taker
alike, unless nothing can be lost: the node has no stream open, or was recovered.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakehead.storage.errors import WrongLog
from lakehead.storage.metadata.state import ClusterState, NodeState, StreamState
from lakehead.storage.wal.protocol import LogIdentity

_NAMED_MAX = 3
"""So many partitions are named in a refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLoss:
    """What would be lost of a node that goes on with the log `found`, or with none that was found:
    the tails of `streams`, open under their epochs, in the node's known log.
    """

    node: NodeState
    streams: tuple[StreamState, ...]
    found: LogIdentity | None

    @property
    def accepted_by(self) -> str:
        """What an operator gives to accept it: it names this loss alone, and no later one."""
        return f"{self.node.node_id}:{self.node.epoch}"

    def describe(self, state: ClusterState, found: str) -> str:
        """Return in one line what would be lost, and how that is accepted. `found` says what is
        there instead.
        """
        node = self.node
        named = [_partition(state, stream) for stream in self.streams[:_NAMED_MAX]]
        more = len(self.streams) - len(named)
        partitions = ", ".join(named) + (f" and {more} more" if more else "")
        place = f" at {node.wal}" if node.wal else ""
        return (
            f"node {node.node_id}: {found}, and the node wrote last to the write-ahead log "
            f"{node.log.log_id}{place}, in epoch {node.log.epoch}. Records that were acknowledged "
            f"and are only there would be lost, of {len(self.streams)} open partitions "
            f"({partitions}). Start the node with that log; if it is gone for good, accept it "
            f"by --accept-log-loss {self.accepted_by}"
        )

    def found_at(self, address: str) -> str:
        """Return what a log is that was opened at an address, in the place of the known one."""
        found, known = self.found, self.node.log
        if found is None:
            return f"{address} does not hold its log"
        if found.log_id != known.log_id:
            last = f"of epoch {found.epoch}" if found.epoch >= 0 else "in which it never wrote"
            return f"{address} is another log, {found.log_id}, {last}"
        if found.epoch < known.epoch:
            return f"{address} is an older state of its log, of epoch {found.epoch}"
        return (
            f"{address} is an older state of its log, which ends at position {found.end} and was "
            f"uploaded up to {known.position}"
        )


def log_loss(state: ClusterState, node_id: int, found: LogIdentity | None) -> LogLoss | None:
    """Return what is lost if a node goes on with a log; None: nothing.

    `found` None stands for a log that holds nothing of it: a new one, one in memory, or the one in
    the cluster's store, where its own is not.
    """
    node = state.nodes.get(node_id)
    if node is None or not node.log.log_id or node.is_recovered or is_it(node, found):
        return None
    streams = tuple(
        stream for stream in state.streams.values() if stream.is_open and stream.node_id == node_id
    )
    return LogLoss(node=node, streams=streams, found=found) if streams else None


def is_it(node: NodeState, found: LogIdentity | None) -> bool:
    """Whether a log is the known one of a node, in no earlier state than is known."""
    known = node.log
    return (
        found is not None
        and found.log_id == known.log_id
        and found.epoch >= known.epoch
        and found.end >= known.position
    )


def refuse_wrong_log(
    state: ClusterState, node_id: int, found: LogIdentity | None, address: str
) -> None:
    """Raise WrongLog if something is lost by going on with the log at an address."""
    loss = log_loss(state, node_id, found)
    if loss is not None:
        raise WrongLog(loss.describe(state, loss.found_at(address)))


def _partition(state: ClusterState, stream: StreamState) -> str:
    topic = state.topic_by_id(stream.topic_id)
    name = stream.topic_id if topic is None else topic.name
    return f"{name}-{stream.partition} epoch {stream.epoch}"
